//! A raw-socket HTTP/1 client that decides about every byte: splits, pauses, read rate, where to leave.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use socket2::{Domain, SockRef, Socket, Type};

use crate::LabError;
use crate::backend::UPLOAD_SEED;
use crate::content::{self, Checked, Checker};
use crate::error::While;
use crate::http::{BodyReader, Framing, Head};

const BLOCK: usize = 64 * 1024;
/// What a client has sent into a tunnel beyond what it took back when it leaves. Buffers of the kernel have room for it.
const IN_FLIGHT: u64 = 512 * 1024;

/// Where a client connects to.
#[derive(Clone, Debug)]
pub struct Front {
    /// The address.
    pub addr: SocketAddr,
    /// With TLS, if set.
    pub tls: Option<Arc<ClientConfig>>,
}

impl Front {
    /// With a memory for tickets of its own; once a server has given one, the first request goes with the first flight of the handshake (0-RTT)
    /// and the handshake goes on with the second request.
    pub fn early(mut self) -> Self {
        self.tls = self.tls.map(|config| {
            let mut config = Arc::unwrap_or_clone(config);
            config.resumption = Resumption::in_memory_sessions(8);
            config.enable_early_data = true;
            Arc::new(config)
        });
        self
    }
}

impl From<SocketAddr> for Front {
    fn from(addr: SocketAddr) -> Self {
        Self { addr, tls: None }
    }
}

/// The body of a request; its content is that of [`UPLOAD_SEED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upload {
    /// No body.
    None,
    /// With `Content-Length`.
    Length(u64),
    /// Chunked: length, bytes per chunk.
    Chunked(u64, usize),
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method.
    pub method: &'static str,
    /// Target.
    pub target: String,
    /// `HTTP/1.1` or `HTTP/1.0`.
    pub version: &'static str,
    /// Further fields.
    pub fields: Vec<(String, String)>,
    /// Body.
    pub upload: Upload,
    /// Asks to close the connection afterwards.
    pub close: bool,
}

impl Request {
    /// `GET target` over HTTP/1.1, keep-alive.
    pub fn get(target: impl Into<String>) -> Self {
        Self {
            method: "GET",
            target: target.into(),
            version: "HTTP/1.1",
            fields: Vec::new(),
            upload: Upload::None,
            close: false,
        }
    }

    /// Adds a field.
    pub fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The head as sent.
    pub fn head(&self) -> Vec<u8> {
        // Of CONNECT, the target is an authority, and Host names the same one (RFC 9112, section 3.2.3).
        let host = if self.method == "CONNECT" { &self.target } else { "lab.test" };
        let mut head = format!("{} {} {}\r\nHost: {host}\r\n", self.method, self.target, self.version);
        for (name, value) in &self.fields {
            head += &format!("{name}: {value}\r\n");
        }
        match self.upload {
            Upload::None => {}
            Upload::Length(len) => head += &format!("Content-Length: {len}\r\n"),
            Upload::Chunked(..) => head += "Transfer-Encoding: chunked\r\n",
        }
        if self.close {
            head += "Connection: close\r\n";
        }
        head += "\r\n";
        head.into_bytes()
    }

    /// The body as sent.
    pub fn body(&self) -> Vec<u8> {
        match self.upload {
            Upload::None => Vec::new(),
            Upload::Length(len) => content::bytes(UPLOAD_SEED, 0, len as usize),
            Upload::Chunked(len, size) => {
                let data = content::bytes(UPLOAD_SEED, 0, len as usize);
                let mut wire = Vec::with_capacity(data.len() + data.len() / size.max(1) * 8 + 16);
                for chunk in data.chunks(size.max(1)) {
                    wire.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    wire.extend_from_slice(chunk);
                    wire.extend_from_slice(b"\r\n");
                }
                wire.extend_from_slice(b"0\r\n\r\n");
                wire
            }
        }
    }
}

/// How a client leaves in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Closes with everything read: FIN.
    Close,
    /// RST.
    Reset,
}

/// The speed and the manners of a client.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Offsets of the request's bytes, head included, before which the client pauses.
    pub splits: Vec<usize>,
    /// Length of such a pause.
    pub pause: Duration,
    /// Reads at most so many bytes per second.
    pub read_rate: Option<u64>,
    /// Leaves after so many bytes of the response, or of what a tunnel sends back.
    pub leave: Option<(u64, Leave)>,
    /// Leaves after so many bytes of the request, head included.
    pub leave_sending: Option<(usize, Leave)>,
    /// Size of the receive buffer, to make a slow client felt at once.
    pub receive_buffer: Option<usize>,
    /// Everything must be over within.
    pub deadline: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            splits: Vec::new(),
            pause: Duration::from_millis(2),
            read_rate: None,
            leave: None,
            leave_sending: None,
            receive_buffer: None,
            deadline: Duration::from_secs(60),
        }
    }
}

/// How reading a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The message was complete as framed; the connection stays open.
    Complete,
    /// The message was complete and delimited by the end of the connection.
    Closed,
    /// The connection ended before the message did.
    Truncated,
    /// The connection was reset.
    Reset,
    /// The client left, as it was told to.
    Left,
    /// Nothing more came before the deadline.
    Stalled,
}

/// One response as received.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Interim responses before the final one.
    pub interim: Vec<Head>,
    /// The final head; empty if none came.
    pub head: Head,
    /// How the body was delimited.
    pub framing: Framing,
    /// The decoded body against the expected content.
    pub body: Checked,
    /// The trailer section.
    pub trailers: Vec<u8>,
    /// Bytes of the response on this connection, heads and framing included.
    pub wire_bytes: u64,
    /// How it ended.
    pub ending: Ending,
}

/// What the body should be: content of a seed from an offset, maybe compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// Seed of the content.
    pub seed: u64,
    /// Offset of its first byte.
    pub from: u64,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// Sends as early data. False: it cannot, because there is no ticket, the handshake is over, or there are more bytes than the server takes.
fn send_early(tls: &mut StreamOwned<ClientConnection, TcpStream>, bytes: &[u8]) -> std::io::Result<bool> {
    match tls.conn.early_data() {
        Some(mut early) if early.bytes_left() >= bytes.len() => early.write_all(bytes)?,
        _ => return Ok(false),
    }
    while tls.conn.wants_write() {
        tls.conn.write_tls(&mut tls.sock)?;
    }
    Ok(true)
}

/// Reads without sending what ends the handshake.
fn read_early(tls: &mut StreamOwned<ClientConnection, TcpStream>, to: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match tls.conn.reader().read(to) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => return other,
        }
        if tls.conn.read_tls(&mut tls.sock)? == 0 {
            return Ok(0);
        }
        tls.conn.process_new_packets().map_err(std::io::Error::other)?;
    }
}

/// A connection to a proxy.
pub struct Connection {
    stream: Stream,
    pending: Vec<u8>,
    started: Instant,
    pace: Pace,
    read_total: u64,
    has_left: bool,
    /// The handshake goes on with the next request.
    is_early: bool,
}

impl Connection {
    /// Connects.
    pub fn open(front: &Front, pace: &Pace) -> Result<Self, LabError> {
        let what = || format!("connect to {}", front.addr);
        let socket = Socket::new(Domain::for_address(front.addr), Type::STREAM, None).doing(what)?;
        if let Some(bytes) = pace.receive_buffer {
            socket.set_recv_buffer_size(bytes).doing(what)?;
        }
        socket.set_tcp_nodelay(true).doing(what)?;
        socket.connect_timeout(&front.addr.into(), pace.deadline).doing(what)?;
        let tcp = TcpStream::from(socket);
        tcp.set_read_timeout(Some(pace.deadline)).doing(what)?;
        tcp.set_write_timeout(Some(pace.deadline)).doing(what)?;
        let stream = match &front.tls {
            None => Stream::Plain(tcp),
            Some(config) => {
                let name = ServerName::try_from("localhost").map_err(|e| LabError::Tls(e.to_string()))?;
                let session =
                    ClientConnection::new(Arc::clone(config), name).map_err(|e| LabError::Tls(e.to_string()))?;
                Stream::Tls(Box::new(StreamOwned::new(session, tcp)))
            }
        };
        Ok(Self {
            stream,
            pending: Vec::new(),
            started: Instant::now(),
            pace: pace.clone(),
            read_total: 0,
            has_left: false,
            is_early: false,
        })
    }

    /// The socket beneath.
    pub fn tcp(&self) -> &TcpStream {
        match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => &tls.sock,
        }
    }

    /// Sends a whole request, with the pace's pauses.
    pub fn send(&mut self, request: &Request) -> Result<(), LabError> {
        let mut wire = request.head();
        wire.extend_from_slice(&request.body());
        self.send_raw(&wire)
    }

    /// Sends bytes, with the pace's pauses.
    pub fn send_raw(&mut self, wire: &[u8]) -> Result<(), LabError> {
        let what = || "send a request".to_owned();
        let leave = self.pace.leave_sending.filter(|(after, _)| *after < wire.len());
        let wire = leave.map_or(wire, |(after, _)| &wire[..after]);
        let mut at = 0;
        let mut splits: Vec<usize> = self.pace.splits.iter().copied().filter(|s| *s < wire.len()).collect();
        splits.sort_unstable();
        splits.push(wire.len());
        for split in splits {
            let piece = &wire[at..split.max(at)];
            match &mut self.stream {
                Stream::Plain(tcp) => tcp.write_all(piece).doing(what)?,
                Stream::Tls(tls) => {
                    self.is_early = send_early(tls, piece).doing(what)?;
                    if !self.is_early {
                        tls.write_all(piece).and_then(|()| tls.flush()).doing(what)?;
                    }
                }
            }
            at = split.max(at);
            if at < wire.len() {
                std::thread::sleep(self.pace.pause);
            }
        }
        if let Some((_, how)) = leave {
            self.leave(how);
        }
        Ok(())
    }

    /// Reads the response to `request` and compares its body with what is expected.
    pub fn receive(&mut self, request: &Request, expect: Expect) -> Result<Reply, LabError> {
        let mut reply = Reply {
            interim: Vec::new(),
            head: Head::default(),
            framing: Framing::None,
            body: Checker::new(0, 0).finish(),
            trailers: Vec::new(),
            wire_bytes: 0,
            ending: Ending::Complete,
        };
        loop {
            if let Some(head) = Head::find(&self.pending)? {
                self.pending.drain(..head.raw.len());
                reply.wire_bytes += head.raw.len() as u64;
                if matches!(head.status(), 100 | 102..=199) {
                    reply.interim.push(head);
                    continue;
                }
                reply.head = head;
                break;
            }
            if let Some(ending) = self.read_some(0) {
                reply.ending = ending;
                return Ok(reply);
            }
        }
        reply.framing = reply.head.response_framing(request.method);
        let mut body = Decoder::of(&reply.head, expect);
        let mut reader = BodyReader::new(reply.framing);
        while !reader.done() {
            if self.pending.is_empty()
                && let Some(ending) = self.read_some(reply.wire_bytes)
            {
                let closed = ending == Ending::Truncated && reply.framing == Framing::UntilClose;
                reply.ending = if closed { Ending::Closed } else { ending };
                break;
            }
            let taken = reader.feed(&self.pending, |data| body.take(data))?;
            self.pending.drain(..taken);
            reply.wire_bytes += taken as u64;
        }
        reply.body = body.finish()?;
        reply.trailers = reader.trailers;
        Ok(reply)
    }

    /// Reads something; None while the connection lives.
    fn read_some(&mut self, of_message: u64) -> Option<Ending> {
        if self.has_left {
            return Some(Ending::Left);
        }
        let mut room = BLOCK;
        if let Some((after, how)) = self.pace.leave {
            room = room.min(after.saturating_sub(of_message.max(self.read_total)) as usize);
            if room == 0 {
                self.leave(how);
                return Some(Ending::Left);
            }
        }
        if let Some(rate) = self.pace.read_rate {
            let due = Duration::from_secs_f64(self.read_total as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(self.started.elapsed()));
            room = room.min((rate / 20).max(1) as usize);
        }
        if self.started.elapsed() > self.pace.deadline {
            return Some(Ending::Stalled);
        }
        let mut block = [0; BLOCK];
        let read = match &mut self.stream {
            Stream::Plain(tcp) => tcp.read(&mut block[..room]),
            Stream::Tls(tls) if self.is_early => read_early(tls, &mut block[..room]),
            Stream::Tls(tls) => tls.read(&mut block[..room]),
        };
        match read {
            Ok(0) => Some(Ending::Truncated),
            Ok(n) => {
                self.read_total += n as u64;
                self.pending.extend_from_slice(&block[..n]);
                None
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Some(Ending::Stalled),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Some(Ending::Truncated),
            Err(_) => Some(Ending::Reset),
        }
    }

    fn leave(&mut self, how: Leave) {
        self.has_left = true;
        // The peer may have gone first.
        if how == Leave::Reset {
            let _ = SockRef::from(self.tcp()).set_linger(Some(Duration::ZERO));
        }
    }

    /// Takes everything that is sent until the peer closes; what was left over is returned.
    ///
    /// After the last response of a connection that was asked to close this must be empty.
    pub fn rest(&mut self) -> (Vec<u8>, Ending) {
        self.pace.leave = None;
        let ending = loop {
            if let Some(ending) = self.read_some(0) {
                break ending;
            }
        };
        (std::mem::take(&mut self.pending), ending)
    }

    /// Takes as many bytes as `enough` says once it says so of those that have come; or how the connection ended before.
    pub fn take(&mut self, enough: impl Fn(&[u8]) -> Option<usize>) -> Result<Vec<u8>, Ending> {
        loop {
            if let Some(n) = enough(&self.pending) {
                return Ok(self.pending.drain(..n).collect());
            }
            if let Some(ending) = self.read_some(0) {
                return Err(ending);
            }
        }
    }

    /// A tunnel after 101, or 2xx to CONNECT: sends `len` bytes of the upload content and takes them back, both at once. A client that leaves
    /// has sent some more by then.
    pub fn echo(&mut self, len: u64) -> Result<Checked, LabError> {
        let what = || "echo through a tunnel".to_owned();
        let Stream::Plain(tcp) = &self.stream else {
            return Err(LabError::Tls("tunnels are tested without TLS".to_owned()));
        };
        let to_send = self.pace.leave.map_or(len, |(after, _)| len.min(self.read_total + after + IN_FLIGHT));
        let mut writer = tcp.try_clone().doing(what)?;
        let sender = std::thread::spawn(move || -> std::io::Result<()> {
            let mut at = 0;
            while at < to_send {
                let n = (to_send - at).min(BLOCK as u64) as usize;
                writer.write_all(&content::bytes(UPLOAD_SEED, at, n))?;
                at += n as u64;
            }
            Ok(())
        });
        let mut checker = Checker::new(UPLOAD_SEED, 0);
        let mut got = 0;
        while got < len {
            if self.pending.is_empty() && self.read_some(0).is_some() {
                break;
            }
            got += self.pending.len() as u64;
            checker.update(&self.pending);
            self.pending.clear();
        }
        // A failed writer shows in the length of the echo.
        let _ = sender.join();
        if !matches!(self.pace.leave, Some((_, Leave::Reset)) if self.has_left) {
            let _ = self.tcp().shutdown(Shutdown::Write);
            // What is still on its way comes: closed with bytes unread, it would be RST.
            self.has_left = false;
        }
        Ok(checker.finish())
    }
}

enum Decoder {
    Identity(Checker),
    Gzip(Box<flate2::write::GzDecoder<Sink>>),
}

struct Sink(Checker);

impl Write for Sink {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.update(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Decoder {
    fn of(head: &Head, expect: Expect) -> Self {
        let checker = Checker::new(expect.seed, expect.from);
        match head.field("content-encoding") {
            Some("gzip") => Self::Gzip(Box::new(flate2::write::GzDecoder::new(Sink(checker)))),
            _ => Self::Identity(checker),
        }
    }

    fn take(&mut self, data: &[u8]) {
        match self {
            Self::Identity(checker) => checker.update(data),
            // What does not inflate shows as a body that is too short.
            Self::Gzip(decoder) => drop(decoder.write_all(data)),
        }
    }

    fn finish(self) -> Result<Checked, LabError> {
        match self {
            Self::Identity(checker) => Ok(checker.finish()),
            Self::Gzip(mut decoder) => {
                // As above: a stream cut short is a short body.
                let _ = decoder.try_finish();
                Ok(decoder.get_ref().0.finish())
            }
        }
    }
}
