use std::io;
use std::net::SocketAddr;

use crate::Flow;

/// Why steering could not be put in place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process may not load programs or attach them.
    #[error("steering needs CAP_BPF and CAP_NET_ADMIN (or CAP_SYS_ADMIN): run as root")]
    Privilege,
    /// No such interface in this network namespace.
    #[error("there is no network interface {0:?} in this network namespace")]
    NoInterface(String),
    /// Only interfaces with Ethernet frames are understood.
    #[error("{0} does not carry Ethernet frames: steering needs an Ethernet, VLAN, bond, bridge or veth interface")]
    NotEthernet(String),
    /// The kernel lacks both hooks.
    #[error("the kernel has neither tcx (Linux 6.6) nor clsact with cls_bpf: {0}")]
    NoHook(io::Error),
    /// The programs were refused.
    #[error("the kernel refuses the steering programs: {source}. {log}")]
    Refused {
        /// What the kernel said.
        source: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// The map has no room for another rule.
    #[error(
        "all {limit} flows that can be steered are in use: raise the capacity, or hand off fewer connections at a time"
    )]
    Full {
        /// How many there can be.
        limit: u32,
    },
    /// Another connection on this host already has a rule for these packets.
    #[error("{0} already has a source rule")]
    Exists(Flow),
    /// Addresses of different families.
    #[error("{0} and {1} are of different address families")]
    Family(SocketAddr, SocketAddr),
    /// The target is this host.
    #[error("{0} is an address of this host: packets are redirected to other hosts only")]
    LocalTarget(SocketAddr),
    /// There is no route to the target.
    #[error("no route to {target}: {source}")]
    NoRoute {
        /// Where the packets were to go.
        target: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The slow tier could not remove a rule.
    #[error("the device still redirects {0}: the connection cannot come back to this host")]
    DeviceRule(Flow),
    /// A folder for pins that cannot be used.
    #[error("{path}: {source}. Rules outlive the process only in a BPF file system (mount -t bpf bpf /sys/fs/bpf)")]
    Pin {
        /// Which path.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// No port of the range is free for this peer.
    #[error("all ports from {first} to {last} are in use towards {peer}")]
    NoPort {
        /// First port of the range.
        first: u16,
        /// Last port of the range.
        last: u16,
        /// The peer.
        peer: SocketAddr,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    Call {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn call(call: &'static str, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::Privilege,
            _ => Error::Call { call, source },
        }
    }

    pub(crate) fn last(call: &'static str) -> Error {
        Error::call(call, io::Error::last_os_error())
    }
}
