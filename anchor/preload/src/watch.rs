//! Who waits for a descriptor with epoll: what reading ahead must know, so that nobody waits for bytes that the engine has.

use core::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, epoll_event};

use crate::table::DESCRIPTORS;

/// One descriptor's registration. Zero pages until they are used.
struct Slot {
    /// Descriptor of the epoll set plus one (the upper half), events (the lower half). 0: none.
    who: AtomicU64,
    data: AtomicU64,
}

static SLOTS: [Slot; DESCRIPTORS] = [const { Slot { who: AtomicU64::new(0), data: AtomicU64::new(0) } }; DESCRIPTORS];

/// More than one set has it, or had it.
const SEVERAL: u64 = u64::MAX;
const SET_SHIFT: u32 = 32;

/// What each descriptor costs here, in bytes.
pub(crate) const BYTES: usize = size_of::<Slot>();

/// A registration in one epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    pub(crate) set: c_int,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

impl Watch {
    /// Bits that stay when a registration is disarmed (`EP_PRIVATE_BITS` of the kernel).
    pub(crate) const PRIVATE: u32 =
        (libc::EPOLLWAKEUP | libc::EPOLLONESHOT | libc::EPOLLET | libc::EPOLLEXCLUSIVE).cast_unsigned();

    /// Whether bytes that are there are reported by every wait.
    pub(crate) fn is_level(&self) -> bool {
        self.events & libc::EPOLLET as u32 == 0
    }

    /// Whether it is disarmed when it was reported.
    pub(crate) fn is_once(&self) -> bool {
        self.events & libc::EPOLLONESHOT as u32 != 0
    }

    /// Whether it is reported once, or to one of several waiting threads.
    pub(crate) fn is_limited(&self) -> bool {
        self.events & (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32 != 0
    }
}

fn slot(fd: c_int) -> Option<&'static Slot> {
    SLOTS.get(usize::try_from(fd).ok()?)
}

/// epoll_ctl(2) succeeded.
pub(crate) fn changed(set: c_int, operation: c_int, fd: c_int, event: Option<epoll_event>) {
    let (Some(slot), Ok(set)) = (slot(fd), u64::try_from(set)) else { return };
    let before = slot.who.load(Ordering::Acquire);
    match event {
        _ if before != 0 && before >> SET_SHIFT != set + 1 => slot.who.store(SEVERAL, Ordering::Release),
        Some(_) if set >= DESCRIPTORS as u64 => slot.who.store(SEVERAL, Ordering::Release),
        Some(event) if operation != libc::EPOLL_CTL_DEL => {
            // For a reader in between nothing is certain.
            slot.who.store(SEVERAL, Ordering::Release);
            slot.data.store(event.u64, Ordering::Release);
            let who = (set + 1) << SET_SHIFT | u64::from(event.events);
            slot.who.store(who, Ordering::Release);
        }
        _ => slot.who.store(0, Ordering::Release),
    }
}

/// The descriptor is closed, and with it every registration.
pub(crate) fn forget(fd: c_int) {
    if let Some(slot) = slot(fd)
        && slot.who.load(Ordering::Relaxed) != 0
    {
        slot.who.store(0, Ordering::Release);
    }
}

/// What is known of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Nowhere,
    Once(Watch),
    /// In several sets, now or before.
    Often,
}

impl Watched {
    /// The only set that has it.
    pub(crate) fn set(&self) -> Option<c_int> {
        match self {
            Self::Once(watch) => Some(watch.set),
            _ => None,
        }
    }
}

/// Who waits for a descriptor.
pub(crate) fn of(fd: c_int) -> Watched {
    let Some(slot) = slot(fd) else { return Watched::Often };
    let who = slot.who.load(Ordering::Acquire);
    let data = slot.data.load(Ordering::Acquire);
    if who == 0 {
        return Watched::Nowhere;
    }
    if who == SEVERAL || slot.who.load(Ordering::Acquire) != who {
        return Watched::Often;
    }
    let set = ((who >> SET_SHIFT) - 1) as c_int;
    Watched::Once(Watch { set, events: who as u32, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: u32 = libc::EPOLLIN as u32;

    fn once(fd: c_int) -> Watch {
        match of(fd) {
            Watched::Once(watch) => watch,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_a_registration_in_one_set_is_known() {
        const FD: c_int = 900_001;
        let event = |events: u32| Some(epoll_event { events, u64: 7 });
        assert_eq!(of(FD), Watched::Nowhere);
        changed(5, libc::EPOLL_CTL_ADD, FD, event(IN | libc::EPOLLET as u32));
        let first = once(FD);
        assert_eq!((first.set, first.data, first.events & IN, first.is_level()), (5, 7, IN, false));
        changed(5, libc::EPOLL_CTL_MOD, FD, event(libc::EPOLLOUT as u32));
        let second = once(FD);
        assert_eq!((second.events & IN, second.is_level()), (0, true));
        changed(5, libc::EPOLL_CTL_DEL, FD, None);
        assert_eq!(of(FD), Watched::Nowhere);
        changed(5, libc::EPOLL_CTL_ADD, FD, event(IN));
        changed(6, libc::EPOLL_CTL_ADD, FD, event(IN));
        changed(6, libc::EPOLL_CTL_DEL, FD, None);
        assert_eq!(of(FD), Watched::Often, "two sets had it");
        forget(FD);
        changed(0, libc::EPOLL_CTL_ADD, FD, event(IN));
        assert_eq!(once(FD).set, 0);
    }
}
