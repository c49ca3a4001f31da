//! System calls on a socket, and the few constants that libc lacks.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::Error;

// include/uapi/linux/tcp.h
pub const TCP_REPAIR_OFF: i32 = 0;
pub const TCP_REPAIR_ON: i32 = 1;
pub const TCP_RECV_QUEUE: i32 = 1;
pub const TCP_SEND_QUEUE: i32 = 2;
pub const TCP_TIMESTAMP: i32 = 24;
pub const TCP_REPAIR_WINDOW: i32 = 29;
pub const TCPOPT_MAXSEG: u32 = 2;
pub const TCPOPT_WINDOW: u32 = 3;
pub const TCPOPT_SACK_PERM: u32 = 4;
pub const TCPOPT_TIMESTAMP: u32 = 8;
// include/uapi/asm-generic/socket.h
pub const SO_BUF_LOCK: i32 = 72;
// include/uapi/linux/sockios.h
pub const SIOCOUTQNSD: u64 = 0x894B;

/// `struct tcp_repair_opt`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RepairOption {
    pub code: u32,
    pub value: u32,
}

/// `struct tcp_repair_window`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairWindow {
    pub snd_wl1: u32,
    pub snd_wnd: u32,
    pub max_window: u32,
    pub rcv_wnd: u32,
    pub rcv_wup: u32,
}

/// Types whose every bit pattern is a value, so that the kernel may write them.
///
/// # Safety
/// Only for plain data without padding.
pub unsafe trait Plain: Copy {}
// SAFETY: integers and structs of integers.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for [u8; 8] {}
// SAFETY: as above.
unsafe impl Plain for RepairWindow {}
// SAFETY: as above.
unsafe impl Plain for libc::linger {}

fn last(call: &'static str) -> Error {
    Error::from_io(call, io::Error::last_os_error())
}

pub fn option<T: Plain>(fd: RawFd, level: i32, name: i32, call: &'static str) -> Result<T, Error> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`.
    let result = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut length) };
    if result != 0 {
        return Err(last(call));
    }
    // SAFETY: zeroed before, and every bit pattern of a Plain is a value.
    Ok(unsafe { value.assume_init() })
}

pub fn set_option<T: Plain>(fd: RawFd, level: i32, name: i32, value: T, call: &'static str) -> Result<(), Error> {
    set_bytes(fd, level, name, (&raw const value).cast(), size_of::<T>(), call)
}

pub fn set_slice<T: Copy>(fd: RawFd, level: i32, name: i32, value: &[T], call: &'static str) -> Result<(), Error> {
    set_bytes(fd, level, name, value.as_ptr().cast(), size_of_val(value), call)
}

fn set_bytes(fd: RawFd, level: i32, name: i32, at: *const u8, len: usize, call: &'static str) -> Result<(), Error> {
    // SAFETY: callers pass a live value and its size; the kernel only reads.
    match unsafe { libc::setsockopt(fd, level, name, at.cast(), len as libc::socklen_t) } {
        0 => Ok(()),
        _ => Err(last(call)),
    }
}

/// The bytes of an option of varying length.
pub fn option_bytes(fd: RawFd, level: i32, name: i32, room: usize, call: &'static str) -> Result<Vec<u8>, Error> {
    let mut value = vec![0u8; room];
    let mut length = room as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`.
    let result = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut length) };
    if result != 0 {
        return Err(last(call));
    }
    value.truncate(length as usize);
    Ok(value)
}

pub fn ioctl_int(fd: RawFd, request: u64, call: &'static str) -> Result<u32, Error> {
    let mut value: libc::c_int = 0;
    // SAFETY: these requests write one int.
    match unsafe { libc::ioctl(fd, request as libc::Ioctl, &raw mut value) } {
        0 => Ok(value.max(0) as u32),
        _ => Err(last(call)),
    }
}

/// Reads up to `room` bytes of the queue that repair mode has selected, without taking them. Of the send queue, all if
/// there is more: the kernel writes what fits, and says how much there is.
pub fn peek(fd: RawFd, mut room: usize) -> Result<Vec<u8>, Error> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    loop {
        let mut bytes = Vec::with_capacity(room);
        // SAFETY: the kernel writes at most `room` bytes, which are reserved.
        let got = unsafe { libc::recv(fd, bytes.as_mut_ptr() as *mut libc::c_void, room, flags) };
        match usize::try_from(got) {
            Ok(got) if got > room => room = got,
            Ok(got) => {
                // SAFETY: that many were written, and there was room for them.
                unsafe { bytes.set_len(got) };
                return Ok(bytes);
            }
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => return Ok(bytes),
            Err(_) => return Err(last("recv(MSG_PEEK)")),
        }
    }
}

/// Urgent data has come, or was announced, and was not read.
pub fn has_urgent(fd: RawFd) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_OOB | libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most one byte.
    let got = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, flags) };
    // EINVAL: there is none.
    got >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
}

/// Puts all of `bytes` into the queue, or says how many it took and why no more.
pub fn queue(fd: RawFd, mut bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let all = bytes.len();
    while !bytes.is_empty() {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads at most `bytes.len()` bytes.
        let took = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
        match took {
            0.. => bytes = &bytes[took as usize..],
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err((all - bytes.len(), error));
                }
            }
        }
    }
    Ok(())
}

pub fn stream_socket(address: &SocketAddr) -> Result<OwnedFd, Error> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, libc::IPPROTO_TCP)
}

pub fn socket(family: i32, kind: i32, protocol: i32) -> Result<OwnedFd, Error> {
    // SAFETY: makes a descriptor that nobody else has.
    match unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) } {
        // SAFETY: it was just made.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(last("socket")),
    }
}

pub fn bind(fd: &OwnedFd, address: &SocketAddr) -> io::Result<()> {
    let (storage, length) = to_storage(address);
    // SAFETY: `storage` holds `length` bytes of an address.
    match unsafe { libc::bind(fd.as_raw_fd(), (&raw const storage).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn connect(fd: &OwnedFd, address: &SocketAddr) -> io::Result<()> {
    let (storage, length) = to_storage(address);
    // SAFETY: `storage` holds `length` bytes of an address.
    match unsafe { libc::connect(fd.as_raw_fd(), (&raw const storage).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Dissolves the connection of a socket in repair mode without a packet. Unlike `close`, this works at once even if a
/// child that was just forked has the descriptor too.
pub fn dissolve(fd: &OwnedFd) {
    // SAFETY: all zero is an address of the family AF_UNSPEC.
    let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads the address. It fails only for sockets that have no connection.
    unsafe { libc::connect(fd.as_raw_fd(), &raw const nowhere, size_of::<libc::sockaddr>() as libc::socklen_t) };
}

pub fn shutdown_write(fd: RawFd) -> Result<(), Error> {
    // SAFETY: no memory is involved.
    match unsafe { libc::shutdown(fd, libc::SHUT_WR) } {
        0 => Ok(()),
        _ => Err(last("shutdown(SHUT_WR)")),
    }
}

/// Sends one whole IP packet from a raw socket to the host of `to`.
pub fn send_raw(fd: &OwnedFd, packet: &[u8], mut to: SocketAddr) -> Result<(), Error> {
    // The port of a raw destination means a protocol to the kernel (IPv6 checks it): none.
    to.set_port(0);
    let (storage, length) = to_storage(&to);
    // SAFETY: the kernel reads the packet and the address.
    let sent = unsafe {
        libc::sendto(fd.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0, (&raw const storage).cast(), length)
    };
    if sent < 0 { Err(last("sendto(raw)")) } else { Ok(()) }
}

type NameCall = unsafe extern "C" fn(RawFd, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

pub fn local_address(fd: RawFd) -> Result<SocketAddr, Error> {
    name(fd, libc::getsockname, "getsockname")
}

pub fn peer_address(fd: RawFd) -> Result<SocketAddr, Error> {
    name(fd, libc::getpeername, "getpeername")
}

fn name(fd: RawFd, get: NameCall, call: &'static str) -> Result<SocketAddr, Error> {
    // SAFETY: all zero is an address without a family.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes.
    if unsafe { get(fd, (&raw mut storage).cast(), &raw mut length) } != 0 {
        return Err(last(call));
    }
    from_storage(&storage).ok_or(Error::NotTcp)
}

/// IPv4 in IPv6 (a dual-stack listener) comes out as IPv4: on the wire it is.
fn from_storage(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is.
            let v4 = unsafe { *(&raw const *storage).cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(address.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what it is.
            let v6 = unsafe { *(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let address = IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)).to_canonical();
            Some(SocketAddr::new(address, u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

fn to_storage(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zero is an address without a family.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: the storage is larger and aligned for every address.
            let at = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
            at.sin_family = libc::AF_INET as libc::sa_family_t;
            at.sin_port = v4.port().to_be();
            at.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: the storage is larger and aligned for every address.
            let at = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
            at.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            at.sin6_port = v6.port().to_be();
            at.sin6_addr.s6_addr = v6.ip().octets();
            at.sin6_scope_id = v6.scope_id();
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}
