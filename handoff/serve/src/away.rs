//! Connections that are with a backend, and how they get there.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use underdeck_handoff_control::machine::{Event, Outbound, OutboundAction};
use underdeck_handoff_control::message::{Body, Refusal};
use underdeck_handoff_control::tls::Channel;
use underdeck_handoff_steer::Flow;
use underdeck_handoff_tcp::{Frozen, freeze};

use crate::balancer::Balancer;
use crate::metrics::STEPS;
use crate::{lock, peers};

/// A connection that is with a backend, or on its way.
pub struct Away {
    pub flow: Flow,
    pub backend: usize,
    /// Locked while it is on its way, in either direction.
    pub fate: Mutex<Fate>,
}

/// What may still happen to it.
#[derive(Default)]
pub struct Fate {
    /// Attempts to bring it back below this one come too late.
    pub fence: u32,
    /// It has come back or has ended.
    pub over: bool,
}

/// How an attempt ended.
pub enum Attempt {
    /// The backend owns the connection.
    Gone,
    /// It goes on here: this backend did not take it.
    Kept(TcpStream),
    /// It goes on here: no backend could have taken it.
    Stays(TcpStream),
    /// It has ended.
    Lost,
}

/// Hands a connection to a backend. `read` is what was read of it and not answered.
pub fn hand_out(balancer: &Balancer, stream: TcpStream, backend: usize, read: &[u8]) -> Attempt {
    let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return Attempt::Stays(stream) };
    let flow = Flow { local, peer };
    let mut times = Times::new();
    if balancer.steer.block(&flow).is_err() {
        balancer.metrics.abort("full");
        return Attempt::Stays(stream);
    }
    times.lap(0);
    let frozen = match freeze(stream.into(), read) {
        Ok(frozen) => frozen,
        Err(error) => {
            balancer.metrics.abort("freeze");
            let _ = balancer.steer.remove(&flow);
            return Attempt::Stays(error.into_fd().into());
        }
    };
    times.lap(1);
    let snapshot = frozen.snapshot().encode();
    times.lap(2);
    let transfer = balancer.next_transfer();
    let deaths = balancer.peers[backend].deaths();
    // Whoever brings the connection back waits here until it is away.
    let entry = Arc::new(Away { flow, backend, fate: Mutex::default() });
    let mut fate = lock(&entry.fate);
    lock(&balancer.away).insert(transfer, Arc::clone(&entry));
    let attempt = Transfer { balancer, flow, backend, transfer }.run(frozen, snapshot, &mut times);
    if !matches!(attempt, Attempt::Gone) {
        fate.over = true;
        lock(&balancer.away).remove(&transfer);
    } else if balancer.peers[backend].deaths() != deaths {
        // It died while this one was on its way.
        end(balancer, transfer, &entry, &mut fate);
    }
    attempt
}

struct Transfer<'a> {
    balancer: &'a Balancer,
    flow: Flow,
    backend: usize,
    transfer: u64,
}

impl Transfer<'_> {
    /// Does what the state machine says, until the connection is away or back.
    fn run(&self, frozen: Frozen, snapshot: Vec<u8>, times: &mut Times) -> Attempt {
        let mut state = Outbound::Begun;
        let peer = &self.balancer.peers[self.backend];
        let Ok(mut channel) = peer.pool.take() else { return self.resume(frozen, "unreachable") };
        let mut event = peers::exchange(&mut channel, self.transfer, Body::BeginOffload(snapshot));
        if let Event::Said(Body::ServerReady { thaw_ns, rule_ns, .. }) = &event {
            times.remote(*thaw_ns, *rule_ns);
        }
        let mut reason = "control";
        let mut asked = false;
        loop {
            reason = why(&event).unwrap_or(reason);
            if let Event::Said(_) = &event {
                peer.heard();
            }
            event = match state.on(&event) {
                OutboundAction::Redirect(to) => {
                    let done = self.redirect(to);
                    times.lap(6);
                    done
                }
                OutboundAction::Confirm => self.confirm(&mut channel, times),
                OutboundAction::Ask => {
                    asked = true;
                    peer.pool.ask(self.transfer, Body::Abort(0))
                }
                OutboundAction::Release => {
                    frozen.release();
                    times.count(self.balancer);
                    if !asked {
                        peer.pool.put(channel);
                    }
                    peer.succeeded();
                    self.balancer.metrics.out.fetch_add(1, Relaxed);
                    return Attempt::Gone;
                }
                OutboundAction::Resume => return self.resume(frozen, reason),
                OutboundAction::End => return self.end(frozen),
            };
        }
    }

    fn confirm(&self, channel: &mut Channel, times: &mut Times) -> Event {
        let sent = peers::say(channel, self.transfer, Body::LbReady);
        times.lap(7);
        times.whole = times.start.elapsed().as_nanos() as u64;
        match sent {
            Event::Done => {
                let answer = peers::answer(channel, self.transfer);
                times.lap(8);
                answer
            }
            other => other,
        }
    }

    fn redirect(&self, to: SocketAddr) -> Event {
        let target = self.balancer.peers[self.backend].target(to);
        match target.and_then(|target| self.balancer.steer.redirect(&self.flow, &target)) {
            Ok(()) => Event::Done,
            Err(_) => Event::Failed,
        }
    }

    fn resume(&self, frozen: Frozen, reason: &'static str) -> Attempt {
        self.balancer.metrics.abort(reason);
        // What one connection cannot have says nothing about the next.
        if reason != Refusal::Snapshot.name() {
            self.balancer.peers[self.backend].failed();
        }
        let _ = self.balancer.steer.remove(&self.flow);
        frozen.resume().map_or(Attempt::Lost, |fd| Attempt::Kept(fd.into()))
    }

    /// Nobody knows whether the backend has it.
    fn end(&self, frozen: Frozen) -> Attempt {
        self.balancer.metrics.abort("in_doubt");
        self.balancer.peers[self.backend].failed();
        frozen.release();
        forget(self.balancer, self.flow);
        Attempt::Lost
    }
}

/// A reason for the counters.
fn why(event: &Event) -> Option<&'static str> {
    match event {
        Event::Said(Body::Refused(Refusal::NotTaken)) => None,
        Event::Said(Body::Refused(refusal)) => Some(refusal.name()),
        Event::TimedOut => Some("time_out"),
        Event::PeerLost => Some("peer_lost"),
        Event::Failed => Some("redirect"),
        _ => None,
    }
}

/// A backend died: its clients' connections end, first those that are not on their way.
pub fn end_all(balancer: &Balancer, backend: usize) {
    let entries: Vec<(u64, Arc<Away>)> = lock(&balancer.away)
        .iter()
        .filter(|(_, entry)| entry.backend == backend)
        .map(|(transfer, entry)| (*transfer, Arc::clone(entry)))
        .collect();
    let moving: Vec<_> = entries
        .iter()
        .filter(|(transfer, entry)| match entry.fate.try_lock() {
            Ok(mut fate) => {
                end(balancer, *transfer, entry, &mut fate);
                false
            }
            Err(_) => true,
        })
        .collect();
    for (transfer, entry) in moving {
        end(balancer, *transfer, entry, &mut lock(&entry.fate));
    }
}

/// Ends one whose backend died.
pub fn end(balancer: &Balancer, transfer: u64, entry: &Away, fate: &mut Fate) {
    if !std::mem::replace(&mut fate.over, true) {
        lock(&balancer.away).remove(&transfer);
        forget(balancer, entry.flow);
    }
}

/// Removes the rules of a connection that has no owner any more, and resets it.
pub fn forget(balancer: &Balancer, flow: Flow) {
    let _ = balancer.steer.remove(&flow);
    balancer.resets.end(flow);
    balancer.metrics.reset.fetch_add(1, Relaxed);
}

/// Times of the steps.
struct Times {
    start: Instant,
    last: Instant,
    whole: u64,
    ns: [u64; STEPS.len()],
}

impl Times {
    fn new() -> Times {
        let now = Instant::now();
        Times { start: now, last: now, whole: 0, ns: Default::default() }
    }

    fn lap(&mut self, step: usize) {
        self.ns[step] = self.last.elapsed().as_nanos() as u64;
        self.last = Instant::now();
    }

    /// The backend's share of the time that the control connection took.
    fn remote(&mut self, thaw_ns: u64, rule_ns: u64) {
        self.lap(3);
        self.ns[3] = self.ns[3].saturating_sub(thaw_ns).saturating_sub(rule_ns);
        (self.ns[4], self.ns[5]) = (thaw_ns, rule_ns);
    }

    fn count(&self, balancer: &Balancer) {
        balancer.metrics.total.add(self.whole);
        for (histogram, ns) in balancer.metrics.steps.iter().zip(self.ns) {
            histogram.add(ns);
        }
    }
}
