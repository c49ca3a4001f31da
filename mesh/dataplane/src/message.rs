//! Heads and framing of HTTP/1.1 messages (RFC 9112), as far as the agent moves them.

use underdeck_mesh_policy::evaluate::apply;
use underdeck_mesh_policy::form::HeaderEdits;

/// Longer heads are not read.
pub(crate) const HEAD_MAX: usize = 96 * 1024;

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// After so many bytes; 0: there is none.
    Length(u64),
    /// With the last chunk.
    Chunked,
    /// With the connection.
    UntilClose,
}

/// What is at the beginning of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read<T> {
    /// A whole head.
    Head(T),
    /// The beginning of one.
    More,
    /// Something else, or something that can be understood in two ways.
    Odd,
}

/// A request head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestHead {
    /// With the empty line.
    pub(crate) len: usize,
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Body,
}

/// A response head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResponseHead {
    /// With the empty line.
    pub(crate) len: usize,
    pub(crate) status: u16,
    pub(crate) reason: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Body,
    /// The connection is not used again.
    pub(crate) close: bool,
}

/// Names and values; None: a value is not UTF-8, or a line ends in a line feed alone.
fn lines(head: &[u8], parsed: &[httparse::Header<'_>]) -> Option<Vec<(String, String)>> {
    let is_bare = |pair: &[u8]| pair[1] == b'\n' && pair[0] != b'\r';
    if head.windows(2).any(is_bare) {
        return None;
    }
    let text = |header: &httparse::Header<'_>| {
        Some((header.name.to_ascii_lowercase(), std::str::from_utf8(header.value).ok()?.to_owned()))
    };
    parsed.iter().map(text).collect()
}

fn values<'a>(headers: &'a [(String, String)], name: &'a str) -> impl Iterator<Item = &'a str> {
    headers.iter().filter(move |(of, _)| of == name).map(|(_, value)| value.as_str())
}

/// `content-length`; Err: there are several, or it is no number.
fn length(headers: &[(String, String)]) -> Result<Option<u64>, ()> {
    let mut found = values(headers, "content-length");
    let Some(first) = found.next() else { return Ok(None) };
    if found.next().is_some() || first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(());
    }
    first.parse().map(Some).map_err(|_| ())
}

/// Reads the head of a request that the kernel has not decided. What is [`Read::Odd`] is Envoy's, and so is everything
/// after it on that connection.
pub(crate) fn request(bytes: &[u8]) -> Read<RequestHead> {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut parsed = httparse::Request::new(&mut headers);
    let len = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Read::More,
        Ok(httparse::Status::Partial) | Err(_) => return Read::Odd,
    };
    let (Some(method), Some(target), Some(1)) = (parsed.method, parsed.path, parsed.version) else { return Read::Odd };
    let Some(headers) = lines(&bytes[..len], parsed.headers) else { return Read::Odd };
    let odd = ["upgrade", "te", "trailer"];
    let expects = values(&headers, "expect").any(|value| !value.eq_ignore_ascii_case("100-continue"));
    let closes = values(&headers, "connection").any(|value| !value.eq_ignore_ascii_case("keep-alive"));
    if bytes.starts_with(b"\r\n")
        || method == "CONNECT"
        || closes
        || expects
        || odd.iter().any(|name| values(&headers, name).next().is_some())
    {
        return Read::Odd;
    }
    let coding: Vec<_> = values(&headers, "transfer-encoding").collect();
    let body = match (&coding[..], length(&headers)) {
        ([], Ok(length)) => Body::Length(length.unwrap_or(0)),
        ([one], Ok(None)) if one.eq_ignore_ascii_case("chunked") => Body::Chunked,
        _ => return Read::Odd,
    };
    let (method, target) = (method.to_owned(), target.to_owned());
    Read::Head(RequestHead { len, method, target, headers, body })
}

/// Reads the head of a response to a request; `no_body`: to a HEAD.
pub(crate) fn response(bytes: &[u8], no_body: bool) -> Read<ResponseHead> {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut parsed = httparse::Response::new(&mut headers);
    let len = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Read::More,
        Ok(httparse::Status::Partial) | Err(_) => return Read::Odd,
    };
    let (Some(status), Some(version)) = (parsed.code, parsed.version) else { return Read::Odd };
    let reason = parsed.reason.unwrap_or("").to_owned();
    let Some(headers) = lines(&bytes[..len], parsed.headers) else { return Read::Odd };
    let has_token = |token: &str| {
        let mut tokens = values(&headers, "connection").flat_map(|value| value.split(','));
        tokens.any(|of| of.trim().eq_ignore_ascii_case(token))
    };
    let mut close = has_token("close") || (version == 0 && !has_token("keep-alive"));
    let coding: Vec<_> = values(&headers, "transfer-encoding").collect();
    let body = match (&coding[..], length(&headers)) {
        _ if no_body || status == 204 || status == 304 || (100..200).contains(&status) => Body::Length(0),
        ([one], Ok(None)) if one.eq_ignore_ascii_case("chunked") => Body::Chunked,
        ([], Ok(Some(length))) => Body::Length(length),
        ([], Ok(None)) => Body::UntilClose,
        _ => return Read::Odd,
    };
    close |= body == Body::UntilClose;
    Read::Head(ResponseHead { len, status, reason, headers, body, close })
}

impl ResponseHead {
    /// The head as the client gets it: without what is only between the agent and the upstream, and edited. `ends`: the
    /// connection of the client ends with this response.
    pub(crate) fn write(&self, edits: &[HeaderEdits], ends: bool) -> Vec<u8> {
        let named: Vec<String> = values(&self.headers, "connection")
            .flat_map(|value| value.split(','))
            .map(|token| token.trim().to_ascii_lowercase())
            .collect();
        let hop = ["connection", "keep-alive", "proxy-connection"];
        let is_hop = |name: &String| hop.contains(&name.as_str()) || (named.contains(name) && name != "content-length");
        let mut headers = self.headers.clone();
        headers.retain(|(name, _)| !is_hop(name));
        for edits in edits {
            apply(&mut headers, edits);
        }
        if ends {
            headers.push(("connection".into(), "close".into()));
        }
        let mut out = format!("HTTP/1.1 {} {}\r\n", self.status, self.reason).into_bytes();
        for (name, value) in headers {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// Follows a body to its end.
#[derive(Debug, Clone)]
pub(crate) enum Follow {
    Length(u64),
    Chunked(Chunks),
    UntilClose,
}

impl Follow {
    pub(crate) fn new(body: Body) -> Self {
        match body {
            Body::Length(length) => Self::Length(length),
            Body::Chunked => Self::Chunked(Chunks { at: At::Size, size: 0, digits: 0 }),
            Body::UntilClose => Self::UntilClose,
        }
    }

    /// How many of the bytes belong to the body. None: they make no sense.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Length(left) => {
                let taken = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= taken as u64;
                Some(taken)
            }
            Self::Chunked(chunks) => chunks.walk(bytes, |_| {}),
            Self::UntilClose => Some(bytes.len()),
        }
    }

    /// As [`Self::take`], and adds them to `out` as they are sent on: chunks are written anew, without extensions and
    /// trailers, as Envoy does it, so that there is one way to read them.
    pub(crate) fn copy(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let Self::Chunked(chunks) = self else {
            let taken = self.take(bytes)?;
            out.extend_from_slice(&bytes[..taken]);
            return Some(taken);
        };
        let taken = chunks.walk(bytes, |data| {
            out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
            out.extend_from_slice(data);
            out.extend_from_slice(b"\r\n");
        })?;
        if chunks.at == At::Done && taken > 0 {
            out.extend_from_slice(b"0\r\n\r\n");
        }
        Some(taken)
    }

    pub(crate) fn is_done(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.at == At::Done,
            Self::UntilClose => false,
        }
    }
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Where a chunked body is (RFC 9112 section 7.1).
#[derive(Debug, Clone)]
pub(crate) struct Chunks {
    at: At,
    size: u64,
    digits: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Size,
    Extension,
    SizeEnd,
    Data,
    DataReturn,
    DataEnd,
    Trailer,
    TrailerName,
    TrailerLine,
    TrailerEnd,
    LastEnd,
    Done,
}

impl Chunks {
    fn walk(&mut self, bytes: &[u8], mut data: impl FnMut(&[u8])) -> Option<usize> {
        let mut taken = 0;
        while taken < bytes.len() && self.at != At::Done {
            if self.at == At::Data {
                let here = (bytes.len() - taken).min(usize::try_from(self.size).unwrap_or(usize::MAX));
                data(&bytes[taken..taken + here]);
                taken += here;
                self.size -= here as u64;
                if self.size == 0 {
                    self.at = At::DataReturn;
                }
                continue;
            }
            self.at = self.next(bytes[taken])?;
            taken += 1;
        }
        Some(taken)
    }

    fn next(&mut self, byte: u8) -> Option<At> {
        Some(match (self.at, byte) {
            (At::Size, b'\r') if self.digits > 0 => At::SizeEnd,
            (At::Size, b';' | b' ' | b'\t') if self.digits > 0 => At::Extension,
            (At::Size, byte) => {
                let digit = char::from(byte).to_digit(16)?;
                self.digits += 1;
                self.size = self.size.checked_mul(16)?.checked_add(u64::from(digit))?;
                At::Size
            }
            (At::Extension, b'\r') => At::SizeEnd,
            (At::Extension, byte) if byte != b'\n' => At::Extension,
            (At::SizeEnd, b'\n') => {
                self.digits = 0;
                if self.size == 0 { At::Trailer } else { At::Data }
            }
            (At::DataReturn, b'\r') => At::DataEnd,
            (At::DataEnd, b'\n') => At::Size,
            (At::Trailer, b'\r') => At::LastEnd,
            (At::Trailer | At::TrailerName, byte) if is_token(byte) => At::TrailerName,
            (At::TrailerName, b':') => At::TrailerLine,
            (At::TrailerLine, byte) if byte != b'\r' && byte != b'\n' => At::TrailerLine,
            (At::TrailerLine, b'\r') => At::TrailerEnd,
            (At::TrailerEnd, b'\n') => At::Trailer,
            (At::LastEnd, b'\n') => At::Done,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_in_two_ways_is_odd() {
        let odd = [
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\nhost: a\n\n",
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: +1\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "GET / HTTP/1.1\r\na: b\r\n c\r\n\r\n",
            "GET / HTTP/1.1\r\nconnection: close\r\n\r\n",
            "GET / HTTP/1.1\r\nexpect: 200-ok\r\n\r\n",
            "GET / HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\n\r\n",
        ];
        for text in odd {
            assert_eq!(request(text.as_bytes()), Read::Odd, "{text:?}");
        }
        assert_eq!(request(b"GET / HTTP/1.1\r\nhost: a"), Read::More);
        let Read::Head(head) = request(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcd") else {
            panic!("a head")
        };
        assert_eq!((head.body, head.method.as_str(), head.target.as_str()), (Body::Length(3), "POST", "/a"));
    }

    #[test]
    fn a_response_ends_where_rfc_9112_says() {
        let body = |text: &str, no_body| match response(text.as_bytes(), no_body) {
            Read::Head(head) => (head.body, head.close),
            other => panic!("{other:?}"),
        };
        assert_eq!(body("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", false), (Body::Length(5), false));
        assert_eq!(body("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", true), (Body::Length(0), false));
        assert_eq!(body("HTTP/1.1 304 x\r\ncontent-length: 5\r\n\r\n", false), (Body::Length(0), false));
        assert_eq!(body("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", false), (Body::Chunked, false));
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\n", false), (Body::UntilClose, true));
        assert_eq!(body("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", false), (Body::Length(0), true));
        let both = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(response(both.as_bytes(), false), Read::Odd);
    }

    #[test]
    fn chunks_are_followed_in_pieces_of_every_size() {
        let text = b"5;a=b\r\nhello\r\n0a\r\n0123456789\r\n0\r\nx: y\r\n\r\nnext";
        for size in 1..text.len() {
            let mut follow = Follow::new(Body::Chunked);
            let mut taken = 0;
            for piece in text.chunks(size) {
                taken += follow.take(piece).expect("valid");
                if follow.is_done() {
                    break;
                }
            }
            assert!(follow.is_done());
            assert_eq!(&text[taken..], b"next", "in pieces of {size}");
        }
        assert_eq!(Follow::new(Body::Chunked).take(b"x\r\n"), None);
        assert_eq!(Follow::new(Body::Chunked).take(b"5\nhello"), None);
        assert_eq!(Follow::new(Body::Chunked).take(b"fffffffffffffffff\r\n"), None);
    }

    #[test]
    fn chunks_are_written_anew() {
        let text = b"5;a=b\r\nhello\r\n0a\r\n0123456789\r\n0\r\nx: y\r\n\r\nnext";
        let (mut follow, mut out) = (Follow::new(Body::Chunked), Vec::new());
        let taken = follow.copy(text, &mut out).expect("valid");
        assert_eq!((&text[taken..], follow.is_done()), (&b"next"[..], true));
        assert_eq!(out, b"5\r\nhello\r\na\r\n0123456789\r\n0\r\n\r\n");
        let (mut follow, mut out) = (Follow::new(Body::Chunked), Vec::new());
        for piece in text[..text.len() - 4].chunks(1) {
            assert_eq!(follow.copy(piece, &mut out), Some(1));
        }
        assert!(out.ends_with(b"1\r\n9\r\n0\r\n\r\n") && follow.is_done());
    }

    #[test]
    fn hop_by_hop_headers_stay_behind() {
        let text = "HTTP/1.0 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nX: 1\r\ncontent-length: 2\r\n\r\n";
        let Read::Head(head) = response(text.as_bytes(), false) else { panic!("a head") };
        let out = String::from_utf8(head.write(&[], false)).expect("text");
        assert_eq!(out, "HTTP/1.1 200 OK\r\nx: 1\r\ncontent-length: 2\r\n\r\n");
    }
}
