//! How connections begin and end: connect, accept, dup, close, fork.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::Ordering;

use libc::{c_int, sockaddr, socklen_t};
use underdeck_stats::{Block, Reason, Role};

use crate::cell::Cell;
use crate::config::{Peer, Rule};
use crate::engine::{self, Engine};
use crate::socket::Socket;
use crate::table::{self, Entry};
use crate::{ahead, batch, egress, exits, routes, sys, watch};

/// A descriptor is new: a connection that is followed by that number was closed unseen.
pub(crate) fn came(fd: c_int) {
    watch::forget(fd);
    let Some(cell) = table::socket(fd) else { return table::release(fd) };
    table::release(fd);
    let last = cell.with(fd, |socket| {
        socket.aliases = socket.aliases.saturating_sub(1);
        let other = another(cell);
        socket.fd = other.unwrap_or(-1);
        other.is_none()
    });
    if last == Some(true)
        && let (Some(mut socket), Some(engine)) = (cell.vacate(), engine::running())
    {
        // Whatever was to be sent has nowhere to go: the number is somebody else's.
        (socket.batch, socket.owed) = (None, None);
        socket.abandon(engine);
        socket.detach(engine);
        table::recycle(cell);
    }
}

/// A socket was made: remembers stream sockets of the families that can carry proxied traffic.
pub(crate) fn made(fd: c_int, domain: c_int, kind: c_int) {
    came(fd);
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    if kind == libc::SOCK_STREAM && matches!(domain, libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX) {
        table::note_stream(fd);
    } else {
        table::release(fd);
    }
}

/// `connect` succeeded or is on its way.
///
/// # Safety
/// `address` must be what `connect(2)` took.
pub(crate) unsafe fn connected(fd: c_int, address: *const sockaddr, length: socklen_t) {
    if !matches!(table::entry(fd), Entry::Fresh) {
        return;
    }
    let Some(engine) = engine::get() else { return };
    // SAFETY: the kernel has just read that many bytes there.
    let bytes = unsafe { core::slice::from_raw_parts(address.cast::<u8>(), length as usize) };
    let copies = left_out(engine, Role::Connected, bytes);
    begin(engine, fd, Role::Connected, routes::of(bytes), copies);
}

/// A connection was accepted.
pub(crate) fn accepted(fd: c_int, listener: c_int) {
    came(fd);
    let Some(engine) = engine::get() else { return };
    let copies = if engine.config.leave_out.iter().any(|rule| rule.role == Role::Accepted) {
        let local = sys::local_address(fd);
        local.and_then(|(address, length)| {
            // SAFETY: the kernel has filled in `length` bytes.
            let bytes = unsafe { core::slice::from_raw_parts((&raw const address).cast::<u8>(), length as usize) };
            left_out(engine, Role::Accepted, bytes)
        })
    } else {
        None
    };
    begin(engine, fd, Role::Accepted, routes::of_listener(listener), copies);
}

fn begin(engine: &Engine, fd: c_int, role: Role, route: u8, copies: Option<Reason>) {
    engine.is_on();
    table::insert(fd, Socket::new(role, route, copies));
    Block::add(&engine.stats.role(role).connections, 1);
}

/// A descriptor is about to be closed. Says whether it is the application's to close.
pub(crate) fn closing(fd: c_int) -> bool {
    let cell = match table::entry(fd) {
        Entry::Nothing => {
            ahead::closed(fd);
            exits::closed(fd, false);
            return true;
        }
        Entry::Fresh => {
            table::release(fd);
            return true;
        }
        Entry::Ours => return is_vforked(),
        Entry::Socket(cell) => cell,
    };
    if is_vforked() {
        return true;
    }
    exits::closed(fd, true);
    watch::forget(fd);
    table::release(fd);
    let last = cell.with(fd, |socket| {
        let Some(other) = (socket.aliases > 0).then(|| another(cell)).flatten() else { return true };
        socket.aliases -= 1;
        socket.fd = other;
        if socket.batch.is_some() || socket.owed.is_some() {
            batch::remember(other);
        }
        false
    });
    if last != Some(true) {
        return true;
    }
    if let (Some(mut socket), Some(engine)) = (cell.vacate(), engine::running()) {
        egress::flush(engine, &mut socket, true);
        if socket.ahead > 0 {
            // As the kernel does where bytes were not read (RFC 9293, section 3.6).
            sys::reset(fd);
        }
        socket.abandon(engine);
        socket.detach(engine);
        table::recycle(cell);
    }
    true
}

/// A descriptor that still stands for the connection in `cell`. Others were closed unseen, and are forgotten.
fn another(cell: &'static Cell) -> Option<c_int> {
    let numbers = 0..=table::highest().cast_signed();
    let of_cell = |fd: &c_int| table::socket(*fd).is_some_and(|it| core::ptr::eq(it, cell));
    numbers.filter(of_cell).find(|fd| {
        let is_open = sys::is_socket(*fd);
        if !is_open {
            table::release(*fd);
        }
        is_open
    })
}

/// `from` was duplicated as `to`: both stand for one connection, on which nothing is anchored any more.
pub(crate) fn duplicated(from: c_int, to: c_int) {
    if is_vforked() {
        return;
    }
    match table::entry(from) {
        Entry::Socket(cell) => {
            let known = cell.with(from, |socket| {
                socket.aliases = socket.aliases.saturating_add(1);
                socket.copies = Some(Reason::CallFlags);
            });
            if known.is_some() {
                table::alias(to, cell);
            }
        }
        Entry::Fresh => table::note_stream(to),
        Entry::Nothing | Entry::Ours => table::release(to),
    }
}

/// A connection leaves for another process: whoever reads it there must find every byte, or none.
pub(crate) fn shared(fd: c_int) {
    if let (Some(cell), Some(engine)) = (table::socket(fd), engine::running()) {
        cell.with(fd, |socket| {
            egress::flush(engine, socket, false);
            socket.copies = Some(Reason::CallFlags);
            if socket.ahead > 0 {
                // What was taken from the socket cannot be put back, and who reads on would miss it unawares.
                egress::doubt(engine, socket, "it is passed on, and payload of it was read ahead");
            }
        });
    }
}

/// The sending side is about to be shut down.
pub(crate) fn shutting_down(fd: c_int) {
    if let (Some(cell), Some(engine)) = (table::socket(fd), engine::running()) {
        cell.with(fd, |socket| egress::flush(engine, socket, true));
    }
}

/// The child of a fork begins with nothing.
pub(crate) extern "C" fn forked() {
    engine::after_fork_in_child();
}

/// Whether this is the child of vfork: it shares this memory, but its descriptors are its own.
pub(crate) fn is_vforked() -> bool {
    engine::running().is_some_and(|engine| engine.pid != sys::getpid())
}

fn left_out(engine: &Engine, role: Role, address: &[u8]) -> Option<Reason> {
    if engine.config.retired.load(Ordering::Relaxed) {
        return Some(Reason::SwitchedOff);
    }
    let out = engine.config.leave_out.iter().any(|rule| rule.role == role && rule.matches(address));
    out.then_some(Reason::DirectionOff)
}

impl Rule {
    /// Whether the rule means this `struct sockaddr`.
    fn matches(&self, address: &[u8]) -> bool {
        match &self.peer {
            Peer::Any => true,
            Peer::Unix(path) => {
                let end = |bytes: &[u8]| bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                family(address) == Some(libc::AF_UNIX)
                    && address.get(2..).is_some_and(|bytes| bytes[..end(bytes)] == path[..])
            }
            Peer::Inet { address: ip, port } => inet(address).is_some_and(|(seen, seen_port)| {
                port.is_none_or(|port| port == seen_port) && ip.is_none_or(|ip| ip.to_canonical() == seen)
            }),
        }
    }
}

fn family(address: &[u8]) -> Option<c_int> {
    Some(u16::from_ne_bytes(address.get(..2)?.try_into().ok()?).into())
}

/// Address and port of a `sockaddr_in` or `sockaddr_in6`; IPv4-mapped addresses as IPv4.
fn inet(address: &[u8]) -> Option<(IpAddr, u16)> {
    let port = u16::from_be_bytes(address.get(2..4)?.try_into().ok()?);
    let ip = match family(address)? {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(address.get(4..8)?).ok()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(address.get(8..24)?).ok()?)),
        _ => return None,
    };
    Some((ip.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use syscalls::{Errno, Sysno, syscall};

    use super::*;
    use crate::testing::{self, BODY, SENT, body};

    #[test]
    fn a_duplicate_outlives_its_original() {
        let (near, far, got) = testing::ahead(Some(testing::set()));
        let second = near.try_clone().expect("duplicated");
        let held = engine::running().expect("it runs").stats.level(underdeck_stats::Gauge::AnchorsOpen);
        assert_ne!(held, 0);
        drop(near);
        let rest = std::thread::spawn(move || {
            { &far }.write_all(&body(SENT, BODY - SENT)).expect("sent");
            far
        });
        second.set_nonblocking(false).expect("set");
        assert!(testing::copied(&second, BODY - got) == body(got, BODY - got));
        let mut far = rest.join().expect("no panic");
        let fd = second.as_raw_fd();
        drop(second);
        assert!(matches!(table::entry(fd), Entry::Nothing));
        assert_eq!(far.read(&mut [0; 8]).expect("its end"), 0);
    }

    /// The next read of a descriptor where nobody has the library.
    fn read_elsewhere(fd: c_int) -> Result<Vec<u8>, Errno> {
        let mut bytes = [0u8; 64];
        // SAFETY: the buffer lives.
        let n = unsafe { syscall!(Sysno::read, fd, bytes.as_mut_ptr(), bytes.len()) }?;
        Ok(bytes[..n].to_vec())
    }

    fn resets() -> u64 {
        underdeck_stats::Snapshot::of_pid(std::process::id()).expect("counters").resets
    }

    /// Alone: while such a connection is open, nobody knows where what others receive may leave.
    #[test]
    fn a_connection_that_is_passed_on_with_bytes_ahead_is_reset() {
        const NAME: &str = "lifecycle::tests::a_connection_that_is_passed_on_with_bytes_ahead_is_reset";
        testing::alone(NAME, is_reset_when_passed_on);
    }

    fn is_reset_when_passed_on() {
        for pass in [testing::pass, testing::pass_among_several] {
            let (near, mut far, _) = testing::ahead(Some(testing::set()));
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            let before = resets();
            pass(&ours, near.as_raw_fd());
            assert!(resets() > before);
            let there = testing::passed(&theirs);
            // Not what follows the bytes that it does not get, and not the end of the stream.
            assert_eq!(read_elsewhere(there.as_raw_fd()), Err(Errno::ECONNRESET));
            let error = far.read(&mut [0; 8]).expect_err("nobody is there");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }

    fn forks() {
        let (near, _far) = testing::pair();
        { &near }.write_all(b"\0no HTTP").expect("sent");
        let uploads = Socket::new(Role::Accepted, 0, None);
        assert!(uploads.may_leave_unseen(), "otherwise this would test nothing");
        // SAFETY: the child only looks, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(c_int::from(uploads.may_leave_unseen())) };
        }
        let mut status = -1;
        // SAFETY: the kernel writes one int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }

    #[test]
    fn the_child_of_a_fork_does_not_count_the_connections_of_its_parent() {
        let name = "lifecycle::tests::the_child_of_a_fork_does_not_count_the_connections_of_its_parent";
        testing::alone(name, forks);
    }

    #[test]
    fn a_connection_that_is_passed_on_is_whole() {
        let (near, mut far) = testing::pair();
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        testing::pass(&ours, near.as_raw_fd());
        let there = testing::passed(&theirs);
        far.write_all(b"HTTP").expect("sent");
        assert_eq!(read_elsewhere(there.as_raw_fd()).as_deref(), Ok(&b"HTTP"[..]));
    }

    #[test]
    fn the_number_of_a_duplicate_that_was_closed_unseen_is_read_as_what_it_is_now() {
        let (near, mut far) = testing::pair();
        far.write_all(b"socket").expect("sent");
        let (read, mut write) = std::io::pipe().expect("a pipe");
        write.write_all(b"pipe").expect("room");
        // SAFETY: no pointers.
        let second = unsafe { libc::dup(near.as_raw_fd()) };
        // As libc does within fclose(3) and open(2): not by way of the hooks.
        // SAFETY: no pointers.
        unsafe { syscall!(Sysno::dup3, read.as_raw_fd(), second, 0) }.expect("replaced");
        // SAFETY: nobody else has it.
        let mut second = unsafe { File::from_raw_fd(second) };
        let mut bytes = [0; 8];
        let n = second.read(&mut bytes).expect("something");
        assert_eq!(&bytes[..n], b"pipe");
    }

    /// A number that stood for a connection with bytes ahead, and that libc closed within fclose(3).
    fn closed_unseen() -> c_int {
        let (near, _far, _) = testing::ahead(Some(testing::set()));
        let fd = near.into_raw_fd();
        // SAFETY: no pointers.
        unsafe { syscall!(Sysno::close, fd) }.expect("it was open");
        fd
    }

    #[test]
    fn a_number_that_was_closed_unseen_is_read_as_the_socket_that_it_is_now() {
        // The new descriptors take whatever numbers are free: the test must get the one that it is about.
        for passed in [false, true] {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            let mut list: Vec<OwnedFd> = Vec::new();
            let old = closed_unseen();
            while !list.iter().any(|fd| fd.as_raw_fd() == old) {
                assert!(list.len() < 100, "others take all the numbers");
                if passed {
                    testing::pass(&ours, theirs.as_raw_fd());
                    list.push(testing::passed(&theirs));
                } else {
                    let (one, two) = UnixStream::pair().expect("a pair");
                    list.extend([one.into(), two.into()]);
                }
            }
            assert_eq!(ahead::waiting(old), 0, "passed: {passed}");
            assert!(matches!(table::entry(old), Entry::Nothing | Entry::Fresh), "passed: {passed}");
        }
    }

    #[test]
    fn what_the_child_of_vfork_does_with_its_descriptors_is_its_own() {
        let (near, mut far) = testing::pair();
        far.write_all(b"socket").expect("sent");
        let (mut read, mut write) = std::io::pipe().expect("a pipe");
        write.write_all(b"pipe").expect("room");
        // SAFETY: the child does what it may do before execve(2): it calls dup2(2), and ends.
        #[expect(deprecated, reason = "what it is about")]
        unsafe {
            if libc::vfork() == 0 {
                libc::dup2(near.as_raw_fd(), read.as_raw_fd());
                libc::_exit(0);
            }
            libc::wait(core::ptr::null_mut());
        }
        let mut bytes = [0; 8];
        let n = read.read(&mut bytes).expect("something");
        assert_eq!(&bytes[..n], b"pipe");
        assert_eq!(
            table::socket(near.as_raw_fd()).and_then(|cell| cell.with(near.as_raw_fd(), |it| it.aliases)),
            Some(0)
        );
    }

    fn rule(address: Option<&str>, port: Option<u16>) -> Rule {
        let address = address.map(|text| text.parse().expect("an address"));
        Rule { role: Role::Connected, peer: Peer::Inet { address, port } }
    }

    #[test]
    fn rules_match_addresses_of_both_families() {
        let mut four = [0u8; 16];
        four[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        four[2..8].copy_from_slice(&[0x1f, 0x90, 10, 0, 0, 5]);
        let mut mapped = [0u8; 28];
        mapped[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        mapped[2..4].copy_from_slice(&[0x1f, 0x90]);
        mapped[18..24].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 5]);
        for address in [&four[..], &mapped] {
            assert!(rule(Some("10.0.0.5"), Some(8080)).matches(address));
            assert!(rule(None, Some(8080)).matches(address));
            assert!(rule(Some("10.0.0.5"), None).matches(address));
            assert!(!rule(Some("10.0.0.6"), Some(8080)).matches(address));
            assert!(!rule(Some("10.0.0.5"), Some(8081)).matches(address));
        }
        assert!(!rule(None, None).matches(&[1, 0, b'/']));
    }
}
