//! HTTP/1 as a peer sees it: heads, framings, and a body decoder. Independent of the project's own parser on purpose.

use crate::LabError;

/// How a message body is delimited (RFC 9112, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// `Content-Length`.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// To the end of the connection; responses only.
    UntilClose,
}

/// A parsed message head and its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// All of it, with the empty line.
    pub raw: Vec<u8>,
    /// The start line, split at spaces, three parts at most.
    pub start: Vec<String>,
    /// Names in lower case, values trimmed.
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// Parses a head that ends `data[..end]`.
    fn parse(raw: &[u8]) -> Result<Self, LabError> {
        let text = String::from_utf8_lossy(raw);
        let mut lines = text.split("\r\n");
        let start: Vec<String> = lines.next().unwrap_or_default().splitn(3, ' ').map(str::to_owned).collect();
        if start.len() < 2 {
            return Err(LabError::NotHttp { what: "no start line", at: 0 });
        }
        let mut fields = Vec::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').ok_or(LabError::NotHttp { what: "field without colon", at: 0 })?;
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Self { raw: raw.to_vec(), start, fields })
    }

    /// The first head in `data`, if it is complete.
    pub fn find(data: &[u8]) -> Result<Option<Self>, LabError> {
        match data.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(at) => Self::parse(&data[..at + 4]).map(Some),
            None if data.len() > 1 << 20 => Err(LabError::NotHttp { what: "head above 1 MiB", at: 1 << 20 }),
            None => Ok(None),
        }
    }

    /// The value of a field; the last one if it occurs more than once.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The status code of a response.
    pub fn status(&self) -> u16 {
        self.start.get(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    fn declared(&self) -> Option<Framing> {
        if self.field("transfer-encoding").is_some_and(|v| v.to_ascii_lowercase().ends_with("chunked")) {
            return Some(Framing::Chunked);
        }
        self.field("content-length").and_then(|v| v.parse().ok()).map(Framing::Length)
    }

    /// The framing of this head as a request.
    pub fn request_framing(&self) -> Framing {
        self.declared().unwrap_or(Framing::None)
    }

    /// The framing of this head as the response to a request with `method`.
    pub fn response_framing(&self, method: &str) -> Framing {
        match self.status() {
            100..=199 | 204 | 304 => Framing::None,
            _ if method == "HEAD" => Framing::None,
            200..=299 if method == "CONNECT" => Framing::None,
            _ => self.declared().unwrap_or(Framing::UntilClose),
        }
    }

    /// Whether the connection serves another message after this one.
    pub fn keeps_alive(&self, version: &str) -> bool {
        let connection = self.field("connection").unwrap_or_default().to_ascii_lowercase();
        match version {
            "HTTP/1.0" => connection.contains("keep-alive"),
            _ => !connection.contains("close"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Data,
    Size,
    DataEnd,
    Trailers,
    Done,
}

/// Takes a message body apart, byte-exactly.
#[derive(Clone, Debug)]
pub struct BodyReader {
    framing: Framing,
    state: State,
    left: u64,
    taken: u64,
    line: Vec<u8>,
    /// The trailer section, with its line ends.
    pub trailers: Vec<u8>,
}

impl BodyReader {
    /// A reader for one body.
    pub fn new(framing: Framing) -> Self {
        let (state, left) = match framing {
            Framing::None | Framing::Length(0) => (State::Done, 0),
            Framing::Length(n) => (State::Data, n),
            Framing::Chunked => (State::Size, 0),
            Framing::UntilClose => (State::Data, u64::MAX),
        };
        Self { framing, state, left, taken: 0, line: Vec::new(), trailers: Vec::new() }
    }

    /// Whether the body is complete. One that ends with the connection never is by itself.
    pub fn done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes bytes of the connection, hands payload to `sink` and returns how many bytes belonged to the body.
    pub fn feed(&mut self, data: &[u8], mut sink: impl FnMut(&[u8])) -> Result<usize, LabError> {
        let mut at = 0;
        while at < data.len() && self.state != State::Done {
            match self.state {
                State::Data => {
                    let n = self.left.min((data.len() - at) as u64) as usize;
                    sink(&data[at..at + n]);
                    self.left -= n as u64;
                    at += n;
                    if self.left == 0 {
                        self.state = if self.framing == Framing::Chunked { State::DataEnd } else { State::Done };
                    }
                }
                State::Size | State::DataEnd | State::Trailers => {
                    self.line.push(data[at]);
                    at += 1;
                    if self.line.ends_with(b"\n") {
                        self.end_of_line(self.taken + at as u64)?;
                    }
                }
                State::Done => {}
            }
        }
        self.taken += at as u64;
        Ok(at)
    }

    fn end_of_line(&mut self, at: u64) -> Result<(), LabError> {
        let line = std::mem::take(&mut self.line);
        let Some(text) = line.strip_suffix(b"\r\n") else {
            return Err(LabError::NotHttp { what: "bare line feed in chunked framing", at });
        };
        match self.state {
            State::Size => {
                let digits = text.split(|c| *c == b';').next().unwrap_or_default();
                let digits = std::str::from_utf8(digits).unwrap_or_default().trim_end();
                self.left = u64::from_str_radix(digits, 16)
                    .map_err(|_| LabError::NotHttp { what: "chunk size that is no hexadecimal number", at })?;
                self.state = if self.left == 0 { State::Trailers } else { State::Data };
            }
            State::DataEnd if text.is_empty() => self.state = State::Size,
            State::DataEnd => return Err(LabError::NotHttp { what: "chunk longer than its size", at }),
            State::Trailers if text.is_empty() => self.state = State::Done,
            State::Trailers => self.trailers.extend_from_slice(&line),
            State::Data | State::Done => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_body_is_read_at_every_split() {
        let wire = b"4;x=y\r\nWiki\r\n5\r\npedia\r\n0\r\nA: b\r\n\r\nNEXT";
        for split in 0..wire.len() {
            let mut reader = BodyReader::new(Framing::Chunked);
            let mut body = Vec::new();
            let first = reader.feed(&wire[..split], |b| body.extend_from_slice(b)).expect("valid");
            let second = reader.feed(&wire[first.min(split)..], |b| body.extend_from_slice(b)).expect("valid");
            assert!(reader.done());
            assert_eq!(first + second, wire.len() - 4);
            assert_eq!(body, b"Wikipedia");
            assert_eq!(reader.trailers, b"A: b\r\n");
        }
    }

    #[test]
    fn broken_chunking_is_an_error() {
        for wire in [&b"4\r\nWikiX\r\n"[..], b"zz\r\n", b"4\nWiki"] {
            assert!(BodyReader::new(Framing::Chunked).feed(wire, |_| ()).is_err());
        }
    }

    #[test]
    fn framing_depends_on_method_and_status() {
        let head = Head::find(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n").expect("valid").expect("complete");
        assert_eq!(head.response_framing("GET"), Framing::Length(7));
        assert_eq!(head.response_framing("HEAD"), Framing::None);
        let head = Head::find(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n").expect("valid");
        assert_eq!(head.expect("complete").response_framing("GET"), Framing::None);
    }
}
