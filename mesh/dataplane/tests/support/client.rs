//! A client that sends exactly the bytes it is told to.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::backend::pattern;

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether the body is [`pattern`] of this size; else its size and where it differs.
    pub fn matches(&self, size: usize) -> Result<(), (usize, Option<usize>)> {
        let wanted = pattern(size);
        if self.body == wanted {
            return Ok(());
        }
        Err((self.body.len(), self.body.iter().zip(&wanted).position(|(here, there)| here != there)))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

/// A socket in a sockmap that is woken for another reason than bytes (its FIN was acknowledged) answers EAGAIN to a
/// blocking read: Linux 6.18 waits once. The second field: nothing came for too long.
pub struct Patient(pub TcpStream, pub bool);

impl Read for Patient {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let start = Instant::now();
        loop {
            match self.0.read(to) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && start.elapsed() < PATIENCE => {}
                other => {
                    self.1 |= other.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
                    return other;
                }
            }
        }
    }
}

/// One connection.
pub struct Client {
    pub stream: BufReader<Patient>,
}

impl Client {
    pub fn connect(service: SocketAddr) -> Self {
        Self::of(TcpStream::connect(service).expect("the connection is taken over"))
    }

    pub fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Self { stream: BufReader::new(Patient(stream, false)) }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("it takes the bytes");
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().0.write_all(bytes)
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n").as_bytes());
        self.receive(false).unwrap_or_else(|| panic!("no answer to GET {path}"))
    }

    pub fn post(&mut self, path: &str, body: &[u8]) -> Response {
        self.send(
            format!("POST {path} HTTP/1.1\r\nHost: shop.test\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(),
        );
        self.send(body);
        self.receive(false).unwrap_or_else(|| panic!("no answer to POST {path}"))
    }

    /// The next response, whole; None: the connection ended before its end.
    pub fn receive(&mut self, no_body: bool) -> Option<Response> {
        let line = self.line()?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response { status, headers, body: Vec::new() };
        if no_body {
            return Some(response);
        }
        if response.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line()?, 16).ok()?;
                let mut piece = vec![0; size + 2];
                self.stream.read_exact(&mut piece).ok()?;
                response.body.extend_from_slice(&piece[..size]);
                if size == 0 {
                    return Some(response);
                }
            }
        }
        match response.header("content-length").map(|length| length.parse::<usize>().expect("a length")) {
            Some(length) => {
                response.body = vec![0; length];
                self.stream.read_exact(&mut response.body).ok()?;
            }
            None => drop(self.stream.read_to_end(&mut response.body).ok()?),
        }
        Some(response)
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        line.ends_with("\r\n").then(|| line.trim_end().to_owned())
    }

    /// Whether it waited in vain.
    pub fn has_waited(&self) -> bool {
        self.stream.get_ref().1
    }

    /// True: the connection has ended, in order or by a reset, and nothing more came.
    pub fn has_ended(&mut self) -> bool {
        let mut rest = Vec::new();
        let ended = self.stream.read_to_end(&mut rest);
        rest.is_empty() && (ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset))
    }
}
