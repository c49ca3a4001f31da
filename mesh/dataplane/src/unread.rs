//! How much an application has not read yet, as the kernel says it (`NETLINK_SOCK_DIAG`, what `ss -m` asks).
//!
//! A socket that both sides have closed leaves the sockmap, and Linux 6.18 throws away what was moved into it and not
//! read. So the agent's end stays open until the application has read all.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `SOCK_DIAG_BY_FAMILY` of <linux/sock_diag.h>.
const BY_FAMILY: u16 = 20;

/// `INET_DIAG_SKMEMINFO` of <linux/inet_diag.h>; the first number in it is what waits to be read.
const SKMEMINFO: u16 = 7;

/// `struct nlmsghdr`, then `struct inet_diag_req_v2`, of <linux/netlink.h> and <linux/inet_diag.h>.
const HEADER: usize = 16;
const REQUEST: usize = HEADER + 56;

/// `struct inet_diag_msg`.
const MESSAGE: usize = HEADER + 72;

/// Asks about sockets of this network namespace.
pub(crate) struct Asker(OwnedFd);

impl Asker {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                libc::NETLINK_SOCK_DIAG,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Memory that holds what a socket has received and its owner has not read. None: there is no such socket here.
    pub(crate) fn unread(&self, local: SocketAddr, remote: SocketAddr, cookie: u64) -> Option<u32> {
        let request = request(local, remote, cookie);
        let fd = self.0.as_raw_fd();
        // SAFETY: the bytes outlive the call.
        let sent = unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) };
        if usize::try_from(sent) != Ok(REQUEST) {
            return None;
        }
        let mut answer = [0u8; 1024];
        // The kernel has answered by now. SAFETY: the bytes outlive the call.
        let len = unsafe { libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) };
        memory(answer.get(..usize::try_from(len).ok()?)?)
    }
}

fn request(local: SocketAddr, remote: SocketAddr, cookie: u64) -> [u8; REQUEST] {
    let mut out = [0; REQUEST];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(0, &u32::try_from(REQUEST).unwrap_or(0).to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &1u16.to_ne_bytes()); // NLM_F_REQUEST
    put(HEADER, &[u8::try_from(family).unwrap_or(0), 6 /* TCP */, 1 << (SKMEMINFO - 1), 0]);
    put(HEADER + 4, &u32::MAX.to_ne_bytes()); // whatever its state
    for (address, port, ip) in [(local, HEADER + 8, HEADER + 12), (remote, HEADER + 10, HEADER + 28)] {
        put(port, &address.port().to_be_bytes());
        match address.ip() {
            IpAddr::V4(address) => put(ip, &address.octets()),
            IpAddr::V6(address) => put(ip, &address.octets()),
        }
    }
    put(HEADER + 48, &cookie.to_ne_bytes());
    out
}

fn memory(answer: &[u8]) -> Option<u32> {
    let half = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    if half(4)? != BY_FAMILY {
        return None;
    }
    let mut at = MESSAGE;
    loop {
        let (len, kind) = (usize::from(half(at)?), half(at + 2)?);
        if kind == SKMEMINFO {
            return Some(u32::from_ne_bytes(answer.get(at + 4..at + 8)?.try_into().ok()?));
        }
        at += len.max(4).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_is_not_read_is_seen_until_it_is() {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(listen) else { continue };
            let mut ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            let mut theirs = listener.accept().expect("a connection").0;
            let cookie = socket2::SockRef::from(&ours).cookie().expect("it has one");
            let (local, remote) = (ours.local_addr().expect("bound"), ours.peer_addr().expect("connected"));
            let asker = Asker::new().expect("sock_diag");
            assert_eq!(asker.unread(local, remote, cookie), Some(0));
            theirs.write_all(b"some").expect("open");
            ours.peek(&mut [0]).expect("it comes");
            assert!(asker.unread(local, remote, cookie) > Some(0));
            ours.read_exact(&mut [0; 4]).expect("it is there");
            assert_eq!(asker.unread(local, remote, cookie), Some(0));
            assert_eq!(asker.unread(local, remote, cookie + 1), None, "another socket");
        }
    }
}
