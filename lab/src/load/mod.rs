//! The project's own load generator: one thread, closed loop or open loop with latency correction.
//!
//! Payload is sent from memory by `sendfile` or `send` and thrown away in the kernel on receipt, so that one CPU of clients and
//! backend can saturate a proxy on another. It looks at payload only where it is told what to expect; otherwise that is
//! what [`crate::client`] is for.
//!
//! Open loop: requests are due at fixed times, whether or not earlier ones have been answered, and a latency counts
//! from the moment that the request was due. A closed loop asks again only when it was answered: a stall hides the
//! requests that would have been sent meanwhile.

mod incoming;
mod outgoing;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

pub use incoming::{Incoming, Pulled, Scratch, Start};
pub use outgoing::{Outgoing, Sending, Source};

use crate::LabError;
use crate::error::While;
use crate::place::Place;

/// How long answers that are still due after the window are waited for.
const DRAIN: Duration = Duration::from_secs(20);
/// The authority, if nothing else is said.
pub const HOST: &str = "lab.test";
/// A run in which more connections break than this is no measurement.
const FAILED: u64 = 1000;
const CONNECT: Duration = Duration::from_secs(30);

/// What every request looks like.
#[derive(Clone, Debug)]
pub enum Ask {
    /// `GET` of these targets in turn.
    Get(Vec<String>),
    /// `POST` of so many bytes; in chunks of this size, if given.
    Post {
        /// Payload bytes.
        len: u64,
        /// Bytes of each chunk; None: `Content-Length`.
        chunk: Option<u64>,
    },
}

/// One run.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where to.
    pub addr: SocketAddr,
    /// Connections, all kept alive.
    pub connections: usize,
    /// The requests.
    pub ask: Ask,
    /// The authority.
    pub host: String,
    /// Further fields of every `GET`, each with its CRLF.
    pub fields: &'static str,
    /// Bodies of the responses, one for each target of [`Ask::Get`]: every byte is compared. None given: payload is not
    /// looked at.
    pub expect: Vec<Arc<[u8]>>,
    /// Requests per second, open loop. None: closed loop.
    pub rate: Option<f64>,
    /// Load before the window.
    pub warmup: Duration,
    /// What is measured.
    pub window: Duration,
    /// Where the generator runs.
    pub place: Place,
    /// It never sleeps, so that what it takes to wake it up is not measured. It needs a CPU of its own.
    pub spin: bool,
}

/// The two ends of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// It begins.
    Begin,
    /// It has ended.
    End,
}

/// What was seen in the window.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Length of the window.
    pub window: Duration,
    /// Requests answered in the window.
    pub requests: u64,
    /// Payload bytes received in the window; of uploads: sent.
    pub payload_bytes: u64,
    /// Payload bytes of the whole run, with warm-up and what came after the window.
    pub total_bytes: u64,
    /// Nanoseconds to the last byte of the answer; open loop: from when the request was due.
    pub latency_ns: Histogram<u64>,
    /// Answers that were not 2xx, in the whole run.
    pub bad_status: u64,
    /// Answers with another body than was expected, in the whole run.
    pub mismatches: u64,
    /// Connections that broke, and requests never answered, in the whole run.
    pub failed: u64,
}

impl Measured {
    /// Answers per second.
    pub fn requests_per_s(&self) -> f64 {
        self.requests as f64 / self.window.as_secs_f64()
    }

    /// A quantile of the latency in milliseconds.
    pub fn latency_ms(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1e6
    }
}

struct Client {
    stream: TcpStream,
    incoming: Incoming,
    outgoing: Outgoing,
    /// When the request under way was due. None: idle.
    due: Option<Instant>,
}

struct Generator<'a> {
    load: &'a Load,
    source: &'a Source,
    requests: Vec<Outgoing>,
    epoll: OwnedFd,
    clients: Vec<Client>,
    scratch: Scratch,
    idle: Vec<usize>,
    /// Due times of requests that wait for a connection; open loop.
    waiting: VecDeque<Instant>,
    turn: usize,
    measuring: bool,
    asking: bool,
    sent: u64,
    out: Measured,
}

impl Load {
    /// Runs on a thread of its own in its place; `watch` is called there at both ends of the window.
    pub fn run(&self, source: &Source, watch: impl FnMut(Edge) + Send) -> Result<Measured, LabError> {
        let what = || format!("load on {}", self.addr);
        let run = || -> Result<Measured, LabError> {
            self.place.enter()?;
            let generator = Generator::connect(self, source).doing(what)?;
            generator.run(watch).doing(what)
        };
        std::thread::scope(|scope| {
            let gone = |_| LabError::Io { what: what(), error: io::Error::other("the generator panicked") };
            scope.spawn(run).join().map_err(gone)?
        })
    }

    fn requests(&self) -> Vec<Outgoing> {
        let host = format!("Host: {}\r\n", self.host);
        match &self.ask {
            Ask::Get(targets) => targets
                .iter()
                .map(|target| Outgoing::new(&format!("GET {target} HTTP/1.1\r\n{host}{}\r\n", self.fields), 0, None))
                .collect(),
            Ask::Post { len, chunk } => {
                let framing = match chunk {
                    Some(_) => "Transfer-Encoding: chunked".to_owned(),
                    None => format!("Content-Length: {len}"),
                };
                vec![Outgoing::new(&format!("POST /0 HTTP/1.1\r\n{host}{framing}\r\n\r\n"), *len, *chunk)]
            }
        }
    }
}

impl<'a> Generator<'a> {
    fn connect(load: &'a Load, source: &'a Source) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let requests = load.requests();
        let mut clients = Vec::with_capacity(load.connections);
        for i in 0..load.connections {
            let stream = open(load.addr, &epoll, i)?;
            let outgoing = requests[i % requests.len()].clone();
            clients.push(Client { stream, incoming: Incoming::new(false), outgoing, due: None });
        }
        let latency_ns = Histogram::new(3).map_err(io::Error::other)?;
        let out = Measured {
            window: load.window,
            requests: 0,
            payload_bytes: 0,
            total_bytes: 0,
            latency_ns,
            bad_status: 0,
            mismatches: 0,
            failed: 0,
        };
        let idle = (0..clients.len()).rev().collect();
        let (scratch, waiting) = (Scratch::default(), VecDeque::new());
        let (turn, measuring, asking, sent) = (0, false, true, 0);
        Ok(Self { load, source, requests, epoll, clients, scratch, idle, waiting, turn, measuring, asking, sent, out })
    }

    fn run(mut self, mut watch: impl FnMut(Edge)) -> io::Result<Measured> {
        let begin = Instant::now() + self.load.warmup;
        let first = self.work(begin, Instant::now(), 0)?;
        let before = (self.payload(), Instant::now());
        watch(Edge::Begin);
        self.measuring = true;
        self.work(begin + self.load.window, begin - self.load.warmup, first)?;
        watch(Edge::End);
        (self.out.payload_bytes, self.out.window) = (self.payload() - before.0, before.1.elapsed());
        // Of a closed loop, what is answered later is outside; of an open loop, what was due must still be counted.
        (self.asking, self.measuring) = (false, self.load.rate.is_some());
        let requests = self.out.requests;
        let deadline = Instant::now() + DRAIN;
        while self.idle.len() < self.clients.len() && Instant::now() < deadline {
            self.wait(deadline)?;
        }
        (self.out.requests, self.out.total_bytes) = (requests, self.payload());
        self.out.failed += (self.clients.len() - self.idle.len() + self.waiting.len()) as u64;
        Ok(self.out)
    }

    fn payload(&self) -> u64 {
        match self.load.ask {
            Ask::Get(_) => self.clients.iter().map(|client| client.incoming.payload).sum(),
            Ask::Post { .. } => self.sent,
        }
    }

    /// Keeps asking until `end`. Open loop: request `n` is due `n` intervals after `epoch`, `first` is the next one;
    /// gives the one after the last.
    fn work(&mut self, end: Instant, epoch: Instant, first: u64) -> io::Result<u64> {
        let mut next = first;
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(next);
            }
            let Some(rate) = self.load.rate else {
                while let Some(client) = self.idle.pop() {
                    self.ask(client, Instant::now())?;
                }
                self.wait(end)?;
                continue;
            };
            let mut due = epoch + Duration::from_secs_f64(next as f64 / rate);
            while due <= now {
                self.waiting.push_back(due);
                next += 1;
                due = epoch + Duration::from_secs_f64(next as f64 / rate);
            }
            self.assign()?;
            self.wait(due.min(end))?;
        }
    }

    /// Gives idle connections what waits.
    fn assign(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty()
            && let Some(client) = self.idle.pop()
            && let Some(due) = self.waiting.pop_front()
        {
            self.ask(client, due)?;
        }
        Ok(())
    }

    fn ask(&mut self, index: usize, due: Instant) -> io::Result<()> {
        self.prepare(index, due);
        let client = &mut self.clients[index];
        match client.outgoing.push(&client.stream, self.source, &mut self.sent) {
            Ok(_) => Ok(()),
            Err(error) => self.reconnect(index, &error),
        }
    }

    /// Makes the next request of a connection ready to be sent.
    fn prepare(&mut self, index: usize, due: Instant) {
        let client = &mut self.clients[index];
        client.due = Some(due);
        self.turn += 1;
        let base = match self.load.ask {
            Ask::Get(_) => {
                let target = self.turn % self.requests.len();
                client.outgoing.clone_from(&self.requests[target]);
                client.incoming.expect(self.load.expect.get(target).cloned());
                0
            }
            Ask::Post { len, .. } => self.turn as u64 % (self.source.len() / len.max(1)).max(1) * len,
        };
        client.outgoing.rewind(base);
    }

    /// When the next request of a connection that has just become free was due; None: there is none.
    fn next_due(&mut self) -> Option<Instant> {
        match self.load.rate {
            Some(_) => self.waiting.pop_front(),
            None => self.asking.then(Instant::now),
        }
    }

    /// Waits for events until `until` at most and serves them.
    fn wait(&mut self, until: Instant) -> io::Result<()> {
        let left = match self.load.spin {
            true => Duration::ZERO,
            false => until.saturating_duration_since(Instant::now()),
        };
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut events = Vec::with_capacity(256);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            self.serve(event.data.u64() as usize)?;
        }
        Ok(())
    }

    /// Sends and receives what goes on one connection.
    fn serve(&mut self, index: usize) -> io::Result<()> {
        let client = &mut self.clients[index];
        let Some(due) = client.due else { return Ok(()) };
        let sent = client.outgoing.push(&client.stream, self.source, &mut self.sent);
        match sent.and_then(|_| client.incoming.pull(&client.stream, &mut self.scratch)) {
            Ok(Pulled::Empty) => Ok(()),
            Ok(Pulled::Message) => {
                self.answered(index, due);
                match self.next_due() {
                    // The answer cannot be there yet: when it comes, there is an event.
                    Some(due) => self.ask(index, due),
                    None => {
                        self.idle.push(index);
                        Ok(())
                    }
                }
            }
            Ok(Pulled::End) => self.reconnect(index, &io::ErrorKind::ConnectionAborted.into()),
            Err(error) => self.reconnect(index, &error),
        }
    }

    fn answered(&mut self, index: usize, due: Instant) {
        let client = &mut self.clients[index];
        client.due = None;
        self.out.bad_status += u64::from(!(200..300).contains(&client.incoming.start.status));
        self.out.mismatches += u64::from(!client.incoming.is_as_expected());
        if self.measuring {
            self.out.requests += 1;
            // The histogram grows with its values and takes every one.
            let _ = self.out.latency_ns.record(due.elapsed().as_nanos() as u64);
        }
    }

    /// Replaces a connection that broke; its request is lost and counted.
    fn reconnect(&mut self, index: usize, error: &io::Error) -> io::Result<()> {
        self.out.failed += 1;
        if self.out.failed > FAILED {
            return Err(io::Error::other(format!("more than {FAILED} connections broke, the last with: {error}")));
        }
        let stream = open(self.load.addr, &self.epoll, index)?;
        let client = &mut self.clients[index];
        let payload = client.incoming.payload;
        (client.stream, client.incoming, client.due) = (stream, Incoming::new(false), None);
        client.incoming.payload = payload;
        self.idle.push(index);
        Ok(())
    }
}

fn open(addr: SocketAddr, epoll: &OwnedFd, index: usize) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, CONNECT)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
    epoll::add(epoll, &stream, epoll::EventData::new_u64(index as u64), flags)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;

    fn load(addr: SocketAddr, ask: Ask) -> Load {
        let (warmup, window) = (Duration::from_millis(20), Duration::from_millis(200));
        let (host, expect) = (HOST.to_owned(), Vec::new());
        Load {
            addr,
            connections: 4,
            ask,
            host,
            fields: "",
            expect,
            rate: None,
            warmup,
            window,
            place: Place::default(),
            spin: false,
        }
    }

    #[test]
    fn every_direction_and_framing_is_carried_and_counted() {
        let len = 300_000;
        let asks = [
            Ask::Get(vec![format!("/{len}"), format!("/{len}?from=1000000")]),
            Ask::Get(vec![format!("/{len}?chunk=65536")]),
            Ask::Post { len, chunk: None },
            Ask::Post { len, chunk: Some(65_536) },
        ];
        for sending in [Sending::Sendfile, Sending::Write] {
            let origin = Origin::start(&Place::default(), 4 << 20, sending).expect("an origin");
            let source = Source::new(1, 1 << 20, sending).expect("a source");
            for ask in &asks {
                let mut edges = Vec::new();
                let it = load(origin.addr(), ask.clone()).run(&source, |edge| edges.push(edge)).expect("measured");
                assert_eq!((it.bad_status, it.failed), (0, 0), "{ask:?}");
                assert_eq!(edges, [Edge::Begin, Edge::End]);
                assert!(it.requests > 0 && it.payload_bytes >= it.requests.saturating_sub(4) * len, "{ask:?}: {it:?}");
                assert_eq!(it.latency_ns.len(), it.requests);
            }
            origin.stop();
        }
    }

    #[test]
    fn another_status_is_counted() {
        let origin = Origin::start(&Place::default(), 1, Sending::Write).expect("an origin");
        let ask = Ask::Get(vec!["/nonsense".to_owned()]);
        let bad = load(origin.addr(), ask).run(&Source::empty(), |_| ()).expect("measured");
        assert!(bad.bad_status >= bad.requests && bad.requests > 0);
        origin.stop();
    }

    #[test]
    fn a_body_that_is_not_as_expected_is_seen() {
        let origin = Origin::start(&Place::default(), 1 << 20, Sending::Write).expect("an origin");
        let source = Source::empty();
        let mut load = load(origin.addr(), Ask::Get(vec!["/300000".to_owned()]));
        let mut body = crate::content::bytes(crate::origin::SEED, 0, 300_000);
        load.expect = vec![body.clone().into()];
        let right = load.run(&source, |_| ()).expect("measured");
        assert!(right.requests > 0 && right.mismatches == 0, "{right:?}");
        body[299_999] ^= 1;
        load.expect = vec![body.clone().into()];
        let wrong = load.run(&source, |_| ()).expect("measured");
        assert!(wrong.mismatches >= wrong.requests && wrong.requests > 0, "{wrong:?}");
        body.pop();
        load.expect = vec![body.into()];
        let longer = load.run(&source, |_| ()).expect("measured");
        assert!(longer.mismatches >= longer.requests && longer.requests > 0, "{longer:?}");
        origin.stop();
    }

    #[test]
    fn an_open_loop_counts_from_when_a_request_was_due() {
        // One connection, and an origin that needs much longer than the interval: the queue grows, and so does what a
        // request waits. A generator that counted from the sending would see the service time only.
        let origin = Origin::start(&Place::default(), 64 << 20, Sending::Sendfile).expect("an origin");
        let source = Source::empty();
        let mut load = load(origin.addr(), Ask::Get(vec![format!("/{}", 4 << 20)]));
        load.connections = 1;
        let closed = load.run(&source, |_| ()).expect("measured");
        load.rate = Some(closed.requests_per_s() * 4.0);
        let open = load.run(&source, |_| ()).expect("measured");
        assert!(open.latency_ms(0.99) > closed.latency_ms(0.5) * 2.0, "{open:?} {closed:?}");
        assert!(open.latency_ns.len() > open.requests, "what was due in the window and came later counts");
        origin.stop();
    }
}
