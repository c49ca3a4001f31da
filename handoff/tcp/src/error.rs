use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::{KtlsError, Queue, TcpState};

/// Why a connection could not be frozen, resumed or thawed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process may not use TCP repair mode here.
    #[error("TCP repair mode needs CAP_NET_ADMIN in the user namespace that owns the network namespace")]
    Privilege,
    /// The descriptor is no TCP socket (MPTCP counts as another protocol).
    #[error("the descriptor is not a TCP socket over IPv4 or IPv6")]
    NotTcp,
    /// Only connections whose handshake is done, and which are not closed, have a state to hand over.
    #[error(
        "the connection is in {0}, which cannot be handed over: only synchronised connections that are still open can"
    )]
    State(TcpState),
    /// Packets kept arriving while the state was read.
    #[error("the connection kept changing while it was read ({0} attempts): block its packets before freezing it")]
    Moving(u32),
    /// There is urgent data in a queue, which no repair interface can restore.
    #[error("the receive queue holds urgent data, which cannot be restored")]
    Urgent,
    /// Kernel TLS.
    #[error(transparent)]
    Ktls(#[from] KtlsError),
    /// The four-tuple is taken on this host.
    #[error("{local} is already connected to {peer} on this host: take another local port and rewrite the source")]
    AddressInUse {
        /// Where the connection was to be bound.
        local: SocketAddr,
        /// Its peer.
        peer: SocketAddr,
    },
    /// The address is not configured here.
    #[error("{0} is not an address of this host: bind one of its own and rewrite, or use thaw_foreign")]
    NotLocal(SocketAddr),
    /// There is no route back to the peer.
    #[error("no route from {local} to {peer}: {source}")]
    NoRoute {
        /// Where the connection was bound.
        local: SocketAddr,
        /// Its peer.
        peer: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Local and peer address are of different families.
    #[error("{local} and {peer} are of different address families")]
    Family {
        /// Where the connection was to be bound.
        local: SocketAddr,
        /// Its peer.
        peer: SocketAddr,
    },
    /// The kernel did not take a queue's content.
    #[error(
        "the {queue} took only {accepted} of {length} bytes: {source}. Raise net.ipv4.tcp_mem or the socket's buffer"
    )]
    QueueRefused {
        /// Which queue.
        queue: Queue,
        /// Bytes it took.
        accepted: usize,
        /// Bytes that it should have taken.
        length: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The half-closed state did not come about.
    #[error(
        "{wanted} could not be restored: the connection stayed in {found}. The loopback device may be down, or a packet filter in the way"
    )]
    HalfClose {
        /// The state of the snapshot.
        wanted: TcpState,
        /// The state that the restored connection has.
        found: TcpState,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    Call {
        /// The call and its option.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn from_io(call: &'static str, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::EPERM) if call.starts_with("TCP_REPAIR") => Error::Privilege,
            Some(libc::ENOTSOCK | libc::EOPNOTSUPP | libc::ENOPROTOOPT) if call == "SO_PROTOCOL" => Error::NotTcp,
            _ => Error::Call { call, source },
        }
    }
}

/// Freezing failed. The connection was not touched and goes on: take it back with [`FreezeError::into_fd`].
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct FreezeError {
    #[source]
    error: Error,
    fd: OwnedFd,
}

impl FreezeError {
    pub(crate) fn new(fd: OwnedFd, error: Error) -> FreezeError {
        FreezeError { error, fd }
    }

    /// The connection, as it was.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Why.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Both.
    pub fn into_parts(self) -> (OwnedFd, Error) {
        (self.fd, self.error)
    }
}

impl From<FreezeError> for Error {
    /// Closes the connection: for callers that do not want it back.
    fn from(error: FreezeError) -> Error {
        error.error
    }
}
