//! Ends a client's connection that nobody owns any more.

use std::io;
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use underdeck_handoff_steer::Flow;

/// When a client is told, counted from the first time: each telling is a packet that may be lost.
const AGAIN: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1500)];

/// Resets clients' connections from a thread of its own.
pub struct Resets(Sender<Flow>);

impl Resets {
    /// Starts the thread, which ends when this is dropped.
    pub fn start() -> io::Result<Resets> {
        let (sender, receiver) = channel::<Flow>();
        crate::spawn("resets", move || {
            let mut due: Vec<(Instant, Flow)> = Vec::new();
            loop {
                let next = due.iter().map(|(at, _)| *at).min();
                let wait = next.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(Instant::now()));
                match receiver.recv_timeout(wait) {
                    Ok(flow) => {
                        // A lost packet is made up for by the next ones.
                        let _ = provoke(&flow);
                        due.extend(AGAIN.map(|after| (Instant::now() + after, flow)));
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                let now = Instant::now();
                for (_, flow) in due.extract_if(.., |(at, _)| *at <= now) {
                    let _ = provoke(&flow);
                }
            }
        })?;
        Ok(Resets(sender))
    }

    /// Ends a connection that has no socket and no rule on this host any more.
    pub fn end(&self, flow: Flow) {
        // The thread lives as long as this.
        let _ = self.0.send(flow);
    }
}

/// Closes a connection that is here with a reset.
pub fn reset(stream: TcpStream) {
    // A socket that has ended already needs none.
    let _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
}

/// Has the client's connection reset, although nobody knows its sequence numbers: an old segment makes the client answer
/// with an acknowledgement (RFC 9293, section 3.10.7.4), and this host's kernel, which has no such connection, resets
/// what the acknowledgement names. The segment has a FIN, because Linux answers an old one without any data or FIN once in
/// 500 ms only (`tcp_invalid_ratelimit`), and a connection that moves much has had many. No rule may stand for the flow.
fn provoke(flow: &Flow) -> io::Result<()> {
    let domain = if flow.peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // Two guesses half the sequence space apart: at most one of them is in the window.
    for sequence in [0u32, 1 << 31] {
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_TCP) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that nobody else has.
        let socket = unsafe { <std::net::UdpSocket as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        send(&socket, flow, &segment(flow, sequence))?;
    }
    Ok(())
}

/// A FIN without data.
fn segment(flow: &Flow, sequence: u32) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..2].copy_from_slice(&flow.local.port().to_be_bytes());
    bytes[2..4].copy_from_slice(&flow.peer.port().to_be_bytes());
    bytes[4..8].copy_from_slice(&sequence.to_be_bytes());
    bytes[12] = 5 << 4;
    bytes[13] = 0x11;
    let mut sum = 6 + 20u32;
    let mut add = |bytes: &[u8]| {
        sum += bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    };
    for end in [flow.local, flow.peer] {
        match end {
            SocketAddr::V4(end) => add(&end.ip().octets()),
            SocketAddr::V6(end) => add(&end.ip().octets()),
        }
    }
    add(&bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    bytes
}

fn send(socket: &std::net::UdpSocket, flow: &Flow, bytes: &[u8]) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let fd = socket.as_raw_fd();
    // Raw sockets have no ports, and IPv6 refuses others than 0.
    for (end, call) in [(flow.local, 0), (flow.peer, 1)] {
        // SAFETY: zeros are a valid value of these plain structures.
        let mut v4: libc::sockaddr_in = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut v6: libc::sockaddr_in6 = unsafe { mem::zeroed() };
        let (pointer, length) = match end {
            SocketAddr::V4(end) => {
                v4.sin_family = libc::AF_INET as u16;
                v4.sin_addr.s_addr = u32::from_ne_bytes(end.ip().octets());
                ((&raw const v4).cast::<libc::sockaddr>(), mem::size_of_val(&v4))
            }
            SocketAddr::V6(end) => {
                v6.sin6_family = libc::AF_INET6 as u16;
                v6.sin6_addr.s6_addr = end.ip().octets();
                ((&raw const v6).cast::<libc::sockaddr>(), mem::size_of_val(&v6))
            }
        };
        // SAFETY: the addresses and the bytes are as long as is said, and outlive the calls.
        let result = unsafe {
            match call {
                0 => libc::bind(fd, pointer, length as u32) as isize,
                _ => libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), 0, pointer, length as u32),
            }
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
