//! What was learnt about each peer: how large its messages are, and whether anchoring them was worth it.

use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, Ordering::Relaxed};
use std::hash::{DefaultHasher, Hasher};

use libc::c_int;

/// Bytes of balance (materialised minus forwarded) at which a route goes back to plain copies.
const HOPELESS: i32 = 256 << 10;
/// No route can have more credit than that, so that a change is noticed soon.
const CREDIT_MOST: i32 = 4 << 20;
/// Messages that are copied before a route that had gone back is tried again; doubles each time, up to 2⁶ times that.
const COPIED_AT_FIRST: u16 = 256;

/// One peer, or one listener. Peers whose addresses fall together share what was learnt; that costs speed, never bytes.
#[derive(Default)]
struct Route {
    /// How sure it is that bodies are large: 0 (small) to 3 (large).
    large: AtomicU8,
    seen: AtomicU8,
    balance: AtomicI32,
    /// Messages still to be copied.
    copy: AtomicU16,
    /// How often the route had gone back.
    relapses: AtomicU8,
    /// Of a listener: where its uploads leave, see [`crate::probes`].
    proof: AtomicU8,
}

/// No upload was seen to leave yet.
const UNPROVEN: u8 = 0;
/// They leave on connections that are followed.
const PROVEN: u8 = 1;
/// Some do not.
const DISPROVEN: u8 = 2;

/// All routes of a process.
pub(crate) struct Routes([Route; 256]);

impl Default for Routes {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Route::default()))
    }
}

/// The route of a listener, by its descriptor. No two of 256 in turn fall together: what one has proven, another has not.
pub(crate) fn of_listener(fd: c_int) -> u8 {
    fd as u8
}

/// The route of a peer's address, as bytes.
pub(crate) fn of(address: &[u8]) -> u8 {
    let mut hasher = DefaultHasher::new();
    hasher.write(address);
    hasher.finish() as u8
}

impl Routes {
    /// A message begins whose payload is large enough to be anchored, or not.
    pub(crate) fn message(&self, route: u8, large: bool) {
        let route = &self.0[usize::from(route)];
        route.seen.store(1, Relaxed);
        let sure = route.large.load(Relaxed);
        route.large.store(if large { (sure + 1).min(3) } else { sure.saturating_sub(1) }, Relaxed);
    }

    /// Whether the next message is likely to be large. Where nothing is known: yes.
    pub(crate) fn expects_large(&self, route: u8) -> bool {
        let route = &self.0[usize::from(route)];
        route.seen.load(Relaxed) == 0 || route.large.load(Relaxed) > 0
    }

    /// Whether the message that begins is to be copied because anchoring did not pay.
    pub(crate) fn copies(&self, route: u8) -> bool {
        let copy = &self.0[usize::from(route)].copy;
        copy.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Whether anchoring has not paid lately: what is under way may as well be copied.
    pub(crate) fn has_relapsed(&self, route: u8) -> bool {
        self.0[usize::from(route)].copy.load(Relaxed) > 0
    }

    /// Whether uploads to the listener leave on connections that are followed, as far as is known.
    pub(crate) fn is_proven(&self, listener: u8) -> bool {
        self.0[usize::from(listener)].proof.load(Relaxed) == PROVEN
    }

    /// Whether that is still to be found out.
    pub(crate) fn is_unproven(&self, listener: u8) -> bool {
        self.0[usize::from(listener)].proof.load(Relaxed) == UNPROVEN
    }

    /// An upload left on a connection that is followed.
    pub(crate) fn prove(&self, listener: u8) {
        let proof = &self.0[usize::from(listener)].proof;
        // Not where it was disproven; whether that has just happened does not matter.
        let _ = proof.compare_exchange(UNPROVEN, PROVEN, Relaxed, Relaxed);
    }

    /// An upload was to leave on a connection that nobody follows: those to come are copied, for good.
    pub(crate) fn disprove(&self, listener: u8) {
        self.0[usize::from(listener)].proof.store(DISPROVEN, Relaxed);
    }

    pub(crate) fn forwarded(&self, route: u8, bytes: usize) {
        let balance = &self.0[usize::from(route)].balance;
        let now = balance.load(Relaxed);
        if now > -CREDIT_MOST {
            balance.store(now.saturating_sub(clamp(bytes)), Relaxed);
        }
    }

    pub(crate) fn materialised(&self, route: u8, bytes: usize) {
        let route = &self.0[usize::from(route)];
        let balance = route.balance.load(Relaxed).saturating_add(clamp(bytes));
        if balance < HOPELESS {
            route.balance.store(balance, Relaxed);
        } else if route.copy.load(Relaxed) == 0 {
            let relapses = route.relapses.load(Relaxed).min(6);
            route.relapses.store(relapses + 1, Relaxed);
            route.copy.store(COPIED_AT_FIRST << relapses, Relaxed);
            // The next try needs only one message to show that nothing has changed.
            route.balance.store(HOPELESS / 2, Relaxed);
        }
    }
}

fn clamp(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_is_always_materialised_goes_back_to_copies_and_is_tried_again() {
        let routes = Routes::default();
        assert!(!routes.copies(3));
        routes.materialised(3, 1 << 20);
        for message in 0..COPIED_AT_FIRST {
            assert!(routes.copies(3), "message {message}");
        }
        assert!(!routes.copies(3), "one message is a new try");
        routes.materialised(3, 1 << 20);
        assert_eq!((0..10_000).take_while(|_| routes.copies(3)).count(), usize::from(COPIED_AT_FIRST) * 2);
    }

    #[test]
    fn a_few_materialised_bytes_do_not_end_a_route_that_pays() {
        let routes = Routes::default();
        routes.forwarded(1, 64 << 20);
        for _ in 0..16 {
            routes.materialised(1, 64 << 10);
        }
        assert!(!routes.copies(1));
    }

    #[test]
    fn what_is_disproven_is_not_proven_again() {
        let routes = Routes::default();
        assert!(routes.is_unproven(4) && !routes.is_proven(4));
        routes.prove(4);
        assert!(routes.is_proven(4) && !routes.is_unproven(4));
        assert!(routes.is_unproven(5), "another listener");
        routes.disprove(4);
        routes.prove(4);
        assert!(!routes.is_proven(4) && !routes.is_unproven(4));
    }

    #[test]
    fn sizes_are_learnt_and_unlearnt() {
        let routes = Routes::default();
        assert!(routes.expects_large(9));
        routes.message(9, false);
        assert!(!routes.expects_large(9));
        routes.message(9, true);
        assert!(routes.expects_large(9));
    }
}
