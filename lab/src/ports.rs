//! Ports from the kernel that stay ours until a proxy listens on them.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

use crate::LabError;
use crate::error::While;

/// A loopback port that nobody else gets while this lives.
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
        let what = || "take a free loopback port".to_owned();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).doing(what)?;
        socket.set_reuse_address(true).doing(what)?;
        socket.set_reuse_port(true).doing(what)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).doing(what)?;
        let local = socket.local_addr().doing(what)?;
        let addr = local.as_socket().unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        Ok(Self { addr, _held: socket })
    }

    /// The address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}
