//! Ports from the kernel that stay ours until a proxy listens on them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

use crate::LabError;
use crate::error::While;

/// A port (of a loopback address, mostly) that nobody else gets while this lives.
///
/// The socket is bound but does not listen, with SO_REUSEADDR and SO_REUSEPORT: the kernel will not use the port for
/// an outgoing connection, and a proxy that sets either option can bind it all the same.
#[derive(Debug)]
pub struct Port {
    addr: SocketAddr,
    _held: Socket,
}

impl Port {
    /// Takes a free port.
    pub fn free() -> Result<Self, LabError> {
        Self::free_at(Ipv4Addr::LOCALHOST.into())
    }

    /// Takes a free port of an address of this network namespace.
    pub fn free_at(ip: IpAddr) -> Result<Self, LabError> {
        let what = || format!("take a free port of {ip}");
        let socket = Socket::new(Domain::for_address(SocketAddr::new(ip, 0)), Type::STREAM, None).doing(what)?;
        socket.set_reuse_address(true).doing(what)?;
        socket.set_reuse_port(true).doing(what)?;
        socket.bind(&SocketAddr::new(ip, 0).into()).doing(what)?;
        let local = socket.local_addr().doing(what)?;
        let addr = local.as_socket().unwrap_or(SocketAddr::new(ip, 0));
        Ok(Self { addr, _held: socket })
    }

    /// The address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}
