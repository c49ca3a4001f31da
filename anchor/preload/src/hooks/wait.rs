//! epoll, poll, select, FIONREAD: readiness is the kernel's own word, and the engine's for what it has read ahead. Batches
//! leave before the application waits, and what nobody sends is cleared up meanwhile.

use libc::{
    c_int, c_long, c_short, c_uint, c_ulong, c_void, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec,
    timeval,
};

use super::{fail, next, quietly};
use crate::ahead::{self, Look};
use crate::table::{self, Entry};
use crate::{anchor, batch, engine, watch};

/// How long a wait may be while accepted payload could not leave, ms.
const RETRY_MS: c_int = 2;
/// The same while somebody may ask, from another thread, for what was read ahead.
const LOOK_MS: c_int = 50;
/// How long a wait may be before the engine looks again for payload that nobody sends, ms.
const SLICE_MS: c_int = 1000;

/// Waits for `set` by way of `wait(ms)`, in slices while there is something that may have to be done meanwhile.
///
/// # Safety
/// `events` must have room for `most` events.
unsafe fn wait_by(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    wait: impl Fn(c_int) -> c_int,
) -> c_int {
    let Some(engine) = engine::running() else { return wait(timeout) };
    let mut left = timeout;
    loop {
        // Before each wait, not after long ones only: many event loops never wait for long.
        quietly((), || anchor::reap(engine));
        let has_left = quietly(true, || batch::before_events(left != 0));
        let slice = match quietly(Look::Nothing, || ahead::before_events(set)) {
            Look::Due => {
                let n = wait(0);
                let (Ok(count), Ok(room)) = (usize::try_from(n), usize::try_from(most)) else { return n };
                // SAFETY: the caller's promise, and the kernel took the pointer.
                let events = unsafe { core::slice::from_raw_parts_mut(events, room) };
                return quietly(n, || ahead::report(set, events, count) as c_int);
            }
            _ if !has_left => RETRY_MS,
            Look::Quiet => LOOK_MS,
            Look::Nothing if anchor::any_detached() => SLICE_MS,
            Look::Nothing => return wait(left),
        };
        if (0..=slice).contains(&left) {
            return wait(left);
        }
        let events = wait(slice);
        if events != 0 {
            return events;
        }
        if left > 0 {
            left -= slice;
        }
    }
}

/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(fd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    let wait = |timeout| next!(epoll_wait(fd => c_int, events => *mut epoll_event, most => c_int, timeout => c_int) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int);
    // SAFETY: the caller's promise.
    unsafe { wait_by(fd, events, most, timeout, wait) }
}

/// # Safety
/// As epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const c_void,
) -> c_int {
    let wait = |timeout| next!(epoll_pwait(fd => c_int, events => *mut epoll_event, most => c_int, timeout => c_int, mask => *const c_void) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int);
    // SAFETY: the caller's promise.
    unsafe { wait_by(fd, events, most, timeout, wait) }
}

/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let result = next!(epoll_ctl(set => c_int, operation => c_int, fd => c_int, event => *mut epoll_event) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int);
    if result == 0 && matches!(table::entry(fd), Entry::Fresh | Entry::Socket(_)) {
        // SAFETY: the kernel has just read it, except with EPOLL_CTL_DEL, where it may be anything.
        let event = if operation == libc::EPOLL_CTL_DEL { None } else { unsafe { event.as_ref() }.copied() };
        watch::changed(set, operation, fd, event);
        ahead::registered(set, fd);
    }
    result
}

/// Asks the kernel by way of `wait`, which is told whether to answer at once, and adds what was read ahead.
///
/// # Safety
/// As poll(2).
unsafe fn poll_by(list: *mut pollfd, count: nfds_t, wait: impl Fn(bool) -> c_int) -> c_int {
    const BYTES: c_short = libc::POLLIN | libc::POLLRDNORM;
    if list.is_null() || !ahead::was_ever() {
        return wait(false);
    }
    // SAFETY: the caller's promise.
    let list = unsafe { core::slice::from_raw_parts_mut(list, count as usize) };
    let has = |it: &pollfd| it.events & BYTES != 0 && ahead::waiting(it.fd) > 0;
    if !list.iter().any(has) {
        return wait(false);
    }
    let mut n = wait(true);
    if n < 0 {
        return n;
    }
    for it in list.iter_mut().filter(|it| has(it)) {
        n += c_int::from(it.revents == 0);
        it.revents |= it.events & BYTES;
    }
    n
}

/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let wait = |at_once: bool| {
        let timeout = if at_once { 0 } else { timeout };
        next!(poll(list => *mut pollfd, count => nfds_t, timeout => c_int) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { poll_by(list, count, wait) }
}

/// # Safety
/// As poll(2); the fortified form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(list: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    let wait = |at_once: bool| {
        let timeout = if at_once { 0 } else { timeout };
        next!(__poll_chk(list => *mut pollfd, count => nfds_t, timeout => c_int, room => size_t) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { poll_by(list, count, wait) }
}

static AT_ONCE: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// # Safety
/// As ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let wait = |at_once: bool| {
        let timeout = if at_once { &raw const AT_ONCE } else { timeout };
        next!(ppoll(list => *mut pollfd, count => nfds_t, timeout => *const timespec, mask => *const sigset_t) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { poll_by(list, count, wait) }
}

/// # Safety
/// As ppoll(2); the fortified form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    let wait = |at_once: bool| {
        let timeout = if at_once { &raw const AT_ONCE } else { timeout };
        next!(__ppoll_chk(list => *mut pollfd, count => nfds_t, timeout => *const timespec, mask => *const sigset_t, room => size_t) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { poll_by(list, count, wait) }
}

/// Asks the kernel by way of `wait`, which is told whether to answer at once, and adds what was read ahead.
///
/// # Safety
/// As select(2).
unsafe fn select_by(count: c_int, readable: *mut fd_set, wait: impl Fn(bool) -> c_int) -> c_int {
    if readable.is_null() || !ahead::was_ever() {
        return wait(false);
    }
    // SAFETY: the caller's promise: bits up to `count` may be looked at.
    let asked = |fd: c_int| unsafe { libc::FD_ISSET(fd, readable) };
    let ready: Vec<c_int> = (0..count).filter(|fd| asked(*fd) && ahead::waiting(*fd) > 0).collect();
    let mut n = wait(!ready.is_empty());
    if n < 0 {
        return n;
    }
    for fd in ready.into_iter().filter(|fd| !asked(*fd)) {
        // SAFETY: it was set before the call.
        unsafe { libc::FD_SET(fd, readable) };
        n += 1;
    }
    n
}

/// # Safety
/// As select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let wait = |at_once: bool| {
        let mut now = timeval { tv_sec: 0, tv_usec: 0 };
        let timeout = if at_once { &raw mut now } else { timeout };
        next!(select(count => c_int, readable => *mut fd_set, writable => *mut fd_set, except => *mut fd_set, timeout => *mut timeval) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { select_by(count, readable, wait) }
}

/// # Safety
/// As pselect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let wait = |at_once: bool| {
        let timeout = if at_once { &raw const AT_ONCE } else { timeout };
        next!(pselect(count => c_int, readable => *mut fd_set, writable => *mut fd_set, except => *mut fd_set, timeout => *const timespec, mask => *const sigset_t) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { select_by(count, readable, wait) }
}

/// # Safety
/// As ioctl(2). The third argument is a word or absent; an absent one is passed on as whatever the register holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int {
    let result = next!(ioctl(fd => c_int, request => c_ulong, argument => c_long) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int);
    if result == 0 && c_uint::try_from(request) == Ok(libc::FIONREAD as c_uint) {
        let more = ahead::waiting(fd);
        // SAFETY: the kernel has just written an int there.
        if let Some(bytes) = unsafe { (argument as *mut c_int).as_mut() } {
            *bytes = bytes.saturating_add(c_int::try_from(more).unwrap_or(c_int::MAX));
        }
    }
    result
}
