//! What was learnt about each peer: how large its messages are, and whether anchoring them was worth it.

use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, Ordering::Relaxed};
use std::hash::{DefaultHasher, Hasher};

use libc::c_int;

/// Bytes of balance (materialised minus forwarded) at which a route goes back to plain copies.
const HOPELESS: i32 = 256 << 10;
/// Where the balance stands while a route is copied: a new try fails when [`HOPELESS`] minus this was materialised.
const DOUBTFUL: i32 = HOPELESS / 2;
/// No route can have more credit than that, so that a change is noticed soon. A route that earned it is as good as new.
const CREDIT_MOST: i32 = 4 << 20;
/// Messages that are copied before a route that had gone back is tried again; doubles with each try that fails.
const COPIED_AT_FIRST: u16 = 16;
/// How often it doubles: up to 16384 messages.
///
/// What a route costs that never pays, as bytes materialised per byte copied: a try ends after 128 KiB, in the middle of
/// a message where that is longer. From the last doubling on that is 1 in 16384 with messages of 128 KiB, 1 in 32768 with
/// 256 KiB, 1 in 131072 with 1 MiB. What other messages under way hold at that moment is materialised as well: were it
/// 256 whole messages, 256 in 16384, which is 1.6 %, and a byte that is put back costs about one more copy. On the way
/// there, all tries together are 12 times 128 KiB: below 2 % once 500 messages of 128 KiB were copied, 240 of 256 KiB or
/// 48 of 1 MiB.
const DOUBLINGS: u8 = 10;

/// One peer, or one listener. Peers whose addresses fall together share what was learnt; that costs speed, never bytes.
#[derive(Default)]
struct Route {
    /// How sure it is that bodies are large: 0 (small) to 3 (large).
    large: AtomicU8,
    seen: AtomicU8,
    balance: AtomicI32,
    /// Messages still to be copied.
    copy: AtomicU16,
    /// How often the route had gone back since it last paid.
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
        let route = &self.0[usize::from(route)];
        let now = route.balance.load(Relaxed);
        if now > -CREDIT_MOST {
            let balance = now.saturating_sub(clamp(bytes));
            route.balance.store(balance, Relaxed);
            if balance <= -CREDIT_MOST {
                route.relapses.store(0, Relaxed);
            }
        }
    }

    pub(crate) fn materialised(&self, route: u8, bytes: usize) {
        let route = &self.0[usize::from(route)];
        let balance = route.balance.load(Relaxed).saturating_add(clamp(bytes));
        if route.copy.load(Relaxed) > 0 {
            // From before: it says nothing about the next try.
            return route.balance.store(balance.min(DOUBTFUL), Relaxed);
        }
        if balance < HOPELESS {
            return route.balance.store(balance, Relaxed);
        }
        let relapses = route.relapses.load(Relaxed).min(DOUBLINGS);
        route.relapses.store(relapses + 1, Relaxed);
        route.copy.store(COPIED_AT_FIRST << relapses, Relaxed);
        route.balance.store(DOUBTFUL, Relaxed);
    }
}

fn clamp(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many messages are copied before the next one is anchored.
    fn copied(routes: &Routes, route: u8) -> usize {
        (0..100_000).take_while(|_| routes.copies(route)).count()
    }

    #[test]
    fn a_route_that_is_always_materialised_is_tried_again_ever_more_seldom() {
        let routes = Routes::default();
        assert_eq!(copied(&routes, 3), 0);
        let bouts: Vec<_> = (0..13)
            .map(|_| {
                routes.materialised(3, 1 << 20);
                assert!(routes.has_relapsed(3));
                copied(&routes, 3)
            })
            .collect();
        assert_eq!(bouts, [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 16384, 16384]);
    }

    /// Percent of the bytes that are materialised on a route that never pays, of `messages` messages of `size` bytes in
    /// pieces of 16 KiB, one after the other.
    fn cost(messages: usize, size: usize) -> f64 {
        const PIECE: usize = 16 << 10;
        let routes = Routes::default();
        let mut materialised = 0;
        for _ in 0..messages {
            if routes.copies(5) {
                continue;
            }
            let mut left = size;
            while left > 0 && !routes.has_relapsed(5) {
                routes.materialised(5, PIECE);
                (materialised, left) = (materialised + PIECE, left - PIECE);
            }
        }
        materialised as f64 / (messages * size) as f64 * 100.0
    }

    #[test]
    fn a_route_that_never_pays_costs_less_than_2_percent() {
        for (messages, size) in [(500, 128 << 10), (240, 256 << 10), (48, 1 << 20)] {
            for more in [1, 2, 100] {
                let cost = cost(messages * more, size);
                assert!(cost < 2.0, "{cost} % of {} messages of {size} bytes", messages * more);
            }
        }
    }

    #[test]
    fn a_route_that_pays_again_forgets_that_it_did_not() {
        let routes = Routes::default();
        for bout in [16, 32, 64] {
            routes.materialised(4, 1 << 20);
            assert_eq!(copied(&routes, 4), bout);
        }
        routes.forwarded(4, 2 << 20);
        routes.materialised(4, 4 << 20);
        assert_eq!(copied(&routes, 4), 128, "it has not paid enough");
        for _ in 0..5 {
            routes.forwarded(4, 1 << 20);
        }
        assert_eq!(copied(&routes, 4), 0);
        routes.materialised(4, 8 << 20);
        assert_eq!(copied(&routes, 4), 16);
    }

    #[test]
    fn what_was_under_way_does_not_spoil_the_next_try() {
        let routes = Routes::default();
        for _ in 0..64 {
            routes.materialised(6, 256 << 10);
        }
        assert_eq!(copied(&routes, 6), 16);
        routes.materialised(6, 127 << 10);
        assert_eq!(copied(&routes, 6), 0, "less than a message was materialised");
        routes.materialised(6, 1 << 10);
        assert_eq!(copied(&routes, 6), 32);
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
