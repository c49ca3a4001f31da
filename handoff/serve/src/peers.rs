//! Persistent control connections to one peer. Each transfer in flight has one to itself.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use underdeck_handoff_control::machine::Event;
use underdeck_handoff_control::message::{Body, Message};
use underdeck_handoff_control::tls::{Channel, Identity};

use crate::{ServeError, accept, bind, lock, spawn};

/// Most idle connections to a peer that are kept.
const IDLE: usize = 256;
/// Most control connections that are accepted at a time.
const ACCEPTED: u32 = 4096;

/// The idle ones.
pub struct Pool {
    to: SocketAddr,
    identity: Identity,
    patience: Duration,
    idle: Mutex<Vec<Channel>>,
}

impl Pool {
    pub fn new(to: SocketAddr, identity: Identity, patience: Duration) -> Pool {
        Pool { to, identity, patience, idle: Mutex::default() }
    }

    /// An idle connection, or a new one.
    pub fn take(&self) -> io::Result<Channel> {
        let idle = lock(&self.idle).pop();
        idle.map_or_else(|| self.fresh(), Ok)
    }

    /// A new one.
    pub fn fresh(&self) -> io::Result<Channel> {
        self.identity.connect(self.to, self.patience)
    }

    /// Back, after a transfer that ended as it should. Others are dropped.
    pub fn put(&self, channel: Channel) {
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE {
            idle.push(channel);
        }
    }

    /// The peer is gone, and so are these.
    pub fn clear(&self) {
        lock(&self.idle).clear();
    }

    /// Asks over a new connection: the others may be as broken as the one that brought no answer.
    pub fn ask(&self, transfer: u64, body: Body) -> Event {
        self.clear();
        match self.fresh() {
            Ok(mut channel) => exchange(&mut channel, transfer, body),
            Err(_) => Event::PeerLost,
        }
    }
}

/// Says something about a transfer, and waits for the answer.
pub fn exchange(channel: &mut Channel, transfer: u64, body: Body) -> Event {
    match say(channel, transfer, body) {
        Event::Done => answer(channel, transfer),
        other => other,
    }
}

/// Says something about a transfer.
pub fn say(channel: &mut Channel, transfer: u64, body: Body) -> Event {
    channel.send(&Message { transfer, body }).map_or_else(|error| broken(&error), |()| Event::Done)
}

/// The next message, which must be about this transfer.
pub fn answer(channel: &mut Channel, transfer: u64) -> Event {
    match channel.receive() {
        Ok(message) if message.transfer == transfer => Event::Said(message.body),
        Ok(_) => Event::Failed,
        Err(error) => broken(&error),
    }
}

fn broken(error: &io::Error) -> Event {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Event::TimedOut,
        _ => Event::PeerLost,
    }
}

/// Accepts control connections, and gives each one's first messages to `serve` until it says to stop. A peer that says
/// what is no message, or does not end what it began, is hung up on.
pub fn listen(
    at: SocketAddr,
    identity: Identity,
    patience: Duration,
    serve: impl Fn(&mut Channel, Message) -> io::Result<()> + Send + Sync + 'static,
) -> Result<(), ServeError> {
    let listener = bind("control", at)?;
    let (serve, accepted) = (Arc::new(serve), Arc::new(AtomicU32::new(0)));
    let talk = move |stream: TcpStream| {
        if accepted.fetch_add(1, Relaxed) < ACCEPTED {
            // Whatever ends it concerns this connection only.
            let _ = identity.accept(stream, patience).and_then(|mut channel| -> io::Result<()> {
                loop {
                    let message = channel.wait(patience)?;
                    serve(&mut channel, message)?;
                }
            });
        }
        accepted.fetch_sub(1, Relaxed);
    };
    spawn("accept-control", move || accept(&listener, "control", talk)).map_err(ServeError::Thread)
}
