//! The counters of the library inside a proxy.

use std::time::Duration;

use underdeck_stats::ReadError;
pub use underdeck_stats::{Reason, Role, RoleSnapshot, Snapshot};

use crate::proxy::Proxy;
use crate::{LabError, wait};

/// Sums the counters of all processes of a proxy that serve. None if the library is in none of them.
pub fn snapshot(proxy: &Proxy) -> Option<Snapshot> {
    let all: Vec<Snapshot> = proxy.workers().into_iter().filter_map(|pid| Snapshot::of_pid(pid).ok()).collect();
    (!all.is_empty()).then(|| Snapshot::sum(&all))
}

/// Reads the counters of one process.
pub fn of_pid(pid: u32) -> Result<Snapshot, ReadError> {
    Snapshot::of_pid(pid)
}

/// Waits until no anchor is open and no byte held; orphaned anchors are kept for a grace period of 5 s, twice at most.
pub fn settled(proxy: &Proxy, within: Duration) -> Result<Snapshot, LabError> {
    let what = || format!("no anchor open in {}: {:?}", proxy.process().name(), snapshot(proxy));
    let settled = wait::until("", within, || snapshot(proxy).filter(|it| it.anchors_open == 0 && it.bytes_held == 0));
    settled.map_err(|_| LabError::Timeout { what: what(), within })
}

/// Payload bytes that were anchored, whether or not they were put back later.
pub fn anchored(of: &Snapshot) -> u64 {
    of.roles.iter().map(|role| role.bytes_anchored).sum()
}

/// Payload bytes anchored and copied, received on any socket.
pub fn anchored_and_copied(of: &Snapshot) -> (u64, u64) {
    let anchored = of.roles.iter().map(|role| role.bytes_anchored - role.bytes_materialised.min(role.bytes_anchored));
    let copied = of.roles.iter().map(|role| role.bytes_copied + role.bytes_materialised);
    (anchored.sum(), copied.sum())
}
