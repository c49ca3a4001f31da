//! Reading ahead: more payload than a call asked for goes from the socket into the pipe, and the next calls need none of
//! the kernel's time.
//!
//! The kernel does not report such bytes any more, so the engine does: `epoll_wait`, `poll`, `select` and `FIONREAD`
//! answer as if they still lay in the socket. It reads ahead only where the application waits with epoll, by the functions
//! that are hooked, and only on connections that are registered in one set at most.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, epoll_event};

use crate::engine::Engine;
use crate::hooks::quietly;
use crate::socket::Socket;
use crate::watch::{self, Watch, Watched};
use crate::{lifecycle, sys, table};

/// Epoll sets with higher descriptors are left alone.
const SETS: usize = 1024;
/// How often a lock is tried that a signal handler may have interrupted.
const TRIES: usize = 1000;

/// Some connection of this process was read ahead once: then who asks the kernel must ask here as well.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread waits with epoll. Its address stands for the thread.
    static IS_LOOP: Cell<bool> = const { Cell::new(false) };
}

/// [`Set::waiter`]: more than one thread.
const SEVERAL: usize = usize::MAX;

/// What was read ahead of the connections in one epoll set.
struct Set {
    /// The thread that waits for it where the engine sees it; 0: none.
    waiter: AtomicUsize,
    /// It may be in another set: who waits there asks the kernel about it.
    is_inner: AtomicBool,
    /// A descriptor that wakes the waiter, plus one. 0: none.
    nudge: AtomicI32,
    count: AtomicUsize,
    /// Whoever asks for one event at a time was last told of one that the kernel reports.
    was_kernels_turn: AtomicBool,
    reads: Mutex<Vec<Read>>,
}

struct Read {
    fd: c_int,
    watch: Watch,
    /// It was reported, and nothing was added or registered since.
    is_told: bool,
}

static LIST: [Set; SETS] = [const {
    Set {
        waiter: AtomicUsize::new(0),
        is_inner: AtomicBool::new(false),
        nudge: AtomicI32::new(0),
        count: AtomicUsize::new(0),
        was_kernels_turn: AtomicBool::new(false),
        reads: Mutex::new(Vec::new()),
    }
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

    fn has_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether only this thread waits for it, and nobody by way of another set.
    fn is_mine(&self) -> bool {
        self.waiter.load(Ordering::Relaxed) == this_thread() && !self.is_inner.load(Ordering::Relaxed)
    }

    /// Puts a connection on the list. False: not now.
    fn enter(&self, fd: c_int, watch: Watch) -> bool {
        let Some(mut reads) = self.reads() else { return false };
        reads.retain(|read| read.fd != fd);
        reads.push(Read { fd, watch, is_told: false });
        self.count.store(reads.len(), Ordering::Release);
        true
    }

    fn strike(&self, is_over: impl Fn(&Read) -> bool) {
        if self.has_any()
            && let Some(mut reads) = self.reads()
        {
            reads.retain(|read| !is_over(read));
            self.count.store(reads.len(), Ordering::Release);
        }
    }

    /// Wakes the thread that may wait for `set` without knowing of what was read ahead: by a descriptor that is readable.
    fn wake(&self, set: c_int) {
        let waiter = self.waiter.load(Ordering::Relaxed);
        if waiter == 0 || waiter == this_thread() || self.nudge.load(Ordering::Relaxed) != 0 {
            return;
        }
        let Ok(fd) = sys::readable() else { return };
        if self.nudge.compare_exchange(0, fd + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return sys::close(fd);
        }
        table::claim(fd);
        let event = epoll_event { events: libc::EPOLLIN as u32, u64: self.name() };
        let _ = sys::epoll_control(set, libc::EPOLL_CTL_ADD, fd, event);
    }

    /// The data of the event that [`Set::wake`] causes: an address that only this library has.
    fn name(&self) -> u64 {
        core::ptr::from_ref(self).addr() as u64
    }
}

fn this_thread() -> usize {
    IS_LOOP.with(|it| core::ptr::from_ref(it).addr())
}

/// How much more than `want` bytes of a span that goes on for `left` the next splice may bring.
pub(crate) fn room(engine: &Engine, socket: &Socket, want: usize, left: u64) -> usize {
    let more = usize::try_from(engine.config.read_ahead.min(left)).unwrap_or(0).saturating_sub(want);
    if more == 0 || !socket.flows || socket.aliases > 0 {
        return 0;
    }
    let may = match watch::of(socket.fd) {
        Watched::Nowhere => IS_LOOP.get(),
        Watched::Once(watch) => {
            !watch.is_limited() && Set::of(watch.set).is_some_and(|list| list.is_mine() && list.enter(socket.fd, watch))
        }
        Watched::Often => false,
    };
    if !may {
        return 0;
    }
    EVER.store(true, Ordering::Relaxed);
    more
}

/// epoll_ctl(2) succeeded for a connection: it was registered in `set` (anew), or taken out.
pub(crate) fn registered(set: c_int, fd: c_int, event: Option<epoll_event>) {
    let Some(list) = Set::of(set) else { return };
    let Some(event) = event else { return list.strike(|read| read.fd == fd) };
    if waiting(fd) == 0 {
        return list.strike(|read| read.fd == fd);
    }
    if list.enter(fd, Watch { set, events: event.events, data: event.u64 }) {
        list.wake(set);
    }
}

/// Something that is no connection was registered: perhaps another set, whose waiters cannot be told here.
pub(crate) fn is_inner(fd: c_int) {
    if let Some(list) = Set::of(fd) {
        list.is_inner.store(true, Ordering::Relaxed);
    }
}

/// A descriptor that is no connection is about to be closed. Where it is an epoll set, its registrations end with it.
pub(crate) fn closed(fd: c_int) {
    let Some(list) = Set::of(fd) else { return };
    let is_known = list.is_inner.load(Ordering::Relaxed) || list.waiter.load(Ordering::Relaxed) != 0;
    if !is_known || lifecycle::is_vforked() {
        return;
    }
    list.is_inner.store(false, Ordering::Relaxed);
    list.waiter.store(0, Ordering::Relaxed);
    list.strike(|_| true);
    let nudge = list.nudge.swap(0, Ordering::Relaxed);
    if nudge > 0 {
        drop_nudge(nudge - 1);
    }
    for number in 0..=table::highest().cast_signed() {
        if watch::of(number).set() == Some(fd) {
            watch::forget(number);
        }
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

/// Whether a connection is readable, or an epoll set, of which the kernel does not say so.
pub(crate) fn is_readable(fd: c_int) -> bool {
    waiting(fd) > 0 || Set::of(fd).is_some_and(|list| list.has_any() && look(fd, list) == Look::Due)
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
    let (before, me) = (list.waiter.load(Ordering::Relaxed), this_thread());
    if before != me && before != SEVERAL {
        list.waiter.store(if before == 0 { me } else { SEVERAL }, Ordering::Relaxed);
    }
    if list.has_any() { look(set, list) } else { Look::Nothing }
}

fn look(set: c_int, list: &Set) -> Look {
    let Some(mut reads) = list.reads() else { return Look::Quiet };
    reads.retain(|read| {
        waiting(read.fd) > 0
            && matches!(watch::of(read.fd), watched if watched == Watched::Often || watched.set() == Some(set))
    });
    list.count.store(reads.len(), Ordering::Release);
    match reads.iter().any(|read| due(read).is_some()) {
        true => Look::Due,
        false if reads.is_empty() => Look::Nothing,
        false => Look::Quiet,
    }
}

/// The event to be reported for a connection.
fn due(read: &Read) -> Option<epoll_event> {
    let again = !read.is_told || (read.watch.is_level() && !read.watch.is_once());
    let events = read.watch.events & (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
    (again && events != 0).then_some(epoll_event { events, u64: read.watch.data })
}

/// Whether the only event that is asked for is to be one of the kernel's: every other time.
pub(crate) fn is_kernels_turn(set: c_int) -> bool {
    Set::of(set).is_none_or(|list| !list.was_kernels_turn.fetch_xor(true, Ordering::Relaxed))
}

/// Adds what is due to the `n` events that the kernel has reported for `set`; returns how many there are then.
pub(crate) fn report(set: c_int, events: &mut [epoll_event], mut n: usize) -> usize {
    let Some(mut reads) = Set::of(set).and_then(Set::reads) else { return n };
    let mut told = 0;
    for (at, read) in reads.iter_mut().enumerate() {
        let Some(event) = due(read) else { continue };
        let data = event.u64;
        if let Some(known) = events[..n].iter_mut().find(|it| { it.u64 } == data) {
            known.events |= event.events;
        } else if n < events.len() {
            events[n] = event;
            (n, told) = (n + 1, at + 1);
            if read.watch.is_once() {
                // As the kernel disarms what it has reported.
                let disarmed = epoll_event { events: read.watch.events & Watch::PRIVATE, u64: data };
                let _ = sys::epoll_control(set, libc::EPOLL_CTL_MOD, read.fd, disarmed);
            }
        } else {
            // With the next call.
            continue;
        }
        read.is_told = true;
    }
    // Those for which there was no room are the next ones.
    reads.rotate_left(told);
    n
}

/// The kernel has reported these events for `set`: takes out the one of [`Set::wake`], and returns how many are left.
pub(crate) fn seen(set: c_int, events: &mut [epoll_event]) -> usize {
    let mut n = events.len();
    let Some(list) = Set::of(set) else { return n };
    if list.nudge.load(Ordering::Relaxed) != 0
        && let Some(at) = events.iter().position(|event| { event.u64 } == list.name())
    {
        events.copy_within(at + 1.., at);
        n -= 1;
        let nudge = list.nudge.swap(0, Ordering::Relaxed);
        if nudge > 0 {
            let none = epoll_event { events: 0, u64: 0 };
            let _ = sys::epoll_control(set, libc::EPOLL_CTL_DEL, nudge - 1, none);
            drop_nudge(nudge - 1);
        }
    }
    if list.has_any()
        && let Some(mut reads) = list.reads()
    {
        // What the kernel has reported once is disarmed.
        for read in reads.iter_mut().filter(|read| read.watch.is_once()) {
            read.is_told |= events[..n].iter().any(|event| { event.u64 } == read.watch.data);
        }
    }
    n
}

fn drop_nudge(fd: c_int) {
    table::release(fd);
    sys::close(fd);
}
