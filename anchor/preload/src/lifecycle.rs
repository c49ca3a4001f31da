//! How connections begin and end: connect, accept, dup, close, fork.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::Ordering;

use libc::{c_int, sockaddr, socklen_t};
use underdeck_stats::{Block, Reason, Role};

use crate::config::{Peer, Rule};
use crate::engine::{self, Engine};
use crate::socket::Socket;
use crate::table::{self, Entry};
use crate::{egress, exits, routes, sys, watch};

/// A socket was made: remembers stream sockets of the families that can carry proxied traffic.
pub(crate) fn made(fd: c_int, domain: c_int, kind: c_int) {
    watch::forget(fd);
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
    watch::forget(fd);
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
    begin(engine, fd, Role::Accepted, routes::of(&listener.to_ne_bytes()), copies);
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
            exits::closed(fd, false);
            return true;
        }
        Entry::Fresh => {
            table::release(fd);
            return true;
        }
        Entry::Ours => return !is_this_process(),
        Entry::Socket(cell) => cell,
    };
    // The child of vfork shares this memory, but its descriptors are its own.
    if !is_this_process() {
        return true;
    }
    exits::closed(fd, true);
    watch::forget(fd);
    table::release(fd);
    let last = cell.with(fd, |socket| {
        if socket.aliases > 0 {
            socket.aliases -= 1;
            return false;
        }
        true
    });
    if last != Some(true) {
        return true;
    }
    if let (Some(mut socket), Some(engine)) = (cell.vacate(), engine::running()) {
        egress::flush(engine, &mut socket);
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

/// `from` was duplicated as `to`: both stand for one connection, on which nothing is anchored any more.
pub(crate) fn duplicated(from: c_int, to: c_int) {
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

/// A connection leaves for another process: whoever reads it there must find every byte.
pub(crate) fn shared(fd: c_int) {
    if let (Some(cell), Some(engine)) = (table::socket(fd), engine::running()) {
        cell.with(fd, |socket| {
            egress::flush(engine, socket);
            socket.copies = Some(Reason::CallFlags);
        });
    }
}

/// The sending side is about to be shut down.
pub(crate) fn shutting_down(fd: c_int) {
    if let (Some(cell), Some(engine)) = (table::socket(fd), engine::running()) {
        cell.with(fd, |socket| egress::flush(engine, socket));
    }
}

/// The child of a fork begins with nothing.
pub(crate) extern "C" fn forked() {
    engine::after_fork_in_child();
}

fn is_this_process() -> bool {
    engine::running().is_some_and(|engine| engine.pid == sys::getpid())
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
    use super::*;

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
