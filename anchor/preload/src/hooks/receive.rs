//! read, readv, recv, recvfrom, recvmsg, recvmmsg, and splice out of a socket.

use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use syscalls::Errno;

use super::{fail, next, on};
use crate::engine::Engine;
use crate::socket::{Cell, Socket};
use crate::table::{self, Entry};
use crate::{ahead, ingress, sys};

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
    if !ingress::is_usual(flags) || flags & libc::MSG_DONTWAIT != 0 {
        return on(cell, fd, |engine, socket| ingress::receive(engine, socket, iov, flags));
    }
    loop {
        let n = on(cell, fd, |engine, socket| ingress::receive(engine, socket, iov, flags | libc::MSG_DONTWAIT))?;
        // SAFETY: libc's errno of this thread.
        let empty = n < 0 && unsafe { *libc::__errno_location() } == libc::EAGAIN;
        if !empty || sys::is_nonblocking(fd) {
            return Some(n);
        }
        // The wait is the kernel's, with its time limits and signals, and without the connection's lock: other threads may
        // send on it or shut it down meanwhile.
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

/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t {
    match table::entry(fd) {
        Entry::Socket(cell) if let Some(n) = receive(cell, fd, &one(buffer, size), 0) => n,
        Entry::Ours => fail(Errno::EBADF),
        _ => next!(read(fd => c_int, buffer => *mut c_void, size => size_t) -> ssize_t, fail(Errno::ENOSYS)),
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
    next!(__recvfrom_chk(fd => c_int, buffer => *mut c_void, size => size_t, room => size_t, flags => c_int, from => *mut sockaddr, from_length => *mut socklen_t) -> ssize_t, fail(Errno::ENOSYS))
}

/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if let Entry::Socket(cell) = table::entry(fd)
        && !message.is_null()
    {
        // SAFETY: the caller's promise.
        let taken = on(cell, fd, |engine, socket| unsafe { receive_message(engine, socket, message, flags) });
        if let Some(n) = taken {
            return n;
        }
    }
    next!(recvmsg(fd => c_int, message => *mut msghdr, flags => c_int) -> ssize_t, fail(Errno::ENOSYS))
}

/// # Safety
/// `message` must be what `recvmsg(2)` takes.
unsafe fn receive_message(
    engine: &Engine,
    socket: &mut Socket,
    message: *mut msghdr,
    flags: c_int,
) -> sys::Result<usize> {
    // SAFETY: the caller's promise.
    let (header, list) = unsafe { (&mut *message, slices((*message).msg_iov, (*message).msg_iovlen as c_int)) };
    let list = list.unwrap_or(&[]);
    if header.msg_control.is_null() || header.msg_controllen == 0 {
        let n = ingress::receive(engine, socket, list, flags)?;
        header.msg_namelen = 0;
        header.msg_flags = 0;
        return Ok(n);
    }
    // Control data (time stamps, passed descriptors) belongs to the bytes it came with: copy.
    if let Some(n) = ingress::unread(engine, socket, list, flags) {
        (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
        return n;
    }
    // SAFETY: the caller's promise.
    let n = unsafe { sys::recvmsg(socket.fd, message, flags) }?;
    if flags & libc::MSG_PEEK == 0 {
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
