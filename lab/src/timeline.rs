//! A small application of five services over HTTP/1.1, in the shape of a social network's home timeline.
//!
//! ```text
//! client ──> front ──> timeline ──┬─> user
//!                                 ├─> text     all three at once
//!                                 └─> media
//! ```
//!
//! `GET /timeline/ID` leads to five requests. Every response has a body of 1 KiB that depends on the service and the ID; the
//! timeline's is made of all bytes of the three others, so a wrong byte anywhere is a wrong byte at the client. A thread
//! for each connection, connections to other services are kept and used again, nothing is cached.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::content;

/// The services, in the order in which requests reach them.
pub const SERVICES: [&str; 5] = ["front", "timeline", "user", "text", "media"];

/// Calls between services, and from the client, that one request of the client leads to.
pub const CALLS: usize = 5;

/// IDs that there are.
pub const IDS: u64 = 64;

/// Bytes of every body.
pub const BODY: usize = 1024;

const LEAVES: [&str; 3] = ["user", "text", "media"];

/// A body of this many bytes, for whoever asks a leaf for `/bytes/SIZE`.
pub fn blob(size: usize) -> Vec<u8> {
    content::bytes(size as u64, 0, size)
}

fn of_leaf(leaf: usize, id: u64) -> Vec<u8> {
    content::bytes(((leaf as u64 + 1) << 32) | id, 0, BODY)
}

/// Each byte of each leaf counts, and it matters whose it is.
fn compose(parts: &[Vec<u8>; 3]) -> Vec<u8> {
    let [user, text, media] = parts;
    user.iter().zip(text).zip(media).map(|((u, t), m)| u ^ t.rotate_left(1) ^ m.rotate_left(2)).collect()
}

/// What the client must get for `/timeline/ID`.
pub fn expected(id: u64) -> Vec<u8> {
    compose(&[0, 1, 2].map(|leaf| of_leaf(leaf, id)))
}

/// What a service calls another one by, in the `host` header.
pub fn host(service: &str) -> String {
    format!("{service}.social.svc.cluster.local")
}

/// Whom a service calls.
pub fn calls(service: &str) -> &'static [&'static str] {
    match service {
        "front" => &SERVICES[1..2],
        "timeline" => &LEAVES,
        _ => &[],
    }
}

/// Another service, and connections to it that wait for the next request.
struct Upstream {
    address: SocketAddr,
    host: String,
    idle: Mutex<Vec<Connection>>,
}

/// A connection with what was read of it and not taken yet.
struct Connection {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, bytes: Vec::with_capacity(4096) })
    }

    /// Reads more; false at the end.
    fn fill(&mut self) -> io::Result<bool> {
        let before = self.bytes.len();
        self.bytes.resize(before + 8192, 0);
        let result = loop {
            match self.stream.read(&mut self.bytes[before..]) {
                // A socket in a sockmap may be woken for another reason than bytes.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                result => break result,
            }
        };
        self.bytes.truncate(before + *result.as_ref().unwrap_or(&0));
        result.map(|count| count > 0)
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Upstream {
    fn ask(&self, path: &str) -> io::Result<Connection> {
        let idle = self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::new(TcpStream::connect(self.address)?)?,
        };
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nuser-agent: timeline\r\n\r\n", self.host);
        connection.stream.write_all(request.as_bytes())?;
        Ok(connection)
    }

    /// The body of the response to what was asked.
    fn answer(&self, mut connection: Connection) -> io::Result<Vec<u8>> {
        let (head, length) = loop {
            let mut fields = [httparse::EMPTY_HEADER; 32];
            let mut response = httparse::Response::new(&mut fields);
            if let httparse::Status::Complete(head) =
                response.parse(&connection.bytes).map_err(|error| invalid(error.to_string()))?
            {
                if response.code != Some(200) {
                    return Err(invalid(format!("{} answers {:?}", self.host, response.code)));
                }
                let length = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
                let length = length.and_then(|field| std::str::from_utf8(field.value).ok()?.parse::<usize>().ok());
                break (head, length.ok_or_else(|| invalid("no content-length"))?);
            }
            if !connection.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        while connection.bytes.len() < head + length {
            if !connection.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if connection.bytes.len() != head + length {
            return Err(invalid(format!("{} sends more than it says", self.host)));
        }
        let body = connection.bytes[head..].to_vec();
        connection.bytes.clear();
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(connection);
        Ok(body)
    }
}

/// One of the services.
pub struct Service {
    upstreams: Vec<Upstream>,
    /// By path.
    bodies: BTreeMap<String, Vec<u8>>,
}

impl Service {
    /// `addresses`: where the services that it calls are, by name. Others are not looked at.
    ///
    /// # Errors
    ///
    /// There is no such service, or the address of one that it calls is not known.
    pub fn new(name: &str, addresses: &BTreeMap<String, SocketAddr>, blobs: &[usize]) -> io::Result<Self> {
        if !SERVICES.contains(&name) {
            return Err(invalid(format!("{name}: there is no such service")));
        }
        let upstream = |name: &&str| {
            let address = addresses.get(*name).ok_or_else(|| invalid(format!("where is {name}?")))?;
            Ok(Upstream { address: *address, host: host(name), idle: Mutex::default() })
        };
        let upstreams = calls(name).iter().map(upstream).collect::<io::Result<_>>()?;
        let mut bodies = BTreeMap::new();
        if let Some(leaf) = LEAVES.iter().position(|leaf| *leaf == name) {
            bodies.extend((0..IDS).map(|id| (format!("/{name}/{id}"), of_leaf(leaf, id))));
            bodies.extend(blobs.iter().map(|size| (format!("/bytes/{size}"), blob(*size))));
        }
        Ok(Self { upstreams, bodies })
    }

    /// Serves for ever.
    ///
    /// # Errors
    ///
    /// Of `accept`.
    pub fn serve(self, listener: &TcpListener) -> io::Result<()> {
        let service = Arc::new(self);
        loop {
            let (stream, _) = listener.accept()?;
            let service = service.clone();
            std::thread::Builder::new().stack_size(256 * 1024).spawn(move || {
                // A peer that is gone or sends nonsense loses its connection.
                let _ = Connection::new(stream).and_then(|connection| service.connection(connection));
            })?;
        }
    }

    fn connection(&self, mut connection: Connection) -> io::Result<()> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; 32];
            let mut request = httparse::Request::new(&mut fields);
            match request.parse(&connection.bytes).map_err(|error| invalid(error.to_string()))? {
                httparse::Status::Partial => {
                    if !connection.fill()? {
                        return Ok(());
                    }
                }
                httparse::Status::Complete(head) => {
                    let out = self.respond(request.path.unwrap_or_default());
                    connection.bytes.drain(..head);
                    connection.stream.write_all(&out)?;
                }
            }
        }
    }

    /// Head and body of the response.
    fn respond(&self, path: &str) -> Vec<u8> {
        let made;
        let (status, body) = match self.body(path) {
            Ok(Some(body)) => {
                made = body;
                ("200 OK", made.as_slice())
            }
            Ok(None) => match self.bodies.get(path) {
                Some(body) => ("200 OK", body.as_slice()),
                None => ("404 Not Found", &b""[..]),
            },
            Err(error) => {
                made = error.to_string().into_bytes();
                ("502 Bad Gateway", made.as_slice())
            }
        };
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/octet-stream\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut out = Vec::with_capacity(head.len() + body.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(body);
        out
    }

    /// What other services say to it; None: it calls none.
    fn body(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        match &self.upstreams[..] {
            [] => Ok(None),
            [only] => only.ask(path).and_then(|asked| only.answer(asked)).map(Some),
            [user, text, media] => {
                let id = path.strip_prefix("/timeline/").ok_or_else(|| invalid("no such timeline"))?;
                let asked = [(user, "user"), (text, "text"), (media, "media")]
                    .map(|(upstream, name)| upstream.ask(&format!("/{name}/{id}")).map(|asked| (upstream, asked)));
                let mut parts = [const { Vec::new() }; 3];
                for (part, asked) in parts.iter_mut().zip(asked) {
                    let (upstream, asked) = asked?;
                    *part = upstream.answer(asked)?;
                    if part.len() != BODY {
                        return Err(invalid("a part of the wrong size"));
                    }
                }
                Ok(Some(compose(&parts)))
            }
            _ => Err(invalid("no service calls two others")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_services_answer_with_what_is_expected() {
        let mut addresses = BTreeMap::new();
        for name in SERVICES.iter().rev() {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            addresses.insert((*name).to_owned(), listener.local_addr().expect("bound"));
            let service = Service::new(name, &addresses, &[3]).expect("its upstreams are known");
            std::thread::spawn(move || service.serve(&listener));
        }
        let client = |name: &str| Upstream { address: addresses[name], host: host(name), idle: Mutex::default() };
        let front = client("front");
        for id in [0, 1, IDS - 1, 0] {
            let body = front.ask(&format!("/timeline/{id}")).and_then(|asked| front.answer(asked)).expect("answered");
            assert_eq!(body, expected(id));
        }
        assert_eq!(front.idle.lock().expect("no panic").len(), 1, "the connection is kept");
        let media = client("media");
        assert_eq!(media.ask("/bytes/3").and_then(|asked| media.answer(asked)).expect("answered"), blob(3));
        for wrong in ["/timeline/64", "/timeline/x", "/nothing"] {
            front.ask(wrong).and_then(|asked| front.answer(asked)).expect_err(wrong);
        }
    }

    #[test]
    fn a_byte_of_any_service_is_seen_and_parts_cannot_be_swapped() {
        let parts = [0, 1, 2].map(|leaf| of_leaf(leaf, 7));
        let right = compose(&parts);
        for part in 0..3 {
            let mut wrong = parts.clone();
            wrong[part][500] ^= 1;
            assert_ne!(compose(&wrong), right);
        }
        let [user, text, media] = parts;
        assert_ne!(compose(&[text, user, media]), right);
    }
}
