//! The backend of measurements: one thread that sends payload from memory, as a server of files or as an application does
//! ([`Sending`]), and throws uploads away in the kernel. `GET /LEN`, `GET /LEN?from=OFFSET`, `GET /LEN?chunk=SIZE`; uploads of any framing to any such target.
//!
//! Payload is the content of seed [`SEED`], from the offset on.

use std::io::{self, PipeWriter};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::LabError;
use crate::error::While;
use crate::load::{Incoming, Outgoing, Pulled, Scratch, Sending, Source};
use crate::place::Place;

/// Seed of the payload.
pub const SEED: u64 = 0x0de0_0de0;

const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// A running origin. Dropping it stops it.
#[derive(Debug)]
pub struct Origin {
    addr: SocketAddr,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Origin {
    /// Starts it in a place, with `len` bytes of payload to send from, as `sending` says.
    pub fn start(place: &Place, len: u64, sending: Sending) -> Result<Self, LabError> {
        let what = || "start an origin".to_owned();
        let (stopped, stop) = std::io::pipe().doing(what)?;
        let (tell, told) = std::sync::mpsc::channel();
        let place = place.clone();
        let thread = std::thread::spawn(move || {
            let server = || -> Result<Server, LabError> {
                place.enter()?;
                let ip = place.ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
                let source = Source::new(SEED, len, sending).doing(|| "make payload".to_owned())?;
                Server::new(SocketAddr::new(ip, 0), stopped.into(), source).doing(|| format!("listen on {ip}"))
            };
            match server() {
                Ok(mut server) => {
                    if tell.send(server.listener.local_addr().doing(what)).is_ok() {
                        server.serve();
                    }
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        });
        let gone = |_| LabError::Io { what: what(), error: io::Error::other("its thread is gone") };
        let addr = told.recv().map_err(gone)??;
        Ok(Self { addr, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops it.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was printed by the thread itself, and its connections are closed.
            let _ = thread.join();
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.end();
    }
}

struct Peer {
    stream: TcpStream,
    incoming: Incoming,
    /// The answer under way or the last one, and what it is the answer to, without the offset.
    outgoing: Outgoing,
    shape: Option<Shape>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    len: u64,
    chunk: Option<u64>,
}

struct Server {
    listener: TcpListener,
    epoll: OwnedFd,
    // Its other end closes when it is time to stop.
    _stop: OwnedFd,
    peers: Vec<Option<Peer>>,
    free: Vec<usize>,
    source: Source,
    scratch: Scratch,
}

/// `/LEN?from=OFFSET&chunk=SIZE` as shape and offset.
fn parse(target: &str) -> Option<(Shape, u64)> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (mut shape, mut from) = (Shape { len: path.strip_prefix('/')?.parse().ok()?, chunk: None }, 0);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=')? {
            ("from", value) => from = value.parse().ok()?,
            ("chunk", value) => shape.chunk = Some(value.parse().ok().filter(|size| *size > 0)?),
            _ => return None,
        }
    }
    Some((shape, from))
}

impl Shape {
    fn answer(self) -> Outgoing {
        let framing = match self.chunk {
            Some(_) => "Transfer-Encoding: chunked".to_owned(),
            None => format!("Content-Length: {}", self.len),
        };
        // About as long as what nginx says of a file.
        let head = format!(
            "HTTP/1.1 200 OK\r\nServer: origin\r\nContent-Type: application/octet-stream\r\n{framing}\r\n\
             Last-Modified: Sat, 01 Jan 2022 00:00:00 GMT\r\nETag: \"61cf9980-{:x}\"\r\nAccept-Ranges: bytes\r\n\r\n",
            self.len
        );
        Outgoing::new(&head, self.len, self.chunk)
    }
}

impl Peer {
    /// Serves what goes; false when the connection is over.
    fn serve(&mut self, source: &Source, scratch: &mut Scratch) -> io::Result<bool> {
        loop {
            if !self.outgoing.push(&self.stream, source, &mut 0)? {
                return Ok(true);
            }
            match self.incoming.pull(&self.stream, scratch)? {
                Pulled::Empty => return Ok(true),
                Pulled::End => return Ok(false),
                Pulled::Message => {
                    let asked = parse(&self.incoming.start.target);
                    match asked.filter(|(shape, from)| from.saturating_add(shape.len) <= source.len()) {
                        Some((shape, from)) => {
                            if self.shape != Some(shape) {
                                (self.outgoing, self.shape) = (shape.answer(), Some(shape));
                            }
                            self.outgoing.rewind(from);
                        }
                        None => {
                            self.shape = None;
                            let head = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
                            self.outgoing = Outgoing::new(head, 0, None);
                        }
                    }
                }
            }
        }
    }
}

impl Server {
    fn new(addr: SocketAddr, stop: OwnedFd, source: Source) -> io::Result<Self> {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let (peers, free, scratch) = (Vec::new(), Vec::new(), Scratch::default());
        Ok(Self { listener, epoll, _stop: stop, peers, free, source, scratch })
    }

    fn serve(&mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                // The descriptors are ours: this cannot be mended by waiting.
                Err(_) => return,
            }
            for event in &events {
                match event.data.u64() {
                    STOP => return,
                    LISTENER => self.accept(),
                    peer => self.peer(peer as usize),
                }
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let index = self.free.pop().unwrap_or_else(|| {
                self.peers.push(None);
                self.peers.len() - 1
            });
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            let ready = stream.set_nonblocking(true).and(stream.set_nodelay(true));
            let data = epoll::EventData::new_u64(index as u64);
            if ready.is_err() || epoll::add(&self.epoll, &stream, data, flags).is_err() {
                self.free.push(index);
                continue;
            }
            let (incoming, outgoing) = (Incoming::new(true), Outgoing::new("", 0, None));
            self.peers[index] = Some(Peer { stream, incoming, outgoing, shape: None });
        }
    }

    fn peer(&mut self, index: usize) {
        let Some(Some(peer)) = self.peers.get_mut(index) else { return };
        // A connection that broke is one that the other side has to answer for.
        if !matches!(peer.serve(&self.source, &mut self.scratch), Ok(true)) {
            self.peers[index] = None;
            self.free.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Connection, Expect, Front, Pace, Request};

    #[test]
    fn targets_are_read() {
        let shape = |len, chunk| Shape { len, chunk };
        assert_eq!(parse("/5"), Some((shape(5, None), 0)));
        assert_eq!(parse("/5?from=7&chunk=2"), Some((shape(5, Some(2)), 7)));
        for wrong in ["5", "/x", "/5?chunk=0", "/5?other=1", "/5?from"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn answers_hold_the_content_that_was_asked_for() {
        let origin = Origin::start(&Place::default(), 1 << 20, Sending::Write).expect("an origin");
        let mut client = Connection::open(&Front::from(origin.addr()), &Pace::default()).expect("connected");
        for (target, from) in [("/200000", 0), ("/200000?from=300000", 300_000), ("/200000?from=9&chunk=4096", 9)] {
            let request = Request::get(target.to_owned());
            client.send(&request).expect("sent");
            let reply = client.receive(&request, Expect { seed: SEED, from }).expect("received");
            assert_eq!((reply.body.len, reply.body.first_wrong), (200_000, None), "{target}");
        }
        origin.stop();
    }
}
