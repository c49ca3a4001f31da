//! The backend that misbehaves on demand: threads in this process, one per connection, told by each request's target
//! what to do ([`Behaviour`]), and keeping a record of what it received.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use socket2::SockRef;

use crate::behaviour::{Behaviour, Delimit, End};
use crate::content::{self, Checked, Checker};
use crate::error::While;
use crate::http::{BodyReader, Framing, Head};
use crate::{LabError, wait};

/// No read or write of the backend blocks longer.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK: usize = 64 * 1024;
/// The answer to the example key of RFC 6455, section 1.3: HAProxy insists on one.
const ACCEPT: &str = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
/// The field, in lower case, of a CONNECT request that carries what is the target of others: its own is an authority.
pub const CONNECT_TARGET: &str = "x-target";
/// Seed of every upload, so that the backend can locate a wrong byte.
pub const UPLOAD_SEED: u64 = 0x5eed;

/// What the backend received with one request, and what became of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The request's head.
    pub head: Head,
    /// How its body was delimited.
    pub framing: Framing,
    /// The body. Where it is larger than what could be read, what there was.
    pub upload: Checked,
    /// Whether the body was complete.
    pub upload_complete: bool,
    /// Its trailer section.
    pub trailers: Vec<u8>,
    /// Bytes received with this request: head, framing and body.
    pub received: u64,
    /// Bytes of the answer that the kernel took, interim responses and head included.
    pub sent: u64,
    /// Whether the whole answer, as behaved, was written.
    pub answered: bool,
}

#[derive(Debug, Default)]
struct Shared {
    records: Mutex<HashMap<String, Vec<Seen>>>,
    stopping: AtomicBool,
}

/// A running backend. Dropping it closes the listener; connections end with their peers.
#[derive(Debug)]
pub struct Backend {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Backend {
    /// Starts listening on a free loopback port.
    pub fn start() -> Result<Self, LabError> {
        let what = || "listen for the test backend".to_owned();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing(what)?;
        let addr = listener.local_addr().doing(what)?;
        // std listens with a backlog of 128; a fault test opens more at once.
        rustix::net::listen(&listener, 4096).doing(what)?;
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if of_thread.stopping.load(Ordering::Relaxed) {
                    break;
                }
                let shared = Arc::clone(&of_thread);
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Ok(Self { addr, shared })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it has seen under the name of an exchange, in order.
    pub fn seen(&self, id: &str) -> Vec<Seen> {
        lock(&self.shared.records).get(id).cloned().unwrap_or_default()
    }

    /// Uploads so far with a byte that no client sent there: name of the exchange and place of the first such byte. Broken uploads
    /// count as well.
    pub fn wrong_uploads(&self) -> Vec<(String, u64)> {
        let records = lock(&self.shared.records);
        let all = records.iter().flat_map(|(id, seen)| seen.iter().map(move |it| (id, it.upload.first_wrong)));
        all.filter_map(|(id, wrong)| Some((id.clone(), wrong?))).collect()
    }

    /// Drops the records of an exchange: for runs of hours.
    pub fn forget(&self, id: &str) {
        lock(&self.shared.records).remove(id);
    }

    /// Waits until `count` requests of that name have been answered or given up.
    pub fn wait_seen(&self, id: &str, count: usize, within: Duration) -> Result<Vec<Seen>, LabError> {
        wait::until(format!("{count} requests named {id} at the backend"), within, || {
            Some(self.seen(id)).filter(|seen| seen.len() >= count)
        })
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        // Wakes the accepting thread; if nobody listens any more, it has ended already.
        let _ = TcpStream::connect(self.addr);
    }
}

struct Peer<'a> {
    stream: TcpStream,
    pending: Vec<u8>,
    shared: &'a Shared,
}

fn serve(stream: TcpStream, shared: &Shared) {
    // Options of a live loopback socket; if one fails the exchange shows it.
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let mut peer = Peer { stream, pending: Vec::new(), shared };
    // An error here is the peer's leaving or garbage: the record shows what was received.
    while let Ok(true) = peer.exchange() {}
}

impl Peer<'_> {
    /// One request and its answer; whether another may follow.
    fn exchange(&mut self) -> Result<bool, LabError> {
        let Some(head) = self.read_head()? else { return Ok(false) };
        let connects = head.start[0] == "CONNECT";
        let target = if connects { head.field(CONNECT_TARGET) } else { head.start.get(1).map(String::as_str) };
        let target = target.unwrap_or_default().to_owned();
        let Some((id, behaviour)) = Behaviour::parse(&target) else {
            self.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            return Ok(true);
        };
        if head.field("upgrade").is_some() || (connects && behaviour.status == 200) {
            return self.tunnel(&id, behaviour.end, head);
        }
        let framing = head.request_framing();
        let mut seen = Seen {
            received: head.raw.len() as u64,
            framing,
            upload: Checker::new(UPLOAD_SEED, 0).finish(),
            upload_complete: false,
            trailers: Vec::new(),
            sent: 0,
            answered: false,
            head,
        };
        let mut alive = true;
        if behaviour.early {
            alive = self.answer(&behaviour, &mut seen);
        }
        self.read_upload(&behaviour, &mut seen);
        if behaviour.upload_end != End::Complete {
            lock(&self.shared.records).entry(id).or_default().push(seen);
            self.leave(behaviour.upload_end);
            return Ok(false);
        }
        if !behaviour.early {
            alive = self.answer(&behaviour, &mut seen);
        }
        let alive = alive && seen.upload_complete && seen.answered;
        lock(&self.shared.records).entry(id).or_default().push(seen);
        if !alive {
            self.leave(behaviour.end);
        }
        Ok(alive)
    }

    fn read_some(&mut self) -> Result<usize, LabError> {
        let mut block = [0; BLOCK];
        let n = self.stream.read(&mut block).doing(|| "read a request".to_owned())?;
        self.pending.extend_from_slice(&block[..n]);
        Ok(n)
    }

    fn read_head(&mut self) -> Result<Option<Head>, LabError> {
        loop {
            if let Some(head) = Head::find(&self.pending)? {
                self.pending.drain(..head.raw.len());
                return Ok(Some(head));
            }
            if self.read_some()? == 0 {
                return Ok(None);
            }
        }
    }

    fn read_upload(&mut self, behaviour: &Behaviour, seen: &mut Seen) {
        std::thread::sleep(Duration::from_micros(behaviour.upload_pause_us));
        let mut left = behaviour.upload_end.at();
        let mut reader = BodyReader::new(seen.framing);
        let mut checker = Checker::new(UPLOAD_SEED, 0);
        if !reader.done() && seen.head.field("expect").is_some_and(|v| v.eq_ignore_ascii_case("100-continue")) {
            // A failure shows as an incomplete upload.
            let _ = self.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
            seen.sent += 25;
        }
        while !reader.done() && left > 0 {
            if self.pending.is_empty() && !matches!(self.read_some(), Ok(1..)) {
                break;
            }
            let most = self.pending.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let Ok(taken) = reader.feed(&self.pending[..most], |data| checker.update(data)) else { break };
            left -= taken as u64;
            seen.received += taken as u64;
            self.pending.drain(..taken);
        }
        seen.upload = checker.finish();
        seen.upload_complete = reader.done();
        seen.trailers = reader.trailers;
    }

    fn write_all(&mut self, data: &[u8]) -> Result<(), LabError> {
        self.stream.write_all(data).doing(|| "write a response".to_owned())
    }

    /// Sends the response; whether the connection can serve another request.
    fn answer(&mut self, behaviour: &Behaviour, seen: &mut Seen) -> bool {
        let plan = Plan::of(behaviour, &seen.head);
        let limit = behaviour.end.at();
        let mut out = Paced {
            to: &mut self.stream,
            splits: behaviour.splits.clone(),
            pause_us: behaviour.pause_us,
            at: 0,
            limit,
        };
        out.splits.sort_unstable();
        let whole = plan.write(&mut out).is_ok();
        seen.sent += out.at;
        seen.answered = whole;
        whole && plan.keep_alive
    }

    fn leave(&mut self, end: End) {
        if matches!(end, End::Reset(_)) {
            // Everything queued is discarded and the peer gets RST.
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
            return;
        }
        let _ = self.stream.shutdown(Shutdown::Write);
        // Closed with bytes unread, it would be RST as well.
        while matches!(end, End::Fin(_)) && matches!(self.read_some(), Ok(1..)) {
            self.pending.clear();
        }
    }

    /// Accepts any upgrade, and any CONNECT, and sends back what comes until the peer ends its side, or until `end`.
    fn tunnel(&mut self, id: &str, end: End, head: Head) -> Result<bool, LabError> {
        let answer = match head.field("upgrade") {
            Some(protocol) => format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n{ACCEPT}\r\n"
            ),
            None => "HTTP/1.1 200 Established\r\n\r\n".to_owned(),
        };
        self.write_all(answer.as_bytes())?;
        let mut checker = Checker::new(UPLOAD_SEED, 0);
        let mut left = end.at();
        loop {
            self.pending.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= self.pending.len() as u64;
            checker.update(&self.pending);
            let echo = std::mem::take(&mut self.pending);
            if left == 0 {
                // The peer may have gone first.
                let _ = self.write_all(&echo);
                self.leave(end);
                break;
            }
            if self.write_all(&echo).is_err() || !matches!(self.read_some(), Ok(1..)) {
                break;
            }
        }
        let upload = checker.finish();
        let sent = upload.len;
        let seen = Seen {
            received: head.raw.len() as u64 + sent,
            head,
            framing: Framing::UntilClose,
            upload,
            upload_complete: true,
            trailers: Vec::new(),
            sent,
            answered: true,
        };
        lock(&self.shared.records).entry(id.to_owned()).or_default().push(seen);
        Ok(false)
    }
}

/// A response before it is written.
struct Plan {
    head: String,
    seed: u64,
    from: u64,
    len: u64,
    chunk: Option<usize>,
    trailers: bool,
    keep_alive: bool,
}

impl Plan {
    fn of(behaviour: &Behaviour, request: &Head) -> Self {
        let etag = format!("\"{}-{}\"", behaviour.seed, behaviour.len);
        let range = request.field("range").and_then(|value| parse_range(value, behaviour.len));
        let unchanged = request.field("if-none-match") == Some(etag.as_str());
        let (status, from, len) = match range {
            _ if unchanged => (304, 0, 0),
            Some((from, to)) => (206, from, to - from + 1),
            None => (behaviour.status, 0, behaviour.len),
        };
        let version = if behaviour.http10 { "HTTP/1.0" } else { "HTTP/1.1" };
        let mut head = String::new();
        if behaviour.interim > 0 {
            head += &format!("HTTP/1.1 {} Interim\r\nLink: </style.css>\r\n\r\n", behaviour.interim);
        }
        head += &format!("{version} {status} Answer\r\nContent-Type: application/octet-stream\r\nETag: {etag}\r\n");
        if status == 206 {
            head += &format!("Content-Range: bytes {from}-{}/{}\r\n", from + len - 1, behaviour.len);
        }
        if behaviour.pad > 0 {
            head += &format!("X-Pad: {}\r\n", "p".repeat(behaviour.pad));
        }
        let bodiless = matches!(status, 204 | 304) || request.start[0] == "HEAD";
        let mut keep_alive = !behaviour.http10 && !behaviour.close && request.keeps_alive(&request.start[2]);
        let mut chunk = None;
        match behaviour.delimit {
            Delimit::Chunked(size) if !behaviour.http10 => {
                head += "Transfer-Encoding: chunked\r\n";
                chunk = Some(size);
            }
            Delimit::Close => keep_alive = false,
            // The length of what a 304 or HEAD stands for is announced, and nothing follows.
            _ if status == 204 => {}
            _ => head += &format!("Content-Length: {}\r\n", if unchanged { behaviour.len } else { len }),
        }
        head += if keep_alive { "Connection: keep-alive\r\n\r\n" } else { "Connection: close\r\n\r\n" };
        let (len, chunk) = if bodiless { (0, None) } else { (len, chunk) };
        Self { head, seed: behaviour.seed, from, len, chunk, trailers: behaviour.trailers, keep_alive }
    }

    fn write(&self, out: &mut Paced) -> std::io::Result<()> {
        let mut buffer = self.head.clone().into_bytes();
        let mut done = 0;
        let piece = self.chunk.unwrap_or(BLOCK);
        while done < self.len {
            let n = (self.len - done).min(piece as u64) as usize;
            if self.chunk.is_some() {
                let extension = if self.trailers { ";ext=\"1\"" } else { "" };
                buffer.extend_from_slice(format!("{n:x}{extension}\r\n").as_bytes());
            }
            let start = buffer.len();
            buffer.resize(start + n, 0);
            content::fill(self.seed, self.from + done, &mut buffer[start..]);
            if self.chunk.is_some() {
                buffer.extend_from_slice(b"\r\n");
            }
            done += n as u64;
            if buffer.len() >= BLOCK {
                out.put(&buffer)?;
                buffer.clear();
            }
        }
        if self.chunk.is_some() {
            buffer.extend_from_slice(if self.trailers { b"0\r\nX-Trailer: last\r\n\r\n" } else { b"0\r\n\r\n" });
        }
        out.put(&buffer)
    }
}

fn parse_range(value: &str, len: u64) -> Option<(u64, u64)> {
    let (from, to) = value.strip_prefix("bytes=")?.split_once('-')?;
    let from: u64 = from.parse().ok()?;
    let to = if to.is_empty() { len.checked_sub(1)? } else { to.parse::<u64>().ok()?.min(len.checked_sub(1)?) };
    (from <= to).then_some((from, to))
}

/// Writes with pauses before given offsets, and stops at a limit.
struct Paced<'a> {
    to: &'a mut TcpStream,
    splits: Vec<u64>,
    pause_us: u64,
    at: u64,
    limit: u64,
}

impl Paced<'_> {
    fn put(&mut self, mut data: &[u8]) -> std::io::Result<()> {
        while !data.is_empty() {
            let next = self.splits.iter().copied().find(|split| *split > self.at).unwrap_or(u64::MAX);
            let n = (data.len() as u64).min(next - self.at).min(self.limit - self.at) as usize;
            if n == 0 {
                return Err(std::io::ErrorKind::ConnectionAborted.into());
            }
            self.to.write_all(&data[..n])?;
            self.at += n as u64;
            data = &data[n..];
            if self.at == next {
                std::thread::sleep(Duration::from_micros(self.pause_us));
            }
        }
        Ok(())
    }
}
