//! Access logs of the three proxies, in formats of our own, read into one form.

use crate::behaviour::Behaviour;

/// One line of an access log. Figures that a proxy does not offer are None.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The name of the exchange, or the path if it was not one of ours.
    pub id: String,
    /// Status sent to the client.
    pub status: u16,
    /// Bytes sent to the client, heads included.
    pub sent: u64,
    /// Body bytes sent to the client, framing included.
    pub body_sent: Option<u64>,
    /// Bytes received from the client.
    pub received: Option<u64>,
    /// Bytes received from the backend, heads included.
    pub upstream_received: Option<u64>,
    /// Bytes sent to the backend.
    pub upstream_sent: Option<u64>,
    /// How it ended, in the proxy's own words.
    pub ending: String,
}

fn id_of(target: &str) -> String {
    let authority = || target.strip_suffix(":443").unwrap_or(target).to_owned();
    Behaviour::parse(target).map_or_else(authority, |(id, _)| id)
}

/// `$request_uri $status $bytes_sent $body_bytes_sent $request_length $upstream_bytes_received $upstream_bytes_sent
/// $request_completion`
pub(super) fn nginx(line: &str) -> Option<LogLine> {
    let mut words = line.trim_end().split(' ');
    Some(LogLine {
        id: id_of(words.next()?),
        status: words.next()?.parse().ok()?,
        sent: words.next()?.parse().ok()?,
        body_sent: words.next()?.parse().ok(),
        received: words.next()?.parse().ok(),
        upstream_received: words.next()?.parse().ok(),
        upstream_sent: words.next()?.parse().ok(),
        ending: words.next().unwrap_or_default().to_owned(),
    })
}

/// `%HU %ST %B %U %ts`
pub(super) fn haproxy(line: &str) -> Option<LogLine> {
    let mut words = line.trim_end().split(' ');
    Some(LogLine {
        id: id_of(words.next()?),
        status: words.next()?.parse().ok()?,
        sent: words.next()?.parse().ok()?,
        body_sent: None,
        received: words.next()?.parse().ok(),
        upstream_received: None,
        upstream_sent: None,
        ending: words.next()?.to_owned(),
    })
}

/// `PATH-OR-AUTHORITY RESPONSE_CODE DOWNSTREAM_WIRE_BYTES_SENT BYTES_SENT DOWNSTREAM_WIRE_BYTES_RECEIVED
/// UPSTREAM_WIRE_BYTES_RECEIVED UPSTREAM_WIRE_BYTES_SENT RESPONSE_FLAGS`
pub(super) fn envoy(line: &str) -> Option<LogLine> {
    nginx(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = nginx("/x/a-1?len=5 200 300 5 80 290 75 OK\n").expect("a line");
        assert_eq!((line.id.as_str(), line.status, line.sent), ("a-1", 200, 300));
        assert_eq!(line.upstream_received, Some(290));
        let line = haproxy("/x/a-1?len=5 200 300 80 --\n").expect("a line");
        assert_eq!((line.ending.as_str(), line.received), ("--", Some(80)));
        assert_eq!(haproxy("a-1:443 200 300 80 --\n").expect("a line of CONNECT").id, "a-1");
        assert_eq!(nginx("half a li"), None);
    }
}
