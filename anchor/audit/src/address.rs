//! Addresses as the engine can match them on a socket.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// One or more transport addresses: of a listener, or of an upstream server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// Every address. Written `*`.
    Every,
    /// Every IP address with this TCP port. Written `*:8080`.
    Port(u16),
    /// One IP address and TCP port. Written `10.0.0.5:8080` or `[::1]:8080`.
    Socket(SocketAddr),
    /// A Unix socket by its path. Written `unix:/run/app.sock`.
    Unix(String),
}

impl Address {
    /// The address of a socket that listens: an unspecified IP address means every one.
    pub(crate) fn listening(ip: IpAddr, port: u16) -> Self {
        if ip.is_unspecified() { Self::Port(port) } else { Self::Socket(SocketAddr::new(ip, port)) }
    }

    /// A Unix socket; a path that the plan's text cannot carry widens to every address.
    pub(crate) fn unix(path: &str) -> Self {
        let plain = !path.is_empty() && !path.contains([',', '$']) && !path.chars().any(char::is_whitespace);
        if plain { Self::Unix(path.to_owned()) } else { Self::Every }
    }

    /// The addresses that `host` may mean when the proxy itself resolves it.
    ///
    /// A name other than `localhost` is not resolved here: another answer of the name server a second later would send
    /// the proxy to an address that the plan does not know. Every address with the port is what is certain.
    pub(crate) fn of_host(host: &str, port: u16) -> Vec<Self> {
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return vec![Self::listening(ip, port)];
        }
        if host.eq_ignore_ascii_case("localhost") {
            return [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]
                .map(|ip| Self::Socket(SocketAddr::new(ip, port)))
                .to_vec();
        }
        vec![Self::Port(port)]
    }

    /// The addresses of a range of ports. A wide one widens to every address.
    pub(crate) fn of_ports(first: u16, last: u16, of_port: impl Fn(u16) -> Vec<Self>) -> Vec<Self> {
        const WIDEST: u16 = 256;
        if last.saturating_sub(first) > WIDEST {
            return vec![Self::Every];
        }
        (first..=last).flat_map(of_port).collect()
    }

    /// Whether every address that `other` means is also meant by this one.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Every, _) => true,
            (Self::Port(port), Self::Socket(socket)) => *port == socket.port(),
            _ => self == other,
        }
    }

    /// Whether an address exists that both mean.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every => f.write_str("*"),
            Self::Port(port) => write!(f, "*:{port}"),
            Self::Socket(socket) => write!(f, "{socket}"),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

impl FromStr for Address {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "*" {
            Ok(Self::Every)
        } else if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() { Err(()) } else { Ok(Self::Unix(path.to_owned())) }
        } else if let Some(port) = text.strip_prefix("*:") {
            port.parse().map(Self::Port).map_err(drop)
        } else {
            text.parse().map(Self::Socket).map_err(drop)
        }
    }
}

impl serde::Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
