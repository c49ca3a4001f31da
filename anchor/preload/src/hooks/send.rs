//! write, writev, send, sendto, sendmsg, sendmmsg, sendfile; and writes to files.

use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t};
use syscalls::Errno;
use underdeck_stats::Reason;

use super::{fail, next, on, quietly};
use crate::cell::Cell;
use crate::socket::Socket;
use crate::table::{self, Entry};
use crate::{anchor, batch, egress, engine, exits, iov, sys};

fn one(buffer: *const c_void, size: size_t) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: size }]
}

/// # Safety
/// `iov` must point to `count` slices.
unsafe fn slices<'a>(iov: *const iovec, count: usize) -> Option<&'a [iovec]> {
    // SAFETY: promised by the caller.
    (!iov.is_null() && count <= 1024).then(|| unsafe { core::slice::from_raw_parts(iov, count) })
}

/// Sends; where the application waits, it does so without the connection's lock: other threads may receive on it or shut it
/// down meanwhile.
fn transmit(cell: &'static Cell, fd: c_int, iov: &[iovec], flags: c_int) -> Option<ssize_t> {
    // One call, one notification that the buffer is free.
    if flags & (libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
        return on(cell, fd, |engine, socket| egress::transmit(engine, socket, iov, flags));
    }
    let (size, mut done) = (iov::total(iov), 0);
    loop {
        let part = iov::Part::new(iov, size, done, size - done);
        // As the kernel does: what was sent is the answer, the error that of the next call.
        let quiet = if done > 0 { libc::MSG_NOSIGNAL } else { 0 };
        let flags = flags | libc::MSG_DONTWAIT | quiet;
        let n = on(cell, fd, |engine, socket| egress::transmit(engine, socket, part.slices(), flags))?;
        done += usize::try_from(n).unwrap_or(0);
        if done >= size {
            return Some(done.cast_signed());
        }
        // SAFETY: libc's errno of this thread.
        let error = if n < 0 { unsafe { *libc::__errno_location() } } else { libc::EAGAIN };
        if error != libc::EAGAIN {
            return Some(if done == 0 { n } else { stopped(cell, fd, done, error) });
        }
        if sys::is_nonblocking(fd) {
            return Some(if done == 0 { n } else { done.cast_signed() });
        }
        batch::before_waiting();
        if is_plain(cell, fd) {
            return Some(transmit_plain(cell, fd, iov, done, flags & !libc::MSG_DONTWAIT));
        }
        if let Err(error) = sys::wait_for_room(fd) {
            return Some(if done == 0 { fail(error) } else { done.cast_signed() });
        }
    }
}

/// The answer to a call that failed after `done` bytes. A broken pipe breaks the next call by itself.
fn stopped(cell: &'static Cell, fd: c_int, done: usize, error: c_int) -> ssize_t {
    if error != libc::EPIPE {
        cell.with(fd, |socket| socket.tx_error = Socket::due(Errno::new(error)));
    }
    done.cast_signed()
}

/// Whether nothing that is sent on a connection can be a placeholder.
fn is_plain(cell: &'static Cell, fd: c_int) -> bool {
    let is_plain = |socket: &mut Socket| socket.link.is_none() && socket.owed.is_none() && socket.batch.is_none();
    !anchor::any_open() && cell.with(fd, is_plain) == Some(true)
}

/// Sends what follows the first `done` bytes in the kernel's own way, with its time limits and signals.
fn transmit_plain(cell: &'static Cell, fd: c_int, iov: &[iovec], done: usize, flags: c_int) -> ssize_t {
    let size = iov::total(iov);
    let rest = iov::Part::new(iov, size, done, size - done);
    match sys::send(fd, rest.slices(), flags) {
        Ok(n) => {
            on(cell, fd, |engine, socket| {
                socket.sent(engine, rest.slices(), 0, n);
                Ok(n)
            });
            (done + n).cast_signed()
        }
        Err(error) if done == 0 => fail(error),
        Err(Errno::EAGAIN | Errno::EINTR) => done.cast_signed(),
        Err(error) => stopped(cell, fd, done, error.into_raw()),
    }
}

/// Puts payload back before it goes to a descriptor that is no connection of ours. False: it cannot be, and nothing
/// may be written.
fn before_write(fd: c_int, iov: &[iovec]) -> bool {
    if !anchor::any_open() {
        return true;
    }
    let Some(engine) = engine::running() else { return true };
    let key = usize::try_from(fd).ok();
    quietly(false, || exits::materialise(engine, key, iov, Reason::ExitFile).is_ok()) || {
        engine.stats.reset();
        false
    }
}

/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, size: size_t) -> ssize_t {
    match table::entry(fd) {
        Entry::Socket(cell) if let Some(n) = transmit(cell, fd, &one(buffer, size), 0) => n,
        Entry::Ours => fail(Errno::EBADF),
        Entry::Socket(_) | Entry::Nothing if !before_write(fd, &one(buffer, size)) => fail(Errno::EIO),
        _ => next!(write(fd => c_int, buffer => *const c_void, size => size_t) -> ssize_t, fail(Errno::ENOSYS)),
    }
}

/// # Safety
/// As writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    if let Some(list) = unsafe { slices(iov, usize::try_from(count).unwrap_or(usize::MAX)) } {
        match table::entry(fd) {
            Entry::Socket(cell) if let Some(n) = transmit(cell, fd, list, 0) => return n,
            _ if !before_write(fd, list) => return fail(Errno::EIO),
            _ => {}
        }
    }
    next!(writev(fd => c_int, iov => *const iovec, count => c_int) -> ssize_t, fail(Errno::ENOSYS))
}

/// # Safety
/// As send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buffer: *const c_void, size: size_t, flags: c_int) -> ssize_t {
    match table::entry(fd) {
        Entry::Socket(cell) if let Some(n) = transmit(cell, fd, &one(buffer, size), flags) => n,
        _ if !before_write(fd, &one(buffer, size)) => fail(Errno::EIO),
        _ => {
            next!(send(fd => c_int, buffer => *const c_void, size => size_t, flags => c_int) -> ssize_t, fail(Errno::ENOSYS))
        }
    }
}

/// # Safety
/// As sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    size: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    match table::entry(fd) {
        // A connection ignores the address (sendto(2)), except with TCP fast open, where it is none yet.
        Entry::Socket(cell)
            if flags & libc::MSG_FASTOPEN == 0
                && let Some(n) = transmit(cell, fd, &one(buffer, size), flags) =>
        {
            n
        }
        _ if !before_write(fd, &one(buffer, size)) => fail(Errno::EIO),
        _ => {
            next!(sendto(fd => c_int, buffer => *const c_void, size => size_t, flags => c_int, to => *const sockaddr, to_length => socklen_t) -> ssize_t, fail(Errno::ENOSYS))
        }
    }
}

/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    if let Some(header) = unsafe { message.as_ref() }
        // SAFETY: the caller's promise.
        && let Some(list) = unsafe { slices(header.msg_iov, header.msg_iovlen) }
    {
        if let Entry::Socket(cell) = table::entry(fd)
            && let Some(n) = send_message(cell, fd, header, list, flags)
        {
            return n;
        }
        if !before_write(fd, list) {
            return fail(Errno::EIO);
        }
        passed_descriptors(header);
    }
    next!(sendmsg(fd => c_int, message => *const msghdr, flags => c_int) -> ssize_t, fail(Errno::ENOSYS))
}

fn send_message(cell: &'static Cell, fd: c_int, header: &msghdr, list: &[iovec], flags: c_int) -> Option<ssize_t> {
    if header.msg_control.is_null() || header.msg_controllen == 0 {
        return transmit(cell, fd, list, flags);
    }
    // The kernel gets this call as it is: what was accepted before goes first.
    if let Some(not_yet) = super::before_unseen(fd) {
        return Some(not_yet);
    }
    passed_descriptors(header);
    if !before_write(fd, list) {
        return Some(fail(Errno::EIO));
    }
    on(cell, fd, |engine, socket| {
        // SAFETY: the application's own message.
        let n = unsafe { sys::sendmsg(fd, header, flags) }?;
        socket.sent(engine, list, 0, n);
        Ok(n)
    })
}

/// Connections whose descriptors go to another process are left alone from now on.
fn passed_descriptors(header: &msghdr) {
    super::descriptors(header, crate::lifecycle::shared);
}

/// # Safety
/// As sendmmsg(2). On a connection of ours one message is sent for each call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if table::socket(fd).is_some() && count > 0 && !messages.is_null() {
        // SAFETY: the caller's promise: at least one message.
        let first = unsafe { &mut *messages };
        // SAFETY: as above.
        let n = unsafe { sendmsg(fd, &raw const first.msg_hdr, flags) };
        first.msg_len = c_uint::try_from(n).unwrap_or(0);
        return if n < 0 { -1 } else { 1 };
    }
    if !messages.is_null() {
        // SAFETY: the caller's promise: so many messages, of which the kernel looks at no more than UIO_MAXIOV.
        let all =
            unsafe { core::slice::from_raw_parts(messages, count.min(libc::UIO_MAXIOV.cast_unsigned()) as usize) };
        all.iter().for_each(|message| passed_descriptors(&message.msg_hdr));
    }
    next!(sendmmsg(fd => c_int, messages => *mut mmsghdr, count => c_uint, flags => c_int) -> c_int, fail(Errno::ENOSYS) as c_int)
}

fn sent_file(to: c_int, n: ssize_t) -> ssize_t {
    if let Ok(moved) = usize::try_from(n)
        && moved > 0
        && let Entry::Socket(cell) = table::entry(to)
    {
        on(cell, to, |engine, socket| {
            socket.skipped_tx(engine, moved);
            Ok(0)
        });
    }
    n
}

/// # Safety
/// As sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut libc::off_t, size: size_t) -> ssize_t {
    if let Some(not_yet) = super::before_unseen(to) {
        return not_yet;
    }
    sent_file(
        to,
        next!(sendfile(to => c_int, from => c_int, offset => *mut libc::off_t, size => size_t) -> ssize_t, fail(Errno::ENOSYS)),
    )
}

/// # Safety
/// As sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, size: size_t) -> ssize_t {
    if let Some(not_yet) = super::before_unseen(to) {
        return not_yet;
    }
    sent_file(
        to,
        next!(sendfile64(to => c_int, from => c_int, offset => *mut off64_t, size => size_t) -> ssize_t, fail(Errno::ENOSYS)),
    )
}

macro_rules! positioned_write {
    ($name:ident) => {
        /// # Safety
        /// As pwrite(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, buffer: *const c_void, size: size_t, offset: off64_t) -> ssize_t {
            if !before_write(fd, &one(buffer, size)) {
                return fail(Errno::EIO);
            }
            next!($name(fd => c_int, buffer => *const c_void, size => size_t, offset => off64_t) -> ssize_t, fail(Errno::ENOSYS))
        }
    };
}
positioned_write!(pwrite);
positioned_write!(pwrite64);

macro_rules! positioned_writev {
    ($name:ident $(, $flags:ident)?) => {
        /// # Safety
        /// As pwritev(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t $(, $flags: c_int)?) -> ssize_t {
            // SAFETY: the caller's promise.
            if let Some(list) = unsafe { slices(iov, usize::try_from(count).unwrap_or(usize::MAX)) } && !before_write(fd, list) {
                return fail(Errno::EIO);
            }
            next!($name(fd => c_int, iov => *const iovec, count => c_int, offset => off64_t $(, $flags => c_int)?) -> ssize_t, fail(Errno::ENOSYS))
        }
    };
}
positioned_writev!(pwritev);
positioned_writev!(pwritev64);
positioned_writev!(pwritev2, flags);
positioned_writev!(pwritev64v2, flags);

/// # Safety
/// As vmsplice(2): pages of the application would leave with whatever they hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(fd: c_int, iov: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
    // SAFETY: the caller's promise.
    if let Some(list) = unsafe { slices(iov, count) }
        && !before_write(fd, list)
    {
        return fail(Errno::EIO);
    }
    next!(vmsplice(fd => c_int, iov => *const iovec, count => size_t, flags => c_uint) -> ssize_t, fail(Errno::ENOSYS))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::fd::{AsRawFd, FromRawFd, RawFd};

    use super::*;
    use crate::testing::{self, Begun};

    unsafe extern "C" {
        fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    }

    /// A head and payload as the proxy has them, and what they are.
    fn received() -> (Begun, Vec<u8>) {
        let it = testing::begun(Some(testing::set()));
        let head = it.had.len() - it.got;
        assert!(it.got > 1000 && it.had[head..] != testing::body(0, it.got), "otherwise this would test nothing");
        let right = [&it.had[..head], &testing::body(0, it.got)].concat();
        (it, right)
    }

    #[test]
    fn payload_is_put_back_by_whatever_call_it_goes_to_a_file() {
        testing::alone("hooks::send::tests::payload_is_put_back_by_whatever_call_it_goes_to_a_file", || {
            type Way = (&'static str, unsafe fn(RawFd, &[iovec; 2]) -> ssize_t);
            let ways: [Way; 7] = [
                // SAFETY: the caller has opened the file, and the lists live.
                ("pwrite", |fd, [a, b]| unsafe {
                    libc::pwrite(fd, a.iov_base, a.iov_len, 0) + libc::pwrite(fd, b.iov_base, b.iov_len, a.iov_len as _)
                }),
                // SAFETY: as above.
                ("pwrite64", |fd, [a, b]| unsafe {
                    libc::pwrite64(fd, a.iov_base, a.iov_len, 0)
                        + libc::pwrite64(fd, b.iov_base, b.iov_len, a.iov_len as _)
                }),
                // SAFETY: as above.
                ("pwritev", |fd, list| unsafe { libc::pwritev(fd, list.as_ptr(), 2, 0) }),
                // SAFETY: as above.
                ("pwritev64", |fd, list| unsafe { libc::pwritev64(fd, list.as_ptr(), 2, 0) }),
                // SAFETY: as above.
                ("pwritev2", |fd, list| unsafe { libc::pwritev2(fd, list.as_ptr(), 2, 0, 0) }),
                // SAFETY: as above.
                ("pwritev64v2", |fd, list| unsafe { pwritev64v2(fd, list.as_ptr(), 2, 0, 0) }),
                // SAFETY: as above.
                ("writev", |fd, list| unsafe { libc::writev(fd, list.as_ptr(), 2) }),
            ];
            for (how, write) in ways {
                // SAFETY: the name is zero-terminated, and nobody else has the descriptor.
                let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC)) };
                let (mut it, right) = received();
                let (first, second) = it.had.split_at_mut(right.len() / 3);
                let list = [first, second].map(|part| one(part.as_ptr().cast(), part.len())[0]);
                // SAFETY: everything lives.
                let n = unsafe { write(file.as_raw_fd(), &list) };
                assert_eq!(n, right.len().cast_signed(), "{how}");
                let mut written = Vec::new();
                std::io::Seek::rewind(&mut file).expect("a file");
                file.read_to_end(&mut written).expect("a file");
                assert!(written == right, "{how}");
            }
        });
    }

    #[test]
    fn pages_that_go_into_a_pipe_hold_payload() {
        testing::alone("hooks::send::tests::pages_that_go_into_a_pipe_hold_payload", || {
            let (it, right) = received();
            let (mut read, write) = std::io::pipe().expect("a pipe");
            let list = one(it.had.as_ptr().cast(), it.had.len());
            // SAFETY: everything lives until the pipe is gone.
            let n = unsafe { libc::vmsplice(write.as_raw_fd(), list.as_ptr(), 1, 0) };
            assert_eq!(n, right.len().cast_signed());
            let mut seen = vec![0; right.len()];
            read.read_exact(&mut seen).expect("it is there");
            assert!(seen == right);
        });
    }

    #[test]
    fn sendmmsg_sends_payload_message_by_message() {
        testing::alone("hooks::send::tests::sendmmsg_sends_payload_message_by_message", || {
            let (mut client, mut server) = testing::pair();
            client.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
            assert_ne!(server.read(&mut [0; 256]).expect("a request"), 0);
            let (mut it, right) = received();
            let (first, second) = it.had.split_at_mut(right.len() / 3);
            let mut parts = [first, second].map(|part| one(part.as_ptr().cast(), part.len()));
            let mut messages = parts.each_mut().map(|part| {
                // SAFETY: all-zero is a valid mmsghdr.
                let mut message: mmsghdr = unsafe { core::mem::zeroed() };
                (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part.as_mut_ptr(), 1);
                message
            });
            for at in 0..2 {
                // SAFETY: everything lives, and there are as many messages as is said.
                let n = unsafe { libc::sendmmsg(server.as_raw_fd(), &raw mut messages[at], 2 - at as c_uint, 0) };
                assert_eq!((n, messages[at].msg_len as usize), (1, parts[at][0].iov_len));
            }
            testing::events(testing::set(), 1);
            let mut seen = vec![0; right.len()];
            client.read_exact(&mut seen).expect("it arrives");
            assert!(seen == right);
        });
    }

    #[test]
    fn a_write_that_waits_does_not_keep_other_threads_from_the_connection() {
        testing::ends("it ends", || {
            let (near, mut far) = testing::pair();
            (&near).write_all(b"POST / HTTP/1.1\r\nContent-Length: 67108864\r\n\r\n").expect("sent");
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| (&near).write_all(&vec![b'x'; 64 << 20]));
                let mut first = [0; 64];
                far.read_exact(&mut first).expect("it writes");
                far.write_all(b"HTTP/1.1").expect("sent");
                let mut answer = [0; 8];
                (&near).read_exact(&mut answer).expect("received");
                assert_eq!(&answer, b"HTTP/1.1");
                near.shutdown(Shutdown::Both).expect("shut down");
                assert!(writing.join().expect("no panic").is_err());
            });
        });
    }
}
