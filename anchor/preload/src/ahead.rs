//! Reading ahead: more payload than a call asked for goes from the socket into the pipe, and the next calls need none of
//! the kernel's time.
//!
//! The kernel does not report such bytes any more, so the engine does: `epoll_wait`, `poll`, `select` and `FIONREAD`
//! answer as if they still lay in the socket. It reads ahead only where the application waits with epoll, by the functions
//! that are hooked, and only on connections that are registered in one set at most.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, epoll_event};

use crate::engine::Engine;
use crate::hooks::quietly;
use crate::socket::Socket;
use crate::table;
use crate::watch::{self, Watched};

/// Epoll sets with higher descriptors are left alone.
const SETS: usize = 1024;
/// How often a lock is tried that a signal handler may have interrupted.
const TRIES: usize = 1000;

/// Some connection of this process was read ahead once: then who asks the kernel must ask here as well.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread waits with epoll.
    static IS_LOOP: Cell<bool> = const { Cell::new(false) };
}

/// What was read ahead of the connections in one epoll set.
struct Set {
    /// Somebody waits for it where the engine sees it.
    is_waited_for: AtomicBool,
    count: AtomicUsize,
    reads: Mutex<Vec<Read>>,
}

struct Read {
    fd: c_int,
    /// `Watch::change` when it was last reported and nothing was added since. Level-triggered ones are always reported.
    told: Option<u64>,
}

static LIST: [Set; SETS] = [const {
    Set { is_waited_for: AtomicBool::new(false), count: AtomicUsize::new(0), reads: Mutex::new(Vec::new()) }
}; SETS];

impl Set {
    fn of(set: c_int) -> Option<&'static Self> {
        LIST.get(usize::try_from(set).ok()?)
    }

    /// None: whoever has the lock does not let go of it, perhaps because this is a signal handler.
    fn reads(&self) -> Option<MutexGuard<'_, Vec<Read>>> {
        (0..TRIES).find_map(|_| {
            let guard = self.reads.try_lock().ok();
            if guard.is_none() {
                core::hint::spin_loop();
            }
            guard
        })
    }
}

/// How much more than `want` bytes of a span that goes on for `left` the next splice may bring.
pub(crate) fn room(engine: &Engine, socket: &Socket, want: usize, left: u64) -> usize {
    let more = usize::try_from(engine.config.read_ahead.min(left)).unwrap_or(0).saturating_sub(want);
    if more == 0 || !socket.flows || socket.aliases > 0 {
        return 0;
    }
    let may = match watch::of(socket.fd) {
        Watched::Nowhere => IS_LOOP.get(),
        Watched::Once(watch) => !watch.is_limited() && remember(watch.set, socket.fd),
        Watched::Often => false,
    };
    if !may {
        return 0;
    }
    EVER.store(true, Ordering::Relaxed);
    more
}

/// Has a connection looked after when somebody waits for `set`. False: nobody does, or not now.
fn remember(set: c_int, fd: c_int) -> bool {
    let Some(list) = Set::of(set).filter(|list| list.is_waited_for.load(Ordering::Relaxed)) else { return false };
    let Some(mut reads) = list.reads() else { return false };
    match reads.iter_mut().find(|read| read.fd == fd) {
        Some(read) => read.told = None,
        None => reads.push(Read { fd, told: None }),
    }
    list.count.store(reads.len(), Ordering::Release);
    true
}

/// A connection was registered in `set`, or registered anew.
pub(crate) fn registered(set: c_int, fd: c_int) {
    if waiting(fd) > 0 {
        remember(set, fd);
    }
}

/// Whether anything was ever read ahead in this process.
pub(crate) fn was_ever() -> bool {
    EVER.load(Ordering::Relaxed)
}

/// Bytes of a connection that the kernel does not count any more.
pub(crate) fn waiting(fd: c_int) -> usize {
    if !was_ever() {
        return 0;
    }
    let count = || table::socket(fd)?.with(fd, |socket| socket.ahead as usize);
    quietly(None, count).unwrap_or(0)
}

/// What somebody who is about to wait for events has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing was read ahead.
    Nothing,
    /// Something was, and nobody asks for it at the moment.
    Quiet,
    /// It must be reported now.
    Due,
}

/// This thread is about to wait for `set`.
pub(crate) fn before_events(set: c_int) -> Look {
    IS_LOOP.set(true);
    let Some(list) = Set::of(set) else { return Look::Nothing };
    list.is_waited_for.store(true, Ordering::Relaxed);
    if list.count.load(Ordering::Acquire) == 0 {
        return Look::Nothing;
    }
    let Some(mut reads) = list.reads() else { return Look::Quiet };
    reads.retain(|read| waiting(read.fd) > 0 && watch::of(read.fd).set() == Some(set));
    list.count.store(reads.len(), Ordering::Release);
    match reads.iter().any(|read| due(read).is_some()) {
        true => Look::Due,
        false if reads.is_empty() => Look::Nothing,
        false => Look::Quiet,
    }
}

/// The event to be reported for a connection, and the registration that asks for it.
fn due(read: &Read) -> Option<(epoll_event, u64)> {
    let Watched::Once(watch) = watch::of(read.fd) else { return None };
    let again = watch.is_level() || read.told != Some(watch.change);
    let events = watch.events & (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
    (again && events != 0).then_some((epoll_event { events, u64: watch.data }, watch.change))
}

/// Adds what is due to the `n` events that the kernel has reported for `set`; returns how many there are then.
pub(crate) fn report(set: c_int, events: &mut [epoll_event], mut n: usize) -> usize {
    let Some(mut reads) = Set::of(set).and_then(Set::reads) else { return n };
    for read in reads.iter_mut() {
        let Some((event, change)) = due(read) else { continue };
        let data = event.u64;
        if let Some(known) = events[..n].iter_mut().find(|it| { it.u64 } == data) {
            known.events |= event.events;
        } else if n < events.len() {
            events[n] = event;
            n += 1;
        } else {
            // With the next call.
            continue;
        }
        read.told = Some(change);
    }
    n
}
