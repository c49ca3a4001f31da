//! Local ports of restored connections.
//!
//! Two balancers may hand over connections of the same client address and port. On the backend, which restores both at
//! an address of its own, they would clash; one of them gets another port.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::Error;

type Taken = Mutex<HashSet<(SocketAddr, SocketAddr)>>;

/// Which local ports are in use towards which peer.
#[derive(Clone, Debug)]
pub struct Ports {
    range: RangeInclusive<u16>,
    taken: Arc<Taken>,
}

/// A local address and port that is this connection's own until the lease is dropped.
#[derive(Debug)]
pub struct Lease {
    local: SocketAddr,
    peer: SocketAddr,
    taken: Arc<Taken>,
}

impl Ports {
    /// Ports to fall back to. Keep them out of `net.ipv4.ip_local_port_range`, or reserve them in
    /// `net.ipv4.ip_local_reserved_ports`.
    pub fn new(range: RangeInclusive<u16>) -> Ports {
        Ports { range, taken: Arc::default() }
    }

    /// `local` itself if it is free towards `peer`, else the same address with a port of the range. If `thaw` refuses it
    /// with `AddressInUse`, another process has it: ask again, and keep the refused lease until one is taken.
    ///
    /// # Errors
    /// [`Error::NoPort`] if the whole range is in use towards this peer.
    pub fn lease(&self, local: SocketAddr, peer: SocketAddr) -> Result<Lease, Error> {
        let mut taken = lock(&self.taken);
        let (first, last) = (*self.range.start(), *self.range.end());
        let size = usize::from(last.saturating_sub(first)) + 1;
        // Where to begin differs by peer, so that the first try is free as a rule.
        let skip = BuildHasherDefault::<DefaultHasher>::default().hash_one(peer) as usize % size;
        let others = self.range.clone().chain(self.range.clone()).skip(skip).take(size);
        let ports = std::iter::once(local.port()).chain(others);
        for local in ports.map(|port| SocketAddr::new(local.ip(), port)) {
            if taken.insert((local, peer)) {
                return Ok(Lease { local, peer, taken: Arc::clone(&self.taken) });
            }
        }
        Err(Error::NoPort { first, last, peer })
    }
}

impl Lease {
    /// Where the connection can be restored.
    pub fn local(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.taken).remove(&(self.local, self.peer));
    }
}

fn lock(taken: &Taken) -> MutexGuard<'_, HashSet<(SocketAddr, SocketAddr)>> {
    taken.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_connections_get_the_same_port() {
        let ports = Ports::new(9000..=9002);
        let (local, peer): (SocketAddr, SocketAddr) = ("10.0.0.3:80".parse().unwrap(), "10.0.0.1:5".parse().unwrap());
        let other: SocketAddr = "10.0.0.1:6".parse().unwrap();
        let mut leases: Vec<Lease> = (0..4).map(|_| ports.lease(local, peer).unwrap()).collect();
        assert_eq!(leases[0].local(), local, "its own port first");
        let mut seen: Vec<u16> = leases.iter().map(|lease| lease.local().port()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [80, 9000, 9001, 9002]);
        let error = ports.lease(local, peer).unwrap_err();
        assert!(matches!(error, Error::NoPort { first: 9000, last: 9002, .. }), "{error}");
        assert_eq!(ports.lease(local, other).unwrap().local(), local, "another peer does not matter");
        let free = leases.remove(1).local();
        assert_eq!(ports.lease(local, peer).unwrap().local(), free, "a lease ends when it is dropped");
    }
}
