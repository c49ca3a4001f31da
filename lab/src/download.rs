//! Clients that download over and over, each on a thread and a socket of its own, and look at every byte.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sha2::{Digest, Sha256};
use socket2::{Domain, Socket, Type};

use crate::error::While;
use crate::place::Place;
use crate::{LabError, content};

/// By default.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a read.
const BLOCK: usize = 256 << 10;
/// The same of a slow client, its rest after each, and its receive buffer.
const SLOW_BLOCK: usize = 16 << 10;
const SLOW_REST: Duration = Duration::from_millis(1);
const SLOW_BUFFER: usize = 32 << 10;
/// Longest head that is expected.
const HEAD: usize = 4096;

/// What is downloaded: a path, and what has to come.
#[derive(Clone, Debug)]
pub struct Object {
    path: String,
    bytes: Arc<Vec<u8>>,
    sha256: [u8; 32],
}

impl Object {
    /// Writes a file of `size` bytes that no other object has into `folder`, to be served from there.
    pub fn file(folder: &Path, size: usize, seed: u64) -> Result<Self, LabError> {
        let name = format!("{size}-{seed}");
        let bytes = content::bytes(seed ^ (size as u64) << 32, 0, size);
        let path = folder.join(&name);
        std::fs::write(&path, &bytes).doing(|| format!("write {}", path.display()))?;
        Ok(Self { path: format!("/{name}"), sha256: Sha256::digest(&bytes).into(), bytes: Arc::new(bytes) })
    }

    /// Where it is served.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What has to come.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of it.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }
}

/// How one client asks.
#[derive(Clone, Debug)]
pub struct Client {
    /// Where to.
    pub addr: SocketAddr,
    /// Where from.
    pub place: Place,
    /// Taken in turn, beginning with the number of the connection.
    pub objects: Vec<Object>,
    /// Requests before a connection is closed. 0: it is never closed.
    pub per_connection: usize,
    /// Requests that may be under way at the same time.
    pub pipelined: usize,
    /// Reads little at a time and rests in between, so that what is sent to it waits in queues.
    pub slow: bool,
    /// A client that hears nothing for so long hangs.
    pub patience: Duration,
}

/// What all clients have seen.
pub struct Seen {
    /// Bodies that arrived in full.
    pub responses: u64,
    /// Bytes of all bodies.
    pub bytes: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Bodies with another hash than the object's.
    pub mismatches: u64,
    /// Connections that broke, and answers that were none; with the first few reasons.
    pub failed: u64,
    /// Why, of the first few.
    pub reasons: Vec<String>,
    /// Nanoseconds to the last byte: from the start of connecting for a connection's first request, from sending for
    /// later ones.
    pub latency_ns: Histogram<u64>,
}

impl fmt::Debug for Seen {
    /// Without the histogram, which has thousands of buckets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seen")
            .field("responses", &self.responses)
            .field("bytes", &self.bytes)
            .field("connections", &self.connections)
            .field("mismatches", &self.mismatches)
            .field("failed", &self.failed)
            .field("reasons", &self.reasons)
            .finish_non_exhaustive()
    }
}

impl Seen {
    fn new() -> Self {
        let latency_ns = Histogram::new(3).expect("three digits are allowed");
        let reasons = Vec::new();
        Self { responses: 0, bytes: 0, connections: 0, mismatches: 0, failed: 0, reasons, latency_ns }
    }

    fn add(&mut self, other: Self) {
        self.responses += other.responses;
        self.bytes += other.bytes;
        self.connections += other.connections;
        self.mismatches += other.mismatches;
        self.failed += other.failed;
        self.reasons.extend(other.reasons);
        self.reasons.truncate(8);
        // Both have the same bounds.
        let _ = self.latency_ns.add(other.latency_ns);
    }

    /// A quantile of the latency in milliseconds.
    pub fn latency_ms(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1e6
    }
}

/// Clients at work. They stop when told to, or when there is nothing left to ask.
#[derive(Debug)]
pub struct Downloads {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<Seen>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    measuring: AtomicBool,
    bytes: AtomicU64,
    /// Requests that may still be made.
    left: AtomicU64,
}

impl Downloads {
    /// Starts one thread for each client; `limit` is for the requests of all of them.
    pub fn start(clients: Vec<Client>, limit: Option<u64>) -> Self {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            measuring: AtomicBool::new(true),
            bytes: AtomicU64::new(0),
            left: AtomicU64::new(limit.unwrap_or(u64::MAX)),
        });
        let threads = clients.into_iter().enumerate().map(|(number, client)| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || Worker { client, shared, seen: Seen::new(), turn: number }.run())
        });
        Self { threads: threads.collect(), shared }
    }

    /// Whether latencies are recorded; they are from the start on.
    pub fn measure(&self, on: bool) {
        self.shared.measuring.store(on, Relaxed);
    }

    /// Bytes of bodies that have arrived so far.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Relaxed)
    }

    /// Lets every client end the connection that it has, and says what they saw.
    pub fn stop(self) -> Seen {
        self.shared.stop.store(true, Relaxed);
        self.join()
    }

    /// Waits until nothing is left to ask.
    pub fn join(self) -> Seen {
        let mut all = Seen::new();
        for thread in self.threads {
            match thread.join() {
                Ok(seen) => all.add(seen),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    }
}

impl Client {
    /// One request for each connection.
    pub fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            place: Place::default(),
            objects: Vec::new(),
            per_connection: 1,
            pipelined: 1,
            slow: false,
            patience: PATIENCE,
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(self.addr), Type::STREAM, None)?;
        if let Some(ip) = self.place.ip {
            socket.bind(&SocketAddr::new(ip, 0).into())?;
        }
        if self.slow {
            socket.set_recv_buffer_size(SLOW_BUFFER)?;
        }
        socket.connect_timeout(&self.addr.into(), self.patience)?;
        socket.set_read_timeout(Some(self.patience))?;
        socket.set_write_timeout(Some(self.patience))?;
        socket.set_tcp_nodelay(true)?;
        Ok(socket.into())
    }
}

struct Worker {
    client: Client,
    shared: Arc<Shared>,
    seen: Seen,
    turn: usize,
}

impl Worker {
    fn run(mut self) -> Seen {
        if let Err(error) = self.client.place.enter() {
            self.fail(&error);
            return self.seen;
        }
        while !self.shared.stop.load(Relaxed) && self.shared.left.load(Relaxed) > 0 {
            let before = self.seen.responses;
            if let Err(error) = self.connection() {
                let answered = self.seen.responses - before;
                self.fail(&format!("after {answered} responses on a connection: {error}"));
            }
        }
        self.seen
    }

    fn fail(&mut self, reason: &dyn std::fmt::Display) {
        self.seen.failed += 1;
        if self.seen.reasons.len() < 8 {
            self.seen.reasons.push(reason.to_string());
        }
    }

    /// One connection from its beginning to its end.
    fn connection(&mut self) -> io::Result<()> {
        let start = Instant::now();
        let mut stream = self.client.connect()?;
        self.seen.connections += 1;
        let mut incoming = Incoming::new(if self.client.slow { SLOW_BLOCK } else { BLOCK });
        let (mut under_way, mut asked) = (VecDeque::new(), 0);
        loop {
            let room = match self.client.per_connection {
                0 => self.client.pipelined,
                all => self.client.pipelined.min(under_way.len() + all - asked),
            };
            let new = self.reserve(room - under_way.len());
            let at = if asked == 0 { start } else { Instant::now() };
            let from = under_way.len();
            under_way.extend((0..new).map(|_| (at, self.next())));
            asked += new;
            let ask = |(_, object): &(Instant, Object)| format!("GET {} HTTP/1.1\r\nHost: lab\r\n\r\n", object.path);
            let text: String = under_way.iter().skip(from).map(ask).collect();
            stream.write_all(text.as_bytes())?;
            let Some((at, object)) = under_way.pop_front() else { return Ok(()) };
            self.response(&mut stream, &mut incoming, &object)?;
            if self.shared.measuring.load(Relaxed) {
                // The histogram grows with its values.
                let _ = self.seen.latency_ns.record(at.elapsed().as_nanos() as u64);
            }
        }
    }

    /// Of the requests that may still be made, at most so many.
    fn reserve(&self, most: usize) -> usize {
        if self.shared.stop.load(Relaxed) {
            return 0;
        }
        let take = |left: u64| Some(left - left.min(most as u64));
        let before = self.shared.left.fetch_update(Relaxed, Relaxed, take).unwrap_or(0);
        before.min(most as u64) as usize
    }

    fn next(&mut self) -> Object {
        self.turn += 1;
        self.client.objects[self.turn % self.client.objects.len()].clone()
    }

    fn response(&mut self, stream: &mut TcpStream, incoming: &mut Incoming, object: &Object) -> io::Result<()> {
        let (status, length) = incoming.head(stream)?;
        if status != 200 || length != object.size() {
            let what = format!("{}: status {status}, {length} bytes", object.path);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let (mut sha, mut at) = (Sha256::new(), 0);
        while at < length {
            let bytes = incoming.body(stream, length - at)?;
            if self.client.slow {
                std::thread::sleep(SLOW_REST);
            }
            sha.update(bytes);
            if *bytes != object.bytes[at..at + bytes.len()] && self.seen.reasons.len() < 8 {
                let wrong = bytes.iter().zip(&object.bytes[at..]).take_while(|(a, b)| a == b).count();
                self.seen.reasons.push(format!("{}: byte {} is wrong", object.path, at + wrong));
            }
            at += bytes.len();
            self.shared.bytes.fetch_add(bytes.len() as u64, Relaxed);
        }
        let hash: [u8; 32] = sha.finalize().into();
        self.seen.mismatches += u64::from(hash != object.sha256);
        self.seen.responses += 1;
        self.seen.bytes += length as u64;
        Ok(())
    }
}

/// What was received and not looked at.
struct Incoming {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    fn new(block: usize) -> Self {
        Self { buffer: vec![0; block], start: 0, end: 0 }
    }

    /// Status and length of the next response.
    fn head(&mut self, stream: &mut TcpStream) -> io::Result<(u16, usize)> {
        loop {
            let bytes = &self.buffer[self.start..self.end];
            if let Some((status, length, head)) = parse(bytes)? {
                self.start += head;
                return Ok((status, length));
            }
            if bytes.len() >= HEAD {
                return Err(invalid("a head without an end"));
            }
            self.fill(stream)?;
        }
    }

    /// Some of the bytes that follow, at least one and at most so many.
    fn body(&mut self, stream: &mut TcpStream, most: usize) -> io::Result<&[u8]> {
        if self.start == self.end {
            self.fill(stream)?;
        }
        let length = most.min(self.end - self.start);
        self.start += length;
        Ok(&self.buffer[self.start - length..self.start])
    }

    fn fill(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.end += count;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "hangs: nothing came"))
            }
            Err(error) => Err(error),
        }
    }
}

fn parse(bytes: &[u8]) -> io::Result<Option<(u16, usize, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let status = response.parse(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let httparse::Status::Complete(head) = status else { return Ok(None) };
    let length = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    let length = length.ok_or_else(|| invalid("a response without Content-Length"))?;
    Ok(Some((response.code.unwrap_or(0), length, head)))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Gives each connection in turn the next of these answers, to one request.
    fn answers(answers: Vec<Vec<u8>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut request = [0; 1000];
                let _ = stream.read(&mut request).expect("a request");
                // The client may leave earlier.
                let _ = stream.write_all(&answer);
            }
        });
        addr
    }

    #[test]
    fn a_wrong_byte_a_short_body_and_another_status_are_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let object = Object::file(folder.path(), 100_000, 1).expect("an object");
        let mut right = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".to_vec();
        right.extend(content::bytes(1 ^ 100_000 << 32, 0, 100_000));
        let mut wrong = right.clone();
        wrong[70_000] ^= 1;
        let short = right[..70_000].to_vec();
        let missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec();
        let addr = answers(vec![right, wrong, short, missing]);
        let client = Client { objects: vec![object], ..Client::new(addr) };
        let seen = Downloads::start(vec![client], Some(4)).join();
        assert_eq!((seen.responses, seen.mismatches, seen.failed, seen.connections), (2, 1, 2, 4), "{seen:?}");
        assert!(seen.reasons[0].contains("is wrong") && seen.reasons[2].contains("status 404"), "{:?}", seen.reasons);
    }
}
