use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::abi::{self, ud_flow, ud_rule};

/// One TCP connection, as the host sees it on which the rule stands: before its ingress and behind its egress rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The end that is (or was) on this host: destination of packets that come in, source of those that leave.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} <-> {}", self.local, self.peer)
    }
}

/// Where redirected packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Address and port that take the place of the flow's local ones.
    pub address: SocketAddr,
    /// Index of the interface that leads there. The next hop is looked up for each packet.
    pub interface: u32,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Packets of the peer are dropped, and packets to it unless they have a source rule.
    Block,
    /// Packets of the peer go to another host, and packets to it are dropped.
    Redirect(Target),
    /// Packets to the peer leave with this source.
    Source(SocketAddr),
}

/// What a rule has done since it was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that matched. One packet here may be many segments on the wire.
    pub packets: u64,
    /// Bytes of these packets, with their headers.
    pub bytes: u64,
    /// `CLOCK_MONOTONIC` time of the last match, to some milliseconds. None if there was no match.
    pub last: Option<Duration>,
    /// A segment with FIN has matched.
    pub fin: bool,
    /// A segment with RST has matched.
    pub rst: bool,
}

/// A rule, as it stands in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The connection.
    pub flow: Flow,
    /// What is done with its packets.
    pub action: Action,
    /// What it has done.
    pub counters: Counters,
    /// It was set by an earlier process from which this one took over.
    pub inherited: bool,
}

impl Flow {
    /// The key for packets of the peer.
    pub(crate) fn ingress(&self) -> ud_flow {
        key(self.peer, self.local, abi::UD_HOOK_INGRESS)
    }

    /// The key for packets to the peer.
    pub(crate) fn egress(&self) -> ud_flow {
        key(self.local, self.peer, abi::UD_HOOK_EGRESS)
    }
}

fn key(source: SocketAddr, destination: SocketAddr, hook: u32) -> ud_flow {
    ud_flow {
        source: octets(source.ip()),
        destination: octets(destination.ip()),
        source_port: source.port().to_be(),
        destination_port: destination.port().to_be(),
        family: if source.is_ipv4() { 4 } else { 6 },
        hook: hook as u8,
        zero: [0; 2],
    }
}

pub(crate) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&v4.octets());
            octets
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn address(octets: [u8; 16], port: u16, family: u8) -> SocketAddr {
    let ip = match family {
        4 => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
        _ => IpAddr::from(octets),
    };
    SocketAddr::new(ip, u16::from_be(port))
}

impl Rule {
    /// None for the outgoing half of a block or a redirection.
    pub(crate) fn from_map(key: &ud_flow, rule: &ud_rule, owner: u64) -> Option<Rule> {
        if u32::from(key.hook) == abi::UD_HOOK_EGRESS && rule.action == abi::UD_ACTION_BLOCK {
            return None;
        }
        let source = address(key.source, key.source_port, key.family);
        let destination = address(key.destination, key.destination_port, key.family);
        let flow = match u32::from(key.hook) {
            abi::UD_HOOK_INGRESS => Flow { local: destination, peer: source },
            _ => Flow { local: source, peer: destination },
        };
        let to = address(rule.address, rule.port, key.family);
        let action = match rule.action {
            abi::UD_ACTION_REDIRECT => Action::Redirect(Target { address: to, interface: rule.ifindex }),
            abi::UD_ACTION_SOURCE => Action::Source(to),
            _ => Action::Block,
        };
        Some(Rule { flow, action, counters: counters(rule), inherited: rule.owner != owner })
    }
}

pub(crate) fn counters(rule: &ud_rule) -> Counters {
    Counters {
        packets: rule.packets,
        bytes: rule.bytes,
        last: (rule.last_ns != 0).then(|| Duration::from_nanos(rule.last_ns)),
        fin: rule.seen & u64::from(abi::UD_SEEN_FIN) != 0,
        rst: rule.seen & u64::from(abi::UD_SEEN_RST) != 0,
    }
}
