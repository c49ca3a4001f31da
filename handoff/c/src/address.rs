//! `struct sockaddr_storage` and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::sockaddr_storage;

use crate::error::Failure;

/// # Safety
/// NULL, or a readable `sockaddr_storage`.
pub unsafe fn read(address: *const sockaddr_storage) -> Result<SocketAddr, Failure> {
    // SAFETY: by the contract of this function.
    let storage = unsafe { address.as_ref() }.ok_or_else(|| Failure::argument("an address is NULL"))?;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is.
            let v4 = unsafe { *address.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what it is.
            let v6 = unsafe { *address.cast::<libc::sockaddr_in6>() };
            // A dual-stack socket names its IPv4 peers in this way.
            let ip = IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)).to_canonical();
            Ok(SocketAddr::new(ip, u16::from_be(v6.sin6_port)))
        }
        family => Err(Failure::argument(&format!("address family {family} is neither AF_INET nor AF_INET6"))),
    }
}

/// # Safety
/// NULL, or a writable `sockaddr_storage`.
pub unsafe fn write(address: SocketAddr, to: *mut sockaddr_storage) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::argument("the place for an address is NULL"));
    }
    // SAFETY: all zero is an address without a family.
    unsafe { to.write(std::mem::zeroed()) };
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: the storage is larger and aligned for every address.
            let at = unsafe { &mut *to.cast::<libc::sockaddr_in>() };
            at.sin_family = libc::AF_INET as libc::sa_family_t;
            at.sin_port = v4.port().to_be();
            at.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
        }
        SocketAddr::V6(v6) => {
            // SAFETY: the storage is larger and aligned for every address.
            let at = unsafe { &mut *to.cast::<libc::sockaddr_in6>() };
            at.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            at.sin6_port = v6.port().to_be();
            at.sin6_addr.s6_addr = v6.ip().octets();
        }
    }
    Ok(())
}
