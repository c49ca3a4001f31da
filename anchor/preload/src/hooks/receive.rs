//! read, readv, recv, recvfrom, recvmsg, recvmmsg, and splice out of a socket.

use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use syscalls::Errno;

use super::{fail, next, on, quietly};
use crate::cell::Cell;
use crate::engine::Engine;
use crate::socket::Socket;
use crate::table::{self, Entry};
use crate::{ahead, batch, ingress, iov, lifecycle, sys};

fn one(buffer: *mut c_void, size: size_t) -> [iovec; 1] {
    [iovec { iov_base: buffer, iov_len: size }]
}

/// # Safety
/// `iov` must point to `count` slices.
unsafe fn slices<'a>(iov: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= 1024)?;
    // SAFETY: promised by the caller.
    (!iov.is_null()).then(|| unsafe { core::slice::from_raw_parts(iov, count) })
}

fn receive(cell: &'static Cell, fd: c_int, iov: &[iovec], flags: c_int) -> Option<ssize_t> {
    if flags & libc::MSG_WAITALL == 0 {
        return waiting(fd, flags, |flags| on(cell, fd, |engine, socket| ingress::receive(engine, socket, iov, flags)));
    }
    let (size, mut done) = (iov::total(iov), 0);
    loop {
        let part = iov::Part::new(iov, size, done, size - done);
        let step = |flags| on(cell, fd, |engine, socket| ingress::receive(engine, socket, part.slices(), flags));
        match waiting(fd, flags, step)? {
            n if n <= 0 && done == 0 => return Some(n),
            0 => return Some(done.cast_signed()),
            n if n < 0 => {
                later(cell, fd);
                return Some(done.cast_signed());
            }
            n => done += n.cast_unsigned(),
        }
        // A look brings the same bytes again; whoever must not wait has all there are.
        if done == size || flags & (libc::MSG_PEEK | libc::MSG_DONTWAIT) != 0 || sys::is_nonblocking(fd) {
            return Some(done.cast_signed());
        }
    }
}

/// What came before an error is the answer; the error is the next call's.
fn later(cell: &'static Cell, fd: c_int) {
    // SAFETY: libc's errno of this thread.
    let error = Errno::new(unsafe { *libc::__errno_location() });
    if !matches!(error, Errno::EAGAIN | Errno::EINTR) {
        quietly(None, || cell.with(fd, |socket| socket.rx_error = Socket::due(error)));
    }
}

/// Receives by way of `step(flags)`. The wait is the kernel's, with its time limits and signals, and without the connection's
/// lock: other threads may send on it or shut it down meanwhile.
fn waiting(fd: c_int, flags: c_int, step: impl Fn(c_int) -> Option<ssize_t>) -> Option<ssize_t> {
    if flags & (libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return step(flags);
    }
    loop {
        let n = step(flags | libc::MSG_DONTWAIT)?;
        // SAFETY: libc's errno of this thread.
        let empty = n < 0 && unsafe { *libc::__errno_location() } == libc::EAGAIN;
        if !empty || sys::is_nonblocking(fd) {
            return Some(n);
        }
        batch::before_waiting();
        if let Err(error) = sys::wait_for_bytes(fd) {
            return Some(fail(error));
        }
    }
}

/// Answers a call that goes by the engine from what was read ahead, if anything was.
fn from_ahead(cell: &'static Cell, fd: c_int, iov: &[iovec], flags: c_int) -> Option<ssize_t> {
    if ahead::waiting(fd) == 0 {
        return None;
    }
    on(cell, fd, |engine, socket| ingress::unread(engine, socket, iov, flags).unwrap_or(Err(Errno::EAGAIN)))
}

/// A socket that is not followed may keep the thread waiting, as that of a name server or a log.
fn before_waiting(flags: c_int) {
    if flags & libc::MSG_DONTWAIT == 0 {
        batch::before_waiting();
    }
}

/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t {
    match table::entry(fd) {
        Entry::Socket(cell) if let Some(n) = receive(cell, fd, &one(buffer, size), 0) => n,
        Entry::Ours => fail(Errno::EBADF),
        _ => {
            // A pipe may keep the thread waiting.
            batch::before_waiting();
            next!(read(fd => c_int, buffer => *mut c_void, size => size_t) -> ssize_t, fail(Errno::ENOSYS))
        }
    }
}

/// # Safety
/// As read(2); the fortified form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, size: size_t, room: size_t) -> ssize_t {
    if size <= room
        && let Entry::Socket(cell) = table::entry(fd)
        && let Some(n) = receive(cell, fd, &one(buffer, size), 0)
    {
        return n;
    }
    batch::before_waiting();
    next!(__read_chk(fd => c_int, buffer => *mut c_void, size => size_t, room => size_t) -> ssize_t, fail(Errno::ENOSYS))
}

/// # Safety
/// As readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    if let Entry::Socket(cell) = table::entry(fd)
        // SAFETY: the caller's promise.
        && let Some(list) = unsafe { slices(iov, count) }
        && let Some(n) = receive(cell, fd, list, 0)
    {
        return n;
    }
    batch::before_waiting();
    next!(readv(fd => c_int, iov => *const iovec, count => c_int) -> ssize_t, fail(Errno::ENOSYS))
}

/// # Safety
/// As recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, size: size_t, flags: c_int) -> ssize_t {
    if let Entry::Socket(cell) = table::entry(fd)
        && let Some(n) = receive(cell, fd, &one(buffer, size), flags)
    {
        return n;
    }
    before_waiting(flags);
    next!(recv(fd => c_int, buffer => *mut c_void, size => size_t, flags => c_int) -> ssize_t, fail(Errno::ENOSYS))
}

/// # Safety
/// As recv(2); the fortified form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    size: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if size <= room
        && let Entry::Socket(cell) = table::entry(fd)
        && let Some(n) = receive(cell, fd, &one(buffer, size), flags)
    {
        return n;
    }
    before_waiting(flags);
    next!(__recv_chk(fd => c_int, buffer => *mut c_void, size => size_t, room => size_t, flags => c_int) -> ssize_t, fail(Errno::ENOSYS))
}

/// # Safety
/// As recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    size: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    // A stream has no addresses to tell; whoever asks all the same gets the kernel's answer and a copy.
    if let Entry::Socket(cell) = table::entry(fd) {
        if from.is_null()
            && let Some(n) = receive(cell, fd, &one(buffer, size), flags)
        {
            return n;
        }
        if let Some(n) = from_ahead(cell, fd, &one(buffer, size), flags) {
            // SAFETY: the caller's promise.
            if let Some(length) = unsafe { from_length.as_mut() } {
                *length = 0;
            }
            return n;
        }
        cell.with(fd, Socket::pass);
    }
    before_waiting(flags);
    next!(recvfrom(fd => c_int, buffer => *mut c_void, size => size_t, flags => c_int, from => *mut sockaddr, from_length => *mut socklen_t) -> ssize_t, fail(Errno::ENOSYS))
}

/// # Safety
/// As recvfrom(2); the fortified form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    size: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    if size <= room {
        // SAFETY: the caller's promise.
        return unsafe { recvfrom(fd, buffer, size, flags, from, from_length) };
    }
    before_waiting(flags);
    next!(__recvfrom_chk(fd => c_int, buffer => *mut c_void, size => size_t, room => size_t, flags => c_int, from => *mut sockaddr, from_length => *mut socklen_t) -> ssize_t, fail(Errno::ENOSYS))
}

/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    if let Some(header) = unsafe { message.as_mut() }
        && let Entry::Socket(cell) = table::entry(fd)
        // SAFETY: as above.
        && let Some(list) = unsafe { slices(header.msg_iov, c_int::try_from(header.msg_iovlen).unwrap_or(c_int::MAX)) }
        && let Some(n) = receive_message(cell, fd, header, list, flags)
    {
        return n;
    }
    before_waiting(flags);
    let n = next!(recvmsg(fd => c_int, message => *mut msghdr, flags => c_int) -> ssize_t, fail(Errno::ENOSYS));
    // SAFETY: the kernel has just filled it in.
    if let (0.., Some(header)) = (n, unsafe { message.as_ref() }) {
        quietly((), || super::descriptors(header, lifecycle::came));
    }
    n
}

fn receive_message(
    cell: &'static Cell,
    fd: c_int,
    header: &mut msghdr,
    list: &[iovec],
    flags: c_int,
) -> Option<ssize_t> {
    if header.msg_control.is_null() || header.msg_controllen == 0 {
        let n = receive(cell, fd, list, flags)?;
        if n >= 0 {
            (header.msg_namelen, header.msg_flags) = (0, 0);
        }
        return Some(n);
    }
    let header = core::ptr::from_mut(header);
    let step = |flags| {
        // SAFETY: the application's own message.
        on(cell, fd, |engine, socket| unsafe { receive_with_control(engine, socket, &mut *header, list, flags) })
    };
    // All of it can only be waited for by the kernel.
    let n = if flags & libc::MSG_WAITALL != 0 { step(flags) } else { waiting(fd, flags, step) };
    if n.is_some_and(|n| n >= 0) {
        // SAFETY: as above.
        quietly((), || super::descriptors(unsafe { &*header }, lifecycle::came));
    }
    n
}

/// Control data (time stamps, passed descriptors) belongs to the bytes it came with: copy.
///
/// # Safety
/// `header` must be what `recvmsg(2)` takes.
unsafe fn receive_with_control(
    engine: &Engine,
    socket: &mut Socket,
    header: &mut msghdr,
    list: &[iovec],
    flags: c_int,
) -> sys::Result<usize> {
    if let Some(n) = ingress::unread(engine, socket, list, flags) {
        (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
        return n;
    }
    // SAFETY: the caller's promise.
    let n = unsafe { sys::recvmsg(socket.fd, header, flags) }?;
    if n == 0 && iov::total(list) > 0 && flags & libc::MSG_ERRQUEUE == 0 {
        return ingress::end(socket);
    }
    if flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) == 0 {
        socket.received(engine, list, 0, n, underdeck_stats::Reason::CallFlags);
    }
    Ok(n)
}

/// # Safety
/// As recvmmsg(2). On a connection of ours the first message is received as by recvmsg: fewer messages than asked for is
/// an answer that the kernel gives too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if table::socket(fd).is_some() && count > 0 && !messages.is_null() {
        // SAFETY: the caller's promise: at least one message.
        let first = unsafe { &mut *messages };
        // SAFETY: as above.
        let n = unsafe { recvmsg(fd, &raw mut first.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        first.msg_len = c_uint::try_from(n).unwrap_or(0);
        return if n < 0 { -1 } else { 1 };
    }
    before_waiting(flags);
    next!(recvmmsg(fd => c_int, messages => *mut mmsghdr, count => c_uint, flags => c_int, timeout => *mut timespec) -> c_int, fail(Errno::ENOSYS) as c_int)
}

/// # Safety
/// As splice(2): HAProxy's `option splice-auto` moves some payload itself, beside what is anchored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    size: size_t,
    flags: c_uint,
) -> ssize_t {
    if let Some(not_yet) = super::before_unseen(to) {
        return not_yet;
    }
    if let Entry::Socket(cell) = table::entry(from)
        && ahead::waiting(from) > 0
    {
        let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
        let moved = on(cell, from, |engine, socket| ingress::move_ahead(engine, socket, to, size, waits));
        return moved.unwrap_or_else(|| fail(Errno::EAGAIN));
    }
    let n = next!(splice(from => c_int, from_offset => *mut off64_t, to => c_int, to_offset => *mut off64_t, size => size_t, flags => c_uint) -> ssize_t, fail(Errno::ENOSYS));
    if n == 0
        && size > 0
        && let Entry::Socket(cell) = table::entry(from)
    {
        return on(cell, from, |_, socket| ingress::end(socket)).unwrap_or(n);
    }
    if let Ok(moved) = usize::try_from(n)
        && moved > 0
    {
        if let Entry::Socket(cell) = table::entry(from) {
            on(cell, from, |engine, socket| {
                socket.skipped_rx(engine, moved);
                Ok(0)
            });
        }
        if let Entry::Socket(cell) = table::entry(to) {
            on(cell, to, |engine, socket| {
                socket.skipped_tx(engine, moved);
                Ok(0)
            });
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::Shutdown;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::*;
    use crate::testing::{self, SENT, body};

    fn message(iov: &mut [iovec], control: &mut [u8]) -> msghdr {
        // SAFETY: all-zero is a valid msghdr.
        let mut message: msghdr = unsafe { core::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (iov.as_mut_ptr(), iov.len());
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), control.len());
        message
    }

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    #[test]
    fn the_queue_of_errors_is_not_the_stream() {
        let (mut near, _far, got) = testing::ahead(Some(testing::set()));
        let (mut bytes, mut control) = ([0u8; 64], [0u8; 64]);
        let mut iov = one(bytes.as_mut_ptr().cast(), bytes.len());
        let mut message = message(&mut iov, &mut control);
        // SAFETY: everything lives.
        let n = unsafe { libc::recvmsg(near.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE) };
        assert_eq!((n, errno()), (-1, libc::EAGAIN));
        let fd = near.as_raw_fd();
        // SAFETY: as above.
        let n = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), 64, libc::MSG_ERRQUEUE) };
        assert_eq!((n, errno()), (-1, libc::EAGAIN));
        near.read_exact(&mut bytes[..8]).expect("there is more");
        assert_eq!(bytes[..8], body(got, 8));
    }

    #[test]
    fn recvmmsg_gives_one_message_and_the_next_one_later() {
        testing::alone("hooks::receive::tests::recvmmsg_gives_one_message_and_the_next_one_later", || {
            let (near, _far, got) = testing::ahead(Some(testing::set()));
            let (mut bytes, mut control) = ([[0u8; 64]; 2], [[0u8; 64]; 2]);
            let mut iov = bytes.each_mut().map(|it| one(it.as_mut_ptr().cast(), it.len()));
            let [first, second] = &mut iov;
            let [near_control, far_control] = &mut control;
            // Whoever asks for control data gets copies, so that the bytes can be looked at.
            let headers = [message(first, near_control), message(second, far_control)];
            let mut messages = headers.map(|msg_hdr| mmsghdr { msg_hdr, msg_len: 0 });
            let mut receive = |at: usize| {
                let (list, none) = (&raw mut messages[at], core::ptr::null_mut());
                // SAFETY: everything lives, and there are as many messages as is said.
                let n = unsafe {
                    libc::recvmmsg(near.as_raw_fd(), list, 2 - at as c_uint, libc::MSG_WAITFORONE as _, none)
                };
                (n, messages.map(|it| it.msg_len))
            };
            assert_eq!(receive(0), (1, [64, 0]));
            assert_eq!(receive(1), (1, [64, 64]));
            assert_eq!(bytes.concat(), body(got, 128));
        });
    }

    #[test]
    fn recvmmsg_of_a_connection_without_bytes_is_an_error() {
        testing::alone("hooks::receive::tests::recvmmsg_of_a_connection_without_bytes_is_an_error", || {
            let (near, _far) = testing::pair();
            let mut bytes = [0u8; 64];
            let mut iov = one(bytes.as_mut_ptr().cast(), bytes.len());
            let mut messages = mmsghdr { msg_hdr: message(&mut iov, &mut []), msg_len: 7 };
            let none = core::ptr::null_mut();
            // SAFETY: everything lives.
            let n = unsafe { libc::recvmmsg(near.as_raw_fd(), &raw mut messages, 1, libc::MSG_DONTWAIT as _, none) };
            assert_eq!((n, errno()), (-1, libc::EAGAIN));
        });
    }

    #[test]
    fn who_waits_for_all_gets_all() {
        let (near, mut far, got) = testing::ahead(Some(testing::set()));
        near.set_nonblocking(false).expect("set");
        far.write_all(&body(SENT, 50_000)).expect("sent");
        let all = SENT + 50_000 - got;
        assert!(testing::copied(&near, all) == body(got, all));
    }

    #[test]
    fn who_waits_for_all_gets_what_there_is_when_no_more_comes() {
        const LIMIT: Duration = Duration::from_millis(100);
        let then = [Err(ErrorKind::WouldBlock), Ok(0), Err(ErrorKind::ConnectionReset)];
        for (how, then) in ["a time limit", "the end", "a reset"].into_iter().zip(then) {
            let (mut near, mut far) = testing::pair();
            near.set_read_timeout(Some(LIMIT)).expect("set");
            far.write_all(b"HTTP/1.1").expect("sent");
            let end = std::thread::spawn(move || {
                std::thread::sleep(LIMIT / 5);
                match how {
                    "the end" => far.shutdown(Shutdown::Write).expect("shut down"),
                    "a reset" => sys::reset(far.as_raw_fd()),
                    _ => {}
                }
                far
            });
            let next = testing::ends(how, move || {
                assert_eq!(testing::copied(&near, 16), b"HTTP/1.1", "{how}");
                near.read(&mut [0; 1]).map_err(|error| error.kind())
            });
            assert_eq!(next, then, "{how}");
            drop(end.join());
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_an_error_and_no_end() {
        let (near, mut far) = testing::pair();
        far.write_all(b"bytes").expect("sent");
        let mut bytes = [0u8; 8];
        let mut list = vec![one(bytes.as_mut_ptr().cast(), 1)[0]; 1025];
        let mut message = message(&mut list, &mut []);
        message.msg_control = core::ptr::null_mut();
        // SAFETY: everything lives.
        let n = unsafe { libc::recvmsg(near.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        assert_eq!((n, errno()), (-1, libc::EMSGSIZE));
    }

    #[test]
    fn whoever_waits_does_not_keep_other_threads_from_the_connection() {
        for how in 0..3 {
            testing::ends(["MSG_PEEK", "MSG_WAITALL", "recvmsg"][how], move || {
                let (near, mut far) = testing::pair();
                std::thread::scope(|scope| {
                    let (tell, told) = std::sync::mpsc::channel();
                    let near = &near;
                    let waiting = scope.spawn(move || {
                        // SAFETY: no arguments.
                        tell.send(unsafe { libc::gettid() }).expect("somebody asks");
                        let (mut bytes, mut control) = ([0u8; 5], [0u8; 64]);
                        let mut iov = one(bytes.as_mut_ptr().cast(), bytes.len());
                        let mut message = message(&mut iov, &mut control);
                        let buffer = bytes.as_mut_ptr().cast();
                        // SAFETY: everything lives.
                        unsafe {
                            match how {
                                0 => libc::recv(near.as_raw_fd(), buffer, 5, libc::MSG_PEEK),
                                1 => libc::recv(near.as_raw_fd(), buffer, 5, libc::MSG_WAITALL),
                                _ => libc::recvmsg(near.as_raw_fd(), &raw mut message, 0),
                            }
                        }
                    });
                    let thread = told.recv().expect("its number");
                    testing::until("it waits", || testing::sleeps(thread));
                    { near }.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
                    far.read_exact(&mut [0; 18]).expect("received");
                    far.write_all(b"HTTP/").expect("answered");
                    assert_eq!(waiting.join().expect("no panic"), 5);
                });
            });
        }
    }
}
