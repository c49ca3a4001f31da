//! Half-closed states. The kernel restores established connections only; the rest comes about as it did the first time:
//! our FIN by `shutdown`, which repair mode keeps from being sent again, and what the peer did by a segment that is
//! made here and sent to the connection's own address through the loopback device.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::freeze::Info;
use crate::{Error, Snapshot, TcpState, sys};

/// A segment through the loopback device is taken before `sendto` returns, unless the kernel defers it under load.
const PATIENCE: Duration = Duration::from_millis(500);

const TCP_HEADER: usize = 20;
const FIN: u8 = 1;
const ACK: u8 = 16;

/// A raw socket that can send what the peer has sent, if the state needs that.
pub(crate) fn peer_voice(state: TcpState, local: SocketAddr) -> Result<Option<OwnedFd>, Error> {
    if !state.peer_closed() && state != TcpState::FinWait2 {
        return Ok(None);
    }
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // A segment for an address that is not this host's would leave it.
    let probe = sys::socket(family, libc::SOCK_DGRAM, 0)?;
    sys::bind(&probe, &SocketAddr::new(local.ip(), 0)).map_err(|_| Error::NotLocal(local))?;
    sys::socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW).map(Some)
}

/// What `restore` works on.
pub(crate) struct Restored<'a> {
    pub fd: RawFd,
    pub snapshot: &'a Snapshot,
    /// Sequence number of the first byte that the peer has not acknowledged.
    pub una: u32,
    pub local: SocketAddr,
    pub voice: Option<&'a OwnedFd>,
}

/// Brings an established connection into the state of the snapshot. Unsent data and an unsent FIN come later.
pub(crate) fn restore(at: &Restored<'_>) -> Result<(), Error> {
    use TcpState::*;
    let fin_from_peer = |wanted| segment(at, FIN | ACK, at.una, wanted);
    match at.snapshot.state {
        Established => Ok(()),
        CloseWait => fin_from_peer(CloseWait),
        // Our FIN was not sent: shutdown() follows when the unsent bytes are out.
        FinWait1 if at.snapshot.fin_unsent => Ok(()),
        LastAck | Closing if at.snapshot.fin_unsent => fin_from_peer(CloseWait),
        FinWait1 => sys::shutdown_write(at.fd),
        FinWait2 => {
            sys::shutdown_write(at.fd)?;
            segment(at, ACK, at.snapshot.send_end.wrapping_add(1), FinWait2)
        }
        LastAck => {
            fin_from_peer(CloseWait)?;
            sys::shutdown_write(at.fd)
        }
        Closing => {
            sys::shutdown_write(at.fd)?;
            fin_from_peer(Closing)
        }
        state => Err(Error::State(state)),
    }
}

/// Sends what the peer would send, and waits until it has brought the connection into state `wanted`.
fn segment(at: &Restored<'_>, flags: u8, acknowledge: u32, wanted: TcpState) -> Result<(), Error> {
    let Restored { fd, snapshot, local, .. } = *at;
    let voice = at.voice.ok_or(Error::NotLocal(local))?;
    let shift = snapshot.negotiated.window_scale.map_or(0, |(theirs, _)| theirs);
    let window = (snapshot.window.snd_wnd >> shift).min(0xffff) as u16;
    let mut tcp = [0u8; TCP_HEADER];
    tcp[0..2].copy_from_slice(&snapshot.peer.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&local.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&snapshot.receive_end.to_be_bytes());
    tcp[8..12].copy_from_slice(&acknowledge.to_be_bytes());
    tcp[12] = ((TCP_HEADER / 4) as u8) << 4;
    tcp[13] = flags;
    tcp[14..16].copy_from_slice(&window.to_be_bytes());
    let checksum = checksum(snapshot.peer.ip(), local.ip(), &tcp);
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());

    if sys::send_raw(voice, &with_ip_header(snapshot.peer.ip(), local.ip(), &tcp), local.ip()).is_err() {
        // As if a filter had taken it: the caller must know that the connection was not touched.
        return Err(Error::HalfClose { wanted: snapshot.state, found: Info::read(fd)?.state });
    }

    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = Info::read(fd)?.state;
        if found == wanted {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::HalfClose { wanted: snapshot.state, found });
        }
        std::thread::yield_now();
    }
}

/// The kernel fills in the IPv4 checksum and length of a raw packet; IPv6 has neither.
fn with_ip_header(source: IpAddr, destination: IpAddr, tcp: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(40 + tcp.len());
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let length = (20 + tcp.len()) as u16;
            packet.extend_from_slice(&[0x45, 0]);
            packet.extend_from_slice(&length.to_be_bytes());
            packet.extend_from_slice(&[0, 0, 0x40, 0, 64, libc::IPPROTO_TCP as u8, 0, 0]);
            packet.extend_from_slice(&source.octets());
            packet.extend_from_slice(&destination.octets());
        }
        (source, destination) => {
            packet.extend_from_slice(&[0x60, 0, 0, 0]);
            packet.extend_from_slice(&(tcp.len() as u16).to_be_bytes());
            packet.extend_from_slice(&[libc::IPPROTO_TCP as u8, 64]);
            packet.extend_from_slice(&octets(source));
            packet.extend_from_slice(&octets(destination));
        }
    }
    packet.extend_from_slice(tcp);
    packet
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// RFC 9293, section 3.1, with the pseudo header of the address family.
fn checksum(source: IpAddr, destination: IpAddr, tcp: &[u8]) -> u16 {
    let mut bytes = octets(source);
    bytes.extend(octets(destination));
    bytes.extend([0, libc::IPPROTO_TCP as u8]);
    bytes.extend((tcp.len() as u16).to_be_bytes());
    bytes.extend(tcp);
    let mut sum: u32 =
        bytes.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], *two.get(1).unwrap_or(&0)]))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
