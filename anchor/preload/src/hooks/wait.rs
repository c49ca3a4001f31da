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

/// Waits for `set` by way of `wait(ms, most)`, in slices while there is something that may have to be done meanwhile.
///
/// # Safety
/// `events` must have room for `most` events.
unsafe fn wait_by(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    wait: impl Fn(c_int, c_int) -> c_int,
) -> c_int {
    let mut left = timeout;
    loop {
        // Before each wait, not after long ones only: many event loops never wait for long.
        if let Some(engine) = engine::running() {
            quietly((), || anchor::reap(engine));
        }
        let has_left = quietly(true, || batch::before_events(left != 0));
        let slice = match quietly(Look::Nothing, || ahead::before_events(set)) {
            Look::Due => {
                // However much the kernel reports, there is room for what it does not.
                let of_kernel = if most == 1 { c_int::from(ahead::is_kernels_turn(set)) } else { most - 1 };
                let n = if most > 0 && of_kernel == 0 { 0 } else { wait(0, of_kernel) };
                let (Ok(count), Ok(room)) = (usize::try_from(n), usize::try_from(most)) else { return n };
                // SAFETY: the caller's promise, and the kernel took the pointer.
                let events = unsafe { core::slice::from_raw_parts_mut(events, room) };
                let report = || {
                    let count = ahead::seen(set, &mut events[..count]);
                    ahead::report(set, events, count) as c_int
                };
                let n = quietly(n, report);
                if n == 0 && left != 0 {
                    // Another thread has reported it meanwhile.
                    continue;
                }
                return n;
            }
            _ if !has_left => RETRY_MS,
            Look::Quiet => LOOK_MS,
            Look::Nothing if anchor::any_detached() => SLICE_MS,
            Look::Nothing => c_int::MAX,
        };
        let is_last = slice == c_int::MAX || (0..=slice).contains(&left);
        let n = wait(if is_last { left } else { slice }, most);
        if n < 0 || (n == 0 && is_last) {
            return n;
        }
        // SAFETY: the kernel has just written so many.
        let events = unsafe { core::slice::from_raw_parts_mut(events, n as usize) };
        let rest = quietly(n, || ahead::seen(set, events) as c_int);
        if rest > 0 {
            return rest;
        }
        // It has waited for all of the slice, or was woken because there is something to report.
        if n == 0 && left > 0 {
            left -= slice;
        }
    }
}

/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(fd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    let wait = |timeout, most| next!(epoll_wait(fd => c_int, events => *mut epoll_event, most => c_int, timeout => c_int) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int);
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
    let wait = |timeout, most| next!(epoll_pwait(fd => c_int, events => *mut epoll_event, most => c_int, timeout => c_int, mask => *const c_void) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int);
    // SAFETY: the caller's promise.
    unsafe { wait_by(fd, events, most, timeout, wait) }
}

/// # Safety
/// As epoll_pwait2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let whole = unsafe { timeout.as_ref() }.map_or(-1, milliseconds);
    let wait = |ms: c_int, most| {
        let part = timespec { tv_sec: (ms / 1000).into(), tv_nsec: (ms % 1000 * 1_000_000).into() };
        // What is waited for as asked for is as exact as it was asked for.
        let timeout = if ms == whole { timeout } else { &raw const part };
        next!(epoll_pwait2(fd => c_int, events => *mut epoll_event, most => c_int, timeout => *const timespec, mask => *const sigset_t) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { wait_by(fd, events, most, whole, wait) }
}

/// Rounded up, so that no wait becomes none.
fn milliseconds(time: &timespec) -> c_int {
    let ms = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(ms).unwrap_or(c_int::MAX)
}

/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let result = next!(epoll_ctl(set => c_int, operation => c_int, fd => c_int, event => *mut epoll_event) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int);
    if result != 0 {
        return result;
    }
    if matches!(table::entry(fd), Entry::Fresh | Entry::Socket(_)) {
        // SAFETY: the kernel has just read it, except with EPOLL_CTL_DEL, where it may be anything.
        let event = if operation == libc::EPOLL_CTL_DEL { None } else { unsafe { event.as_ref() }.copied() };
        watch::changed(set, operation, fd, event);
        quietly((), || ahead::registered(set, fd, event));
    } else {
        ahead::is_inner(fd);
    }
    result
}

/// Asks the kernel by way of `wait`, which is told whether to answer at once, and adds what was read ahead.
///
/// # Safety
/// As poll(2).
unsafe fn poll_by(list: *mut pollfd, count: nfds_t, wait: impl Fn(bool) -> c_int) -> c_int {
    const BYTES: c_short = libc::POLLIN | libc::POLLRDNORM;
    batch::before_waiting();
    if list.is_null() || !ahead::was_ever() {
        return wait(false);
    }
    // SAFETY: the caller's promise.
    let list = unsafe { core::slice::from_raw_parts_mut(list, count as usize) };
    let has = |it: &pollfd| it.events & BYTES != 0 && ahead::is_readable(it.fd);
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
    batch::before_waiting();
    if readable.is_null() || !ahead::was_ever() {
        return wait(false);
    }
    // SAFETY: the caller's promise: bits up to `count` may be looked at.
    let asked = |fd: c_int| unsafe { libc::FD_ISSET(fd, readable) };
    let ready: Vec<c_int> = (0..count).filter(|fd| asked(*fd) && ahead::is_readable(*fd)).collect();
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
    if c_uint::try_from(request) == Ok(libc::TIOCOUTQ as c_uint) {
        // What was accepted and waits here was not acknowledged either.
        quietly(true, || batch::leave_at(fd, false));
    }
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::testing;

    const IN: u32 = libc::EPOLLIN as u32;

    #[test]
    fn a_registration_for_one_event_gives_one_event() {
        let set = testing::set();
        let (near, _far, _) = testing::ahead(Some(set));
        let fd = near.as_raw_fd();
        let once = libc::EPOLLIN | libc::EPOLLONESHOT;
        for _ in 0..2 {
            testing::control(set, libc::EPOLL_CTL_MOD, fd, once);
            assert_eq!(testing::events(set, 1000), [(IN, fd as u64)]);
            assert_eq!(testing::events(set, 0), [], "somebody else has it by now");
        }
    }

    #[test]
    fn what_was_read_ahead_is_reported_however_much_else_there_is() {
        for room in [1, 2, 3] {
            let set = testing::set();
            let ahead: Vec<_> = (0..2).map(|_| testing::ahead(Some(set))).collect();
            let others: Vec<_> = (0..4).map(|_| testing::pair()).collect();
            for (near, far) in &others {
                let mut far = far;
                far.write_all(b"HTTP/1.1").expect("sent");
                testing::until("it has arrived", || testing::unread(near) > 0);
                testing::control(set, libc::EPOLL_CTL_ADD, near.as_raw_fd(), libc::EPOLLIN);
            }
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..20 {
                let mut events = [epoll_event { events: 0, u64: 0 }; 3];
                // SAFETY: there is room for as many events as is said.
                let n = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), room, 1000) };
                assert!((1..=room).contains(&n), "{room}: {n}");
                seen.extend(events[..n as usize].iter().map(|it| { it.u64 } as c_int));
            }
            let all = ahead.iter().map(|it| &it.0).chain(others.iter().map(|it| &it.0));
            let unseen: Vec<c_int> = all.map(AsRawFd::as_raw_fd).filter(|fd| !seen.contains(fd)).collect();
            assert!(unseen.is_empty(), "{room}: {unseen:?} of {seen:?}");
        }
    }

    #[test]
    fn who_waits_for_an_epoll_set_is_told_of_what_was_read_ahead_in_it() {
        let (inner, outer) = (testing::set(), testing::set());
        let (near, _far, _) = testing::ahead(Some(inner));
        let mut list = [pollfd { fd: inner, events: libc::POLLIN, revents: 0 }];
        // SAFETY: one entry, as is said.
        assert_eq!(unsafe { libc::poll(list.as_mut_ptr(), 1, 1000) }, 1);
        assert_eq!(list[0].revents, libc::POLLIN);
        drop(near);
        testing::control(outer, libc::EPOLL_CTL_ADD, inner, libc::EPOLLIN);
        let it = testing::begun(Some(inner));
        assert_ne!(testing::unread(&it.near), 0);
        assert_eq!(testing::events(outer, 1000), [(IN, inner as u64)]);
    }

    #[test]
    fn every_way_to_wait_tells_of_what_was_read_ahead_and_waits_otherwise() {
        testing::alone(
            "hooks::wait::tests::every_way_to_wait_tells_of_what_was_read_ahead_and_waits_otherwise",
            || {
                type Way = (&'static str, fn(c_int) -> (c_int, bool));
                static SHORT: timespec = timespec { tv_sec: 0, tv_nsec: 1 };
                fn listed(fd: c_int, wait: impl Fn(*mut pollfd) -> c_int) -> (c_int, bool) {
                    let mut it = pollfd { fd, events: libc::POLLIN, revents: 0 };
                    (wait(&raw mut it), it.revents == libc::POLLIN)
                }
                fn in_set(fd: c_int, wait: impl Fn(*mut fd_set) -> c_int) -> (c_int, bool) {
                    // SAFETY: all-zero is an empty set, and the descriptor is small enough for one.
                    unsafe {
                        let mut set: fd_set = core::mem::zeroed();
                        libc::FD_SET(fd, &raw mut set);
                        (wait(&raw mut set), libc::FD_ISSET(fd, &raw const set))
                    }
                }
                let ways: [Way; 6] = [
                    // SAFETY: the descriptor is open, and everything lives.
                    ("poll", |fd| listed(fd, |list| unsafe { libc::poll(list, 1, 1) })),
                    // SAFETY: as above.
                    ("__poll_chk", |fd| unsafe { listed(fd, |list| __poll_chk(list, 1, 1, size_of::<pollfd>())) }),
                    // SAFETY: as above.
                    ("ppoll", |fd| unsafe {
                        listed(fd, |list| libc::ppoll(list, 1, &raw const SHORT, core::ptr::null()))
                    }),
                    // SAFETY: as above.
                    ("__ppoll_chk", |fd| unsafe {
                        listed(fd, |list| {
                            __ppoll_chk(list, 1, &raw const SHORT, core::ptr::null(), size_of::<pollfd>())
                        })
                    }),
                    // SAFETY: as above.
                    ("select", |fd| unsafe {
                        let (none, mut short) = (core::ptr::null_mut(), timeval { tv_sec: 0, tv_usec: 1 });
                        let short = &raw mut short;
                        in_set(fd, |set| libc::select(fd + 1, set, none, none, short))
                    }),
                    // SAFETY: as above.
                    ("pselect", |fd| unsafe {
                        let none = core::ptr::null_mut();
                        in_set(fd, |set| libc::pselect(fd + 1, set, none, none, &raw const SHORT, core::ptr::null()))
                    }),
                ];
                let (near, _far, _) = testing::ahead(Some(testing::set()));
                let (idle, _peer) = testing::pair();
                let mut kernel = pollfd { fd: near.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry, as is said.
                let n =
                    unsafe { syscalls::syscall!(syscalls::Sysno::ppoll, &raw mut kernel, 1, &raw const AT_ONCE, 0, 0) };
                assert_eq!(n, Ok(0), "the kernel has none of it");
                for (how, wait) in ways {
                    assert_eq!((wait(near.as_raw_fd()), wait(idle.as_raw_fd())), ((1, true), (0, false)), "{how}");
                }
            },
        );
    }

    #[test]
    fn epoll_pwait2_tells_of_what_was_read_ahead() {
        let set = testing::set();
        let (near, _far, _) = testing::ahead(Some(set));
        let mut event = epoll_event { events: 0, u64: 0 };
        let none = core::ptr::null();
        let (soon, at_once) = (timespec { tv_sec: 1, tv_nsec: 0 }, &raw const AT_ONCE);
        // SAFETY: there is room for one event.
        let wait = |event: &mut epoll_event, limit| unsafe { epoll_pwait2(set, event, 1, limit, none) };
        assert_eq!(wait(&mut event, &raw const soon), 1);
        assert_eq!({ event.u64 }, near.as_raw_fd() as u64);
        drop(near);
        // The child that another test is just starting has the connection as well, for a moment.
        testing::until("it is gone", || wait(&mut epoll_event { events: 0, u64: 0 }, at_once) == 0);
    }

    #[test]
    fn a_connection_in_a_second_set_is_reported_in_both() {
        let (first, second) = (testing::set(), testing::set());
        let (near, _far, _) = testing::ahead(Some(first));
        let fd = near.as_raw_fd();
        testing::control(second, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN);
        assert_eq!(testing::events(second, 1000), [(IN, fd as u64)]);
        assert_eq!(testing::events(first, 1000), [(IN, fd as u64)]);
    }

    #[test]
    fn a_connection_whose_set_was_closed_is_reported_in_the_next() {
        let (first, second) = (testing::set(), testing::set());
        let (near, _far, _) = testing::ahead(Some(first));
        let fd = near.as_raw_fd();
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::close(first) }, 0);
        testing::control(second, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN);
        assert_eq!(testing::events(second, 1000), [(IN, fd as u64)]);
    }

    #[test]
    fn a_thread_that_waits_already_is_woken_for_what_another_one_has_read_ahead() {
        let set = testing::set();
        let (tell, told) = std::sync::mpsc::channel();
        let (near, _far, _) = testing::ahead(None);
        let waiting = std::thread::spawn(move || {
            // SAFETY: no arguments.
            tell.send(unsafe { libc::gettid() }).expect("somebody asks");
            testing::events(set, 3000)
        });
        let thread = told.recv().expect("its number");
        testing::until("it waits", || testing::sleeps(thread));
        let fd = near.as_raw_fd();
        testing::control(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN);
        assert_eq!(waiting.join().expect("no panic"), [(IN, fd as u64)]);
    }
}
