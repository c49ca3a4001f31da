//! TCP segments made by hand, for what no interface of the kernel does.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};

use crate::{Error, sys};

pub(crate) const FIN: u8 = 1;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

const TCP_HEADER: usize = 20;
/// Two bytes of padding, then kind, length, and two clocks (RFC 7323, section 3.2).
const TIMESTAMPS: usize = 12;

/// A segment (RFC 9293, section 3.1).
pub(crate) struct Segment<'a> {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub sequence: u32,
    pub acknowledge: u32,
    pub flags: u8,
    /// As in the header: scaled.
    pub window: u16,
    /// The sender's clock, if timestamps were agreed on.
    pub timestamp: Option<u32>,
    pub payload: &'a [u8],
}

/// A socket for [`Segment::send`] between `local` and others. In a network namespace without that address a segment would
/// go astray, so there it is refused.
pub(crate) fn raw_socket(local: SocketAddr) -> Result<OwnedFd, Error> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = sys::socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
    // The port of a raw address means a protocol.
    let mut host = local;
    host.set_port(0);
    sys::bind(&socket, &host).map_err(|_| Error::NotLocal(local))?;
    Ok(socket)
}

/// The largest payload of a segment that leaves `fd` now, options counted.
pub(crate) fn payload_size(fd: RawFd) -> Result<usize, Error> {
    sys::option::<u32>(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, "TCP_MAXSEG").map(|size| size as usize)
}

impl Segment<'_> {
    /// Sends it as an IP packet of its own.
    pub fn send(&self, socket: &OwnedFd) -> Result<(), Error> {
        sys::send_raw(socket, &self.packet(), self.to)
    }

    fn packet(&self) -> Vec<u8> {
        let mut tcp = Vec::with_capacity(TCP_HEADER + TIMESTAMPS + self.payload.len());
        tcp.extend_from_slice(&self.from.port().to_be_bytes());
        tcp.extend_from_slice(&self.to.port().to_be_bytes());
        tcp.extend_from_slice(&self.sequence.to_be_bytes());
        tcp.extend_from_slice(&self.acknowledge.to_be_bytes());
        let header = TCP_HEADER + self.timestamp.map_or(0, |_| TIMESTAMPS);
        tcp.extend_from_slice(&[((header / 4) as u8) << 4, self.flags]);
        tcp.extend_from_slice(&self.window.to_be_bytes());
        // The checksum comes last, and there is no urgent data.
        tcp.extend_from_slice(&[0; 4]);
        if let Some(clock) = self.timestamp {
            tcp.extend_from_slice(&[1, 1, 8, 10]);
            tcp.extend_from_slice(&clock.to_be_bytes());
            // The peer's last timestamp is not known to anybody but its kernel and ours.
            tcp.extend_from_slice(&[0; 4]);
        }
        tcp.extend_from_slice(self.payload);
        let checksum = checksum(self.from.ip(), self.to.ip(), &tcp);
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        with_ip_header(self.from.ip(), self.to.ip(), &tcp)
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
