//! Takes connections that a balancer hands over.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use underdeck_handoff_control::machine::Event;
use underdeck_handoff_control::message::{Body, Done, Message, Refusal};
use underdeck_handoff_control::tls::Channel;
use underdeck_handoff_steer::{Flow, Lease};
use underdeck_handoff_tcp::{Snapshot, Thawing, thaw};

use crate::backend::Backend;
use crate::past::Past;
use crate::{lock, peers, spawn};

/// How often another port is tried.
const PORTS: usize = 8;

/// A connection that was handed over. Its rules stand until this is dropped, and the balancer is told then.
pub struct Owned {
    pub backend: Arc<Backend>,
    pub transfer: u64,
    pub flow: Flow,
    /// The address that the client knows.
    pub local: SocketAddr,
    /// Which attempt to give it back comes next.
    pub generation: u32,
    /// No attempt before this time, because one has failed.
    pub stays: Option<Instant>,
    /// The balancer has it.
    pub gone: bool,
    _lease: Lease,
}

impl Owned {
    pub fn balancer(&self) -> SocketAddr {
        SocketAddr::new(self.local.ip(), self.backend.config.balancer_port)
    }

    pub fn done(&self, snapshot: Vec<u8>) -> Done {
        Done { generation: self.generation, at: self.flow.local, local: self.local, peer: self.flow.peer, snapshot }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let backend = &self.backend;
        let _ = backend.steer.remove(&self.flow);
        if !self.gone {
            backend.tell_ended(self.balancer(), self.transfer, self.done(Vec::new()));
        }
        backend.transfers.end(self.transfer, Outcome::Taken);
        backend.transfers.owned.fetch_sub(1, Relaxed);
    }
}

/// How far a transfer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Restoring,
    /// The balancer has asked, and heard that it is not taken: LB_READY comes too late.
    Aborted,
    Taken,
}

/// What became of a transfer.
#[derive(Clone, Copy)]
pub enum Outcome {
    NotTaken,
    Taken,
}

/// The transfers of this process.
pub struct Transfers {
    now: Mutex<HashMap<u64, Arc<Mutex<Stage>>>>,
    past: Mutex<Past<Outcome>>,
    owned: AtomicU32,
}

impl Transfers {
    pub fn new() -> Transfers {
        Transfers { now: Mutex::default(), past: Mutex::new(Past::new()), owned: AtomicU32::new(0) }
    }

    /// How many connections are here.
    pub fn owned(&self) -> u32 {
        self.owned.load(Relaxed)
    }

    /// None for a transfer that is known already.
    fn begin(&self, transfer: u64) -> Option<Arc<Mutex<Stage>>> {
        let mut now = lock(&self.now);
        if now.contains_key(&transfer) || lock(&self.past).get(transfer).is_some() {
            return None;
        }
        let stage = Arc::new(Mutex::new(Stage::Restoring));
        now.insert(transfer, Arc::clone(&stage));
        Some(stage)
    }

    fn end(&self, transfer: u64, outcome: Outcome) {
        // In this order a question always finds one of the two.
        lock(&self.past).add(transfer, outcome);
        lock(&self.now).remove(&transfer);
    }

    /// The balancer asks whether a connection is here. If it is not, it never will be.
    pub fn abort(&self, transfer: u64) -> Body {
        let stage = lock(&self.now).get(&transfer).cloned();
        if let Some(stage) = stage {
            let mut stage = lock(&stage);
            if *stage == Stage::Taken {
                return Body::Taken;
            }
            *stage = Stage::Aborted;
            return Body::Refused(Refusal::NotTaken);
        }
        match lock(&self.past).get(transfer) {
            Some(Outcome::Taken) => Body::Taken,
            Some(Outcome::NotTaken) => Body::Refused(Refusal::NotTaken),
            None => Body::Refused(Refusal::Transfer),
        }
    }
}

/// A connection in repair mode, with its source rule.
struct Restored {
    thawing: Thawing,
    lease: Lease,
    flow: Flow,
    local: SocketAddr,
    read: Vec<u8>,
}

impl Backend {
    /// BEGIN_OFFLOAD, and all that follows on this control connection.
    pub fn take(self: &Arc<Self>, channel: &mut Channel, transfer: u64, snapshot: &[u8]) -> io::Result<()> {
        let refuse = |channel: &mut Channel, refusal: Refusal| {
            self.metrics.abort(refusal.name());
            channel.send(&Message { transfer, body: Body::Refused(refusal) })
        };
        let Some(stage) = self.transfers.begin(transfer) else { return refuse(channel, Refusal::Transfer) };
        let taken = self.restore(snapshot).and_then(|(restored, times)| {
            self.take_restored(channel, transfer, &stage, restored, times).map_err(Refused::After)
        });
        if taken.is_err() {
            self.transfers.end(transfer, Outcome::NotTaken);
        }
        match taken {
            Ok(()) => channel.send(&Message { transfer, body: Body::Taken }),
            Err(Refused::Before(refusal) | Refused::After(Some(refusal))) => refuse(channel, refusal),
            Err(Refused::After(None)) => {
                self.metrics.abort("not_confirmed");
                // The channel may still bring the message that was awaited: nobody is to read it as another's.
                Err(io::ErrorKind::ConnectionAborted.into())
            }
        }
    }

    /// Silently: nothing leaves, and nothing stays if it fails.
    fn restore(&self, snapshot: &[u8]) -> Result<(Restored, (u64, u64)), Refused> {
        let before = Refused::Before;
        if self.transfers.owned() >= self.config.max_connections {
            return Err(before(Refusal::Full));
        }
        let start = Instant::now();
        let snapshot = Snapshot::decode(snapshot).map_err(|_| before(Refusal::Snapshot))?;
        let (mut thawing, lease) = self.thaw(&snapshot).map_err(before)?;
        let thawed = Instant::now();
        let flow = Flow { local: lease.local(), peer: snapshot.peer() };
        let local = snapshot.local();
        // The block holds until LB_READY: what is acknowledged before that is lost if the balancer goes back on it.
        let ruled = self.steer.rewrite_source(&flow, local).and_then(|()| self.steer.block(&flow));
        let rule_ns = thawed.elapsed().as_nanos() as u64;
        let restored = match ruled {
            Ok(()) => thawing.half_close().map_err(|_| Refusal::Snapshot),
            Err(_) => Err(Refusal::Steering),
        };
        if let Err(refusal) = restored {
            // While it is there, the socket would answer for itself; then nobody does.
            drop(thawing);
            let _ = self.steer.remove(&flow);
            return Err(before(refusal));
        }
        let thaw_ns = (start.elapsed().as_nanos() as u64).saturating_sub(rule_ns);
        let read = snapshot.blob().to_vec();
        Ok((Restored { thawing, lease, flow, local, read }, (thaw_ns, rule_ns)))
    }

    /// SERVER_READY, and with LB_READY the connection is ours. The refusal is None if there is nobody to tell.
    fn take_restored(
        self: &Arc<Self>,
        channel: &mut Channel,
        transfer: u64,
        stage: &Mutex<Stage>,
        restored: Restored,
        (thaw_ns, rule_ns): (u64, u64),
    ) -> Result<(), Option<Refusal>> {
        let Restored { thawing, lease, flow, local, read } = restored;
        let go = peers::exchange(channel, transfer, Body::ServerReady { local: flow.local, thaw_ns, rule_ns });
        // A question that comes now waits for the outcome.
        let mut stage = lock(stage);
        let refusal = match go {
            Event::Said(Body::LbReady) if *stage == Stage::Restoring => {
                *stage = Stage::Taken;
                // It fails only if the kernel does, and then nothing would be heard of the client.
                let _ = self.steer.remove_ingress(&flow);
                match thawing.finish() {
                    Ok(fd) => self.own(fd.into(), read, transfer, flow, local, lease),
                    // The client has heard of the end already.
                    Err(_) => {
                        self.transfers.owned.fetch_add(1, Relaxed);
                        drop(self.owned(transfer, flow, local, lease));
                    }
                }
                return Ok(());
            }
            Event::Said(Body::LbReady) => Some(Refusal::NotTaken),
            Event::PeerLost => {
                // If the balancer has died, the next one has inherited a redirection to nobody.
                let balancer = SocketAddr::new(local.ip(), self.config.balancer_port);
                let ended = Done { generation: 0, at: flow.local, local, peer: flow.peer, snapshot: Vec::new() };
                self.tell_later(balancer, transfer, ended);
                None
            }
            _ => None,
        };
        let _ = self.steer.remove(&flow);
        *stage = Stage::Aborted;
        Err(refusal)
    }

    fn own(
        self: &Arc<Self>,
        stream: TcpStream,
        read: Vec<u8>,
        transfer: u64,
        flow: Flow,
        local: SocketAddr,
        lease: Lease,
    ) {
        self.metrics.out.fetch_add(1, Relaxed);
        self.transfers.owned.fetch_add(1, Relaxed);
        let owned = self.owned(transfer, flow, local, lease);
        let backend = Arc::clone(self);
        // Without a thread the connection is closed, and its rules go.
        let _ = spawn("client", move || backend.serve(stream, read, owned));
    }

    fn owned(self: &Arc<Self>, transfer: u64, flow: Flow, local: SocketAddr, lease: Lease) -> Owned {
        let backend = Arc::clone(self);
        Owned { backend, transfer, flow, local, generation: 0, stays: None, gone: false, _lease: lease }
    }

    /// At the first free port.
    fn thaw(&self, snapshot: &Snapshot) -> Result<(Thawing, Lease), Refusal> {
        let wanted = SocketAddr::new(self.config.listen.ip(), snapshot.local().port());
        let mut taken = Vec::new();
        for _ in 0..PORTS {
            let lease = self.ports.lease(wanted, snapshot.peer()).map_err(|_| Refusal::Full)?;
            match thaw(snapshot, lease.local()) {
                Ok(thawing) => return Ok((thawing, lease)),
                Err(underdeck_handoff_tcp::Error::AddressInUse { .. }) => taken.push(lease),
                Err(_) => return Err(Refusal::Snapshot),
            }
        }
        Err(Refusal::Full)
    }
}

/// Why a connection was not taken.
enum Refused {
    /// Before SERVER_READY.
    Before(Refusal),
    /// After it. None if LB_READY did not come.
    After(Option<Refusal>),
}
