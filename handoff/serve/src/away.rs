//! Connections that are with a backend, and how they get there.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use underdeck_handoff_control::machine::{Event, Outbound, OutboundAction};
use underdeck_handoff_control::message::{Body, Message, Refusal};
use underdeck_handoff_control::tls::Channel;
use underdeck_handoff_steer::Flow;
use underdeck_handoff_tcp::{Frozen, Snapshot, freeze, thaw};

use crate::balancer::Balancer;
use crate::reset;

/// A connection that is with a backend.
pub struct Away {
    pub flow: Flow,
    pub backend: usize,
}

/// How an attempt ended.
pub enum Attempt {
    /// The backend owns the connection.
    Gone,
    /// It goes on here.
    Kept(TcpStream),
    /// It is lost: the kernel did not give it back.
    Lost,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Hands a connection to a backend. `read` is what was read of it and not answered.
pub fn hand_out(balancer: &Balancer, stream: TcpStream, backend: usize, read: &[u8]) -> Attempt {
    let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return Attempt::Kept(stream) };
    let flow = Flow { local, peer };
    let mut times = Times::new();
    if balancer.steer.block(&flow).is_err() {
        balancer.metrics.abort("full");
        return Attempt::Kept(stream);
    }
    times.lap(0);
    let frozen = match freeze(stream.into(), read) {
        Ok(frozen) => frozen,
        Err(error) => {
            balancer.metrics.abort("freeze");
            let _ = balancer.steer.remove(&flow);
            return Attempt::Kept(error.into_fd().into());
        }
    };
    times.lap(1);
    let snapshot = frozen.snapshot().encode();
    times.lap(2);
    let transfer = balancer.next_transfer();
    // Whoever brings the connection back waits here until it is away.
    let entry = Arc::new(Mutex::new(Away { flow, backend }));
    let held = lock(&entry);
    lock(&balancer.away).insert(transfer, Arc::clone(&entry));
    let attempt = Transfer { balancer, flow, backend, transfer }.run(frozen, snapshot, &mut times);
    if !matches!(attempt, Attempt::Gone) {
        lock(&balancer.away).remove(&transfer);
    }
    drop(held);
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
        let mut channel = match peer.pool.take() {
            Ok(channel) => channel,
            Err(_) => return self.resume(frozen, "unreachable"),
        };
        let mut reason = "control";
        let mut event = self.begin(&mut channel, snapshot);
        if let Event::Said(Body::ServerReady { thaw_ns, rule_ns, .. }) = &event {
            times.remote(*thaw_ns, *rule_ns);
        }
        loop {
            if let Event::Said(Body::Refused(refusal)) = &event {
                reason = refusal.name();
            }
            event = match state.on(&event) {
                OutboundAction::Redirect(to) => {
                    let done = self.redirect(to);
                    times.lap(6);
                    done
                }
                OutboundAction::Confirm => self.say(&mut channel, Body::LbReady),
                OutboundAction::Release => {
                    frozen.release();
                    times.lap(7);
                    times.count(self.balancer);
                    peer.pool.put(channel);
                    self.balancer.metrics.out.fetch_add(1, Relaxed);
                    return Attempt::Gone;
                }
                OutboundAction::Resume => return self.resume(frozen, reason),
            };
        }
    }

    fn begin(&self, channel: &mut Channel, snapshot: Vec<u8>) -> Event {
        match self.say(channel, Body::BeginOffload(snapshot)) {
            Event::Done => answer(channel, self.transfer),
            other => other,
        }
    }

    fn say(&self, channel: &mut Channel, body: Body) -> Event {
        match channel.send(&Message { transfer: self.transfer, body }) {
            Ok(()) => Event::Done,
            Err(error) => broken(&error),
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
        let _ = self.balancer.steer.remove(&self.flow);
        frozen.resume().map_or(Attempt::Lost, |fd| Attempt::Kept(fd.into()))
    }
}

/// The next message, which must be about this transfer.
pub fn answer(channel: &mut Channel, transfer: u64) -> Event {
    match channel.receive() {
        Ok(message) if message.transfer == transfer => Event::Said(message.body),
        Ok(_) => Event::Failed,
        Err(error) => broken(&error),
    }
}

pub fn broken(error: &io::Error) -> Event {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Event::TimedOut,
        _ => Event::PeerLost,
    }
}

/// A backend is done with a connection: it has ended, or comes back.
pub fn take_back(balancer: &Arc<Balancer>, channel: &mut Channel, transfer: u64, snapshot: &[u8]) -> io::Result<()> {
    let mut say = |body| channel.send(&Message { transfer, body });
    let Some(entry) = lock(&balancer.away).remove(&transfer) else {
        let known = snapshot.is_empty();
        return say(if known { Body::EndOffload } else { Body::Refused(Refusal::Transfer) });
    };
    let away = lock(&entry);
    if snapshot.is_empty() {
        let _ = balancer.steer.remove(&away.flow);
        return say(Body::EndOffload);
    }
    let restored = Snapshot::decode(snapshot)
        .ok()
        .and_then(|snapshot| Some((thaw(&snapshot, away.flow.local).ok()?, snapshot.blob().to_vec())));
    let Some((thawing, read)) = restored else {
        balancer.metrics.abort("take_back");
        lock(&balancer.away).insert(transfer, Arc::clone(&entry));
        return say(Body::Refused(Refusal::Snapshot));
    };
    let _ = balancer.steer.remove(&away.flow);
    let fd = thawing.finish();
    say(Body::EndOffload)?;
    if let Ok(fd) = fd {
        balancer.metrics.back.fetch_add(1, Relaxed);
        let stream = TcpStream::from(fd);
        stream.set_nonblocking(false)?;
        let balancer = Arc::clone(balancer);
        std::thread::spawn(move || balancer.serve(stream, read));
    }
    Ok(())
}

/// A backend died: its clients' connections end.
pub fn end_all(balancer: &Balancer, backend: usize) {
    let entries: Vec<(u64, Arc<Mutex<Away>>)> =
        lock(&balancer.away).iter().map(|(transfer, entry)| (*transfer, Arc::clone(entry))).collect();
    for (transfer, entry) in entries {
        let away = lock(&entry);
        if away.backend == backend && lock(&balancer.away).remove(&transfer).is_some() {
            let _ = balancer.steer.remove(&away.flow);
            let _ = reset::provoke(&away.flow);
            balancer.metrics.reset.fetch_add(1, Relaxed);
        }
    }
}

/// Times of the steps.
struct Times {
    start: Instant,
    last: Instant,
    ns: [u64; crate::metrics::STEPS.len()],
}

impl Times {
    fn new() -> Times {
        let now = Instant::now();
        Times { start: now, last: now, ns: Default::default() }
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
        balancer.metrics.total.add(self.start.elapsed().as_nanos() as u64);
        for (histogram, ns) in balancer.metrics.steps.iter().zip(self.ns) {
            histogram.add(ns);
        }
    }
}
