//! Persistent control connections to one peer. Each transfer in flight has one to itself.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use underdeck_handoff_control::message::Message;
use underdeck_handoff_control::tls::{Channel, Identity};

use crate::ServeError;

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
        let idle = self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        idle.map_or_else(|| self.fresh(), Ok)
    }

    /// A new one.
    pub fn fresh(&self) -> io::Result<Channel> {
        self.identity.connect(self.to, self.patience)
    }

    /// Back, after a transfer that ended as it should. Others are dropped.
    pub fn put(&self, channel: Channel) {
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(channel);
    }

    /// The peer is gone, and so are these.
    pub fn clear(&self) {
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
    }
}

/// Accepts control connections, and gives each one's first messages to `serve` until it says to stop.
pub fn listen(
    at: SocketAddr,
    identity: Identity,
    patience: Duration,
    serve: impl Fn(&mut Channel, Message) -> io::Result<()> + Send + Sync + 'static,
) -> Result<(), ServeError> {
    let refused = |source| ServeError::Listen { what: "control", at: at.to_string(), source };
    let listener = TcpListener::bind(at).map_err(refused)?;
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (identity, serve) = (identity.clone(), Arc::clone(&serve));
            std::thread::spawn(move || -> io::Result<()> {
                let mut channel = identity.accept(stream, patience)?;
                loop {
                    channel.set_patience(None)?;
                    let message = channel.receive()?;
                    channel.set_patience(Some(patience))?;
                    serve(&mut channel, message)?;
                }
            });
        }
    });
    Ok(())
}
