//! Messages coming in: heads are read, payload is counted and thrown away inside the kernel (`MSG_TRUNC`), so that the
//! one who measures costs as little as possible and the one who is measured is the limit.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// Read where a head or a chunk line is due. Little, because what is payload of it was copied.
const LINE: usize = 4096;
/// Thrown away by one call at most. Never written: the kernel does not copy.
const DISCARD: usize = 1 << 20;
/// A head is no longer than this.
const HEAD: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Head,
    /// So many payload bytes; `true`: of a chunk.
    Payload(u64, bool),
    ChunkSize,
    ChunkEnd,
    Trailers,
}

/// What one call of [`Incoming::pull`] led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// A message is complete.
    Message,
    /// The socket is empty.
    Empty,
    /// The peer has ended the connection.
    End,
}

/// What must be known of a head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The request's target.
    pub target: String,
    /// The response's status.
    pub status: u16,
    length: Option<u64>,
    chunked: bool,
}

/// The stream of messages of one connection.
#[derive(Debug)]
pub struct Incoming {
    requests: bool,
    due: Due,
    pending: Vec<u8>,
    /// The head of the message under way, or of the last one.
    pub start: Start,
    /// Payload bytes seen on this connection.
    pub payload: u64,
    expected: Option<Expected>,
}

/// A body that is compared while it comes.
#[derive(Debug)]
struct Expected {
    body: Arc<[u8]>,
    at: usize,
    right: bool,
}

impl Expected {
    fn compare(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        self.right &= self.body.get(self.at..end) == Some(bytes);
        self.at = end;
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Incoming {
    /// Expects requests, or responses (never to HEAD).
    pub fn new(requests: bool) -> Self {
        Self { requests, due: Due::Head, pending: Vec::new(), start: Start::default(), payload: 0, expected: None }
    }

    /// The body of the next message will be compared with this one.
    pub fn expect(&mut self, body: Option<Arc<[u8]>>) {
        self.expected = body.map(|body| Expected { body, at: 0, right: true });
    }

    /// Whether the message that has come was the expected one; without an expectation it was.
    pub fn is_as_expected(&self) -> bool {
        self.expected.as_ref().is_none_or(|expected| expected.right && expected.at == expected.body.len())
    }

    /// Reads until a message is complete or nothing is there.
    pub fn pull(&mut self, socket: impl AsFd, scratch: &mut Scratch) -> io::Result<Pulled> {
        loop {
            if self.digest()? {
                return Ok(Pulled::Message);
            }
            // What is pending here is an incomplete head or line: more bytes are needed.
            let result = match self.due {
                Due::Payload(left, _) => {
                    let len = left.min(DISCARD as u64) as usize;
                    let discard = if self.expected.is_none() { RecvFlags::TRUNC } else { RecvFlags::empty() };
                    recv(&socket, &mut scratch.0[..len], RecvFlags::DONTWAIT | discard).map(|(_, n)| n)
                }
                _ => recv(&socket, &mut scratch.0[..LINE], RecvFlags::DONTWAIT).map(|(_, n)| n),
            };
            match result {
                Ok(0) if self.due == Due::Head && self.pending.is_empty() => return Ok(Pulled::End),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => match &mut self.due {
                    Due::Payload(left, _) => {
                        *left -= n as u64;
                        self.payload += n as u64;
                        if let Some(expected) = &mut self.expected {
                            expected.compare(&scratch.0[..n]);
                        }
                    }
                    _ => self.pending.extend_from_slice(&scratch.0[..n]),
                },
                Err(Errno::AGAIN) => return Ok(Pulled::Empty),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes pending bytes apart; true when a message is complete.
    fn digest(&mut self) -> io::Result<bool> {
        loop {
            match self.due {
                Due::Head => {
                    let Some(used) = self.head()? else { return Ok(false) };
                    self.pending.drain(..used);
                    self.due = match (self.start.chunked, self.start.length) {
                        (true, _) => Due::ChunkSize,
                        (false, Some(length)) => Due::Payload(length, false),
                        (false, None) if self.requests || self.start.status == 204 => Due::Payload(0, false),
                        (false, None) => return Err(broken("a response without a length")),
                    };
                }
                Due::Payload(left, of_chunk) => {
                    let here = left.min(self.pending.len() as u64);
                    if let Some(expected) = &mut self.expected {
                        expected.compare(&self.pending[..here as usize]);
                    }
                    self.pending.drain(..here as usize);
                    self.payload += here;
                    if left > here {
                        self.due = Due::Payload(left - here, of_chunk);
                        return Ok(false);
                    }
                    self.due = if of_chunk { Due::ChunkEnd } else { Due::Head };
                    if !of_chunk {
                        return Ok(true);
                    }
                }
                Due::ChunkSize | Due::ChunkEnd | Due::Trailers => {
                    let Some(end) = self.pending.windows(2).position(|two| two == b"\r\n") else {
                        return if self.pending.len() > HEAD { Err(broken("a line too long")) } else { Ok(false) };
                    };
                    let complete = self.line(end)?;
                    self.pending.drain(..end + 2);
                    if complete {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// A line of the chunked coding (RFC 9112, section 7.1); true when it was the last one.
    fn line(&mut self, end: usize) -> io::Result<bool> {
        let line = &self.pending[..end];
        self.due = match self.due {
            Due::ChunkEnd if end == 0 => Due::ChunkSize,
            Due::ChunkEnd => return Err(broken("a chunk longer than its size")),
            Due::Trailers if end == 0 => Due::Head,
            Due::Trailers => Due::Trailers,
            _ => {
                let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
                let size = std::str::from_utf8(digits).ok().and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
                match size.ok_or_else(|| broken("a chunk size that is no number"))? {
                    0 => Due::Trailers,
                    size => Due::Payload(size, true),
                }
            }
        };
        Ok(self.due == Due::Head)
    }

    /// Parses the head; its length, once it is complete.
    fn head(&mut self) -> io::Result<Option<usize>> {
        if self.pending.is_empty() {
            return Ok(None);
        }
        let mut fields = [httparse::EMPTY_HEADER; 48];
        let (status, used, fields, target) = if self.requests {
            let mut request = httparse::Request::new(&mut fields);
            let used = request.parse(&self.pending).map_err(|_| broken("a malformed request"))?;
            (0, used, &*request.headers, request.path.unwrap_or_default())
        } else {
            let mut response = httparse::Response::new(&mut fields);
            let used = response.parse(&self.pending).map_err(|_| broken("a malformed response"))?;
            (response.code.unwrap_or(0), used, &*response.headers, "")
        };
        let httparse::Status::Complete(used) = used else {
            return if self.pending.len() > HEAD { Err(broken("a head too long")) } else { Ok(None) };
        };
        let (mut length, mut chunked) = (None, false);
        for field in fields {
            if field.name.eq_ignore_ascii_case("content-length") {
                length = std::str::from_utf8(field.value).ok().and_then(|value| value.trim().parse().ok());
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = field.value.to_ascii_lowercase().ends_with(b"chunked");
            }
        }
        self.start.target.clear();
        self.start.target.push_str(target);
        (self.start.status, self.start.length, self.start.chunked) = (status, length, chunked);
        Ok(Some(used))
    }
}

/// Room that reads need; one for all connections of a thread.
#[derive(Debug)]
pub struct Scratch(Vec<u8>);

impl Default for Scratch {
    fn default() -> Self {
        Self(vec![0; DISCARD])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_are_counted_at_every_split() {
        let wire =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x\r\nWiki\r\n5\r\npedia\r\n0\r\nA: b\r\n\r\n\
                     HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        for split in 1..wire.len() {
            let (mut peer, ours) = UnixStream::pair().expect("a pair");
            let (mut incoming, mut scratch) = (Incoming::new(false), Scratch::default());
            let mut messages = 0;
            for piece in [&wire[..split], &wire[split..]] {
                peer.write_all(piece).expect("written");
                while incoming.pull(&ours, &mut scratch).expect("valid") == Pulled::Message {
                    messages += 1;
                }
            }
            assert_eq!((messages, incoming.payload), (2, 12), "split at {split}");
            // Not by closing it: a child that another test is just starting may have it, too.
            peer.shutdown(Shutdown::Write).expect("shut down");
            assert_eq!(incoming.pull(&ours, &mut scratch).expect("an end"), Pulled::End);
        }
    }

    #[test]
    fn what_is_cut_off_or_malformed_is_an_error() {
        for wire in [&b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"[..], b"nonsense\r\n\r\n"] {
            let (mut peer, ours) = UnixStream::pair().expect("a pair");
            peer.write_all(wire).expect("written");
            peer.shutdown(Shutdown::Write).expect("shut down");
            assert!(Incoming::new(false).pull(&ours, &mut Scratch::default()).is_err());
        }
    }
}
