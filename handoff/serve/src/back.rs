//! Connections that come back from a backend, or have ended there.

use std::collections::hash_map::Entry;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{io, thread};

use underdeck_handoff_control::message::{Body, Done, Refusal};
use underdeck_handoff_steer::{Action, Flow};
use underdeck_handoff_tcp::{Snapshot, thaw};

use crate::away::{self, Away, forget};
use crate::balancer::Balancer;
use crate::{lock, spawn};

/// How often redirections of an earlier process are looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// What came of an attempt to restore a connection.
enum Restored {
    Here(TcpStream, Vec<u8>),
    /// The backend still has it.
    No,
    /// It is gone.
    Lost,
}

/// A backend is done with a connection. Returns the answer.
pub fn take_back(balancer: &Arc<Balancer>, transfer: u64, done: &Done) -> Body {
    let entry = lock(&balancer.away).get(&transfer).cloned();
    match entry {
        Some(entry) => of_mine(balancer, transfer, &entry, done),
        None => of_an_earlier_process(balancer, transfer, done),
    }
}

fn of_mine(balancer: &Arc<Balancer>, transfer: u64, entry: &Away, done: &Done) -> Body {
    balancer.peers[entry.backend].heard();
    let mut fate = lock(&entry.fate);
    if fate.over || done.generation < fate.fence {
        return Body::Refused(Refusal::Transfer);
    }
    if done.snapshot.is_empty() {
        fate.over = true;
        let _ = balancer.steer.remove(&entry.flow);
        lock(&balancer.away).remove(&transfer);
        return Body::EndOffload;
    }
    let restored = restore(balancer, entry.flow, &done.snapshot);
    if let Restored::No = restored {
        if !balancer.peers[entry.backend].is_alive() {
            away::end(balancer, transfer, entry, &mut fate);
        }
        return Body::Refused(Refusal::Snapshot);
    }
    // A question about it that comes now must find one of the two.
    lock(&balancer.returned).add(transfer, ());
    fate.over = true;
    lock(&balancer.away).remove(&transfer);
    go_on(balancer, entry.flow, restored)
}

/// Redirections that a process before this one left: only their rule is known.
fn of_an_earlier_process(balancer: &Arc<Balancer>, transfer: u64, done: &Done) -> Body {
    let flow = Flow { local: done.local, peer: done.peer };
    // A backend that does not have it (any more) has no say.
    let target = match lock(&balancer.inherited).entry(flow) {
        Entry::Occupied(known) if *known.get() == done.at => Some(known.remove()),
        _ => None,
    };
    if done.snapshot.is_empty() {
        if target.is_some() {
            let _ = balancer.steer.remove(&flow);
            // It may have been on its way when the process before this one died; else there is nobody to be reset.
            balancer.resets.end(flow);
        }
        return Body::EndOffload;
    }
    let Some(target) = target else { return Body::Refused(Refusal::Transfer) };
    let restored = restore(balancer, flow, &done.snapshot);
    if let Restored::No = restored {
        lock(&balancer.inherited).insert(flow, target);
        return Body::Refused(Refusal::Snapshot);
    }
    lock(&balancer.returned).add(transfer, ());
    go_on(balancer, flow, restored)
}

fn restore(balancer: &Balancer, flow: Flow, snapshot: &[u8]) -> Restored {
    // Another connection's snapshot is no better than a broken one.
    let snapshot = Snapshot::decode(snapshot).ok().filter(|snapshot| snapshot.peer() == flow.peer);
    let thawing = snapshot.and_then(|snapshot| {
        let mut thawing = thaw(&snapshot, flow.local).ok()?;
        // Silently: the redirection blocks what would leave here.
        thawing.half_close().ok()?;
        Some((thawing, snapshot.blob().to_vec()))
    });
    let Some((thawing, read)) = thawing else {
        balancer.metrics.abort("take_back");
        return Restored::No;
    };
    let _ = balancer.steer.remove(&flow);
    match thawing.finish() {
        Ok(fd) => Restored::Here(fd.into(), read),
        Err(_) => Restored::Lost,
    }
}

fn go_on(balancer: &Arc<Balancer>, flow: Flow, restored: Restored) -> Body {
    match restored {
        Restored::Here(stream, read) => {
            balancer.metrics.back.fetch_add(1, Relaxed);
            let balancer = Arc::clone(balancer);
            // Without a thread the connection is closed.
            let _ = spawn("client", move || balancer.serve(stream, read));
        }
        Restored::No | Restored::Lost => {
            balancer.metrics.abort("take_back");
            forget(balancer, flow);
        }
    }
    Body::EndOffload
}

/// A backend did not hear in time what became of its SERVER_DONE.
pub fn abort(balancer: &Balancer, transfer: u64, generation: u32) -> Body {
    let entry = lock(&balancer.away).get(&transfer).cloned();
    if let Some(entry) = entry {
        let mut fate = lock(&entry.fate);
        if !fate.over {
            fate.fence = fate.fence.max(generation.saturating_add(1));
            return Body::Refused(Refusal::NotTaken);
        }
    }
    match lock(&balancer.returned).get(transfer) {
        Some(()) => Body::EndOffload,
        None => Body::Refused(Refusal::Transfer),
    }
}

/// Takes over what an earlier process has left in the pinned map: connections that were on their way have no owner and
/// end; redirections stand until their backend is done, is dead, or nothing has come for so long that it must have ended.
pub fn inherit(balancer: &Arc<Balancer>) -> io::Result<()> {
    for rule in balancer.steer.rules().into_iter().filter(|rule| rule.inherited) {
        match rule.action {
            Action::Redirect(target) => {
                lock(&balancer.inherited).insert(rule.flow, target.address);
            }
            _ => forget(balancer, rule.flow),
        }
    }
    if lock(&balancer.inherited).is_empty() {
        return Ok(());
    }
    let balancer = Arc::clone(balancer);
    spawn("sweep", move || {
        // Longer than a backend keeps a silent connection.
        let idle = balancer.config.idle() * 2;
        let deadline = std::time::Instant::now() + idle;
        while !lock(&balancer.inherited).is_empty() {
            thread::sleep(SWEEP);
            // A rule that was never used counts as silent, so the first look comes when that is true.
            let swept = if std::time::Instant::now() < deadline {
                Ok(Vec::new())
            } else {
                balancer.steer.sweep_inherited(idle)
            };
            for flow in swept.unwrap_or_default() {
                lock(&balancer.inherited).remove(&flow);
            }
        }
    })
}

/// A backend is dead: what an earlier process sent there ends too.
pub fn end_inherited(balancer: &Balancer, backend: IpAddr) {
    let ended: Vec<Flow> =
        lock(&balancer.inherited).extract_if(|_, target| target.ip() == backend).map(|(flow, _)| flow).collect();
    for flow in ended {
        forget(balancer, flow);
    }
}
