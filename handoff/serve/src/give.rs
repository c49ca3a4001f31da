//! Gives connections back to the balancer, and tells it of those that have ended.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use std::sync::atomic::Ordering::Relaxed;
use underdeck_handoff_control::machine::{Event, Inbound, InboundAction};
use underdeck_handoff_control::message::{Body, Done};
use underdeck_handoff_control::tls::Channel;
use underdeck_handoff_tcp::freeze;

use crate::backend::Backend;
use crate::reset::reset;
use crate::take::Owned;
use crate::{lock, peers};

/// How long a connection stays after it could not be given back.
const STAYS: Duration = Duration::from_secs(1);
/// How often a balancer is told again that a connection has ended, and for how long.
const AGAIN: Duration = Duration::from_millis(500);
const GIVE_UP: Duration = Duration::from_secs(60);

/// How an attempt ended.
pub enum Given {
    /// It is not here any more.
    Gone,
    /// It goes on here.
    Kept(TcpStream),
}

impl Backend {
    /// Offers a connection to the balancer. `read` is what was read of it and not answered.
    pub fn give_back(&self, stream: TcpStream, owned: &mut Owned, read: &[u8]) -> Given {
        owned.stays = Some(Instant::now() + STAYS);
        if self.steer.block(&owned.flow).is_err() {
            self.metrics.abort("full");
            return Given::Kept(stream);
        }
        let frozen = match freeze(stream.into(), read) {
            Ok(frozen) => frozen,
            Err(error) => {
                let _ = self.steer.remove_ingress(&owned.flow);
                self.metrics.abort("freeze");
                return Given::Kept(error.into_fd().into());
            }
        };
        match self.offer(owned, &frozen.snapshot().encode()) {
            InboundAction::Release => {
                let _ = self.steer.remove_source(&owned.flow);
                frozen.release();
                owned.gone = true;
                self.metrics.back.fetch_add(1, Relaxed);
                Given::Gone
            }
            InboundAction::Resume => {
                self.metrics.abort("give_back");
                let _ = self.steer.remove_ingress(&owned.flow);
                // It does not fail for who could freeze it.
                frozen.resume().map_or(Given::Gone, |fd| Given::Kept(fd.into()))
            }
            // The other actions are what `offer` does itself.
            InboundAction::End | InboundAction::Ask | InboundAction::Offer => {
                self.metrics.abort("in_doubt");
                self.metrics.reset.fetch_add(1, Relaxed);
                if let Ok(fd) = frozen.resume() {
                    // The source rule still stands: the client hears it from the address that it knows.
                    reset(fd.into());
                }
                Given::Gone
            }
        }
    }

    /// Does what the state machine says, until the connection has an owner or none.
    fn offer(&self, owned: &mut Owned, snapshot: &[u8]) -> InboundAction {
        let pool = self.pool(owned.balancer());
        let generation = owned.generation;
        let mut state = Inbound::Reaching;
        let mut channel: Option<Channel> = pool.take().ok();
        let mut event = if channel.is_some() { Event::Done } else { Event::PeerLost };
        loop {
            event = match state.on(&event) {
                InboundAction::Offer => {
                    let offer = Body::ServerDone(owned.done(snapshot.to_vec()));
                    // What was said cannot be said again.
                    owned.generation += 1;
                    match channel.as_mut() {
                        Some(channel) => peers::exchange(channel, owned.transfer, offer),
                        None => Event::PeerLost,
                    }
                }
                InboundAction::Ask => {
                    channel = None;
                    pool.ask(owned.transfer, Body::Abort(generation))
                }
                action => {
                    // Only a channel that brought an answer is as it should be.
                    if let (Event::Said(_), Some(channel)) = (&event, channel) {
                        pool.put(channel);
                    }
                    return action;
                }
            };
        }
    }

    /// Tells a balancer that a connection has ended; later, if it cannot be told now.
    pub fn tell_ended(&self, balancer: SocketAddr, transfer: u64, done: Done) {
        let ended = Ended { balancer, transfer, done, since: Instant::now() };
        if !ended.say(self) {
            self.tell_later(balancer, transfer, ended.done);
        }
    }

    /// Tells a balancer that a connection has ended, from another thread.
    pub fn tell_later(&self, balancer: SocketAddr, transfer: u64, done: Done) {
        // The thread lives as long as the process.
        let _ = lock(&self.unsaid.0).send(Ended { balancer, transfer, done, since: Instant::now() });
    }
}

/// What a balancer must still be told.
pub struct Ended {
    balancer: SocketAddr,
    transfer: u64,
    done: Done,
    since: Instant,
}

impl Ended {
    /// True if the balancer has heard it.
    fn say(&self, backend: &Backend) -> bool {
        let pool = backend.pool(self.balancer);
        let body = || Body::ServerDone(self.done.clone());
        let Ok(mut channel) = pool.take() else { return false };
        match peers::exchange(&mut channel, self.transfer, body()) {
            Event::Said(_) => {
                pool.put(channel);
                true
            }
            // A kept connection may have been broken for long.
            _ => matches!(pool.ask(self.transfer, body()), Event::Said(_)),
        }
    }
}

/// Where that goes.
pub struct Unsaid(std::sync::Mutex<Sender<Ended>>);

impl Unsaid {
    pub fn new() -> (Unsaid, Receiver<Ended>) {
        let (sender, receiver) = channel();
        (Unsaid(std::sync::Mutex::new(sender)), receiver)
    }
}

/// Tells balancers again what they could not be told.
pub fn say_again(backend: &Backend, receiver: &Receiver<Ended>) {
    let mut waiting: Vec<Ended> = Vec::new();
    loop {
        match receiver.recv_timeout(AGAIN) {
            Ok(ended) => {
                waiting.push(ended);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // One that cannot be reached now need not be asked about each of its connections.
        let mut silent = Vec::new();
        waiting.retain(|ended| {
            let heard = !silent.contains(&ended.balancer) && ended.say(backend);
            if !heard {
                silent.push(ended.balancer);
            }
            !heard && ended.since.elapsed() < GIVE_UP
        });
    }
}
