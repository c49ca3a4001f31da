//! The messages and their encoding: length (4 bytes, of what follows), version (1), kind (1), transfer (8), body.
//! Integers are in network byte order.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The version that this code speaks.
pub const VERSION: u8 = 2;

/// Longest message in bytes, without its length field: room for two full queues of a connection.
pub const MAX_LENGTH: usize = 160 << 20;

/// Version, kind and transfer.
const HEAD: usize = 10;

/// Why a transfer is refused. The other side rolls back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The snapshot cannot be decoded or restored.
    Snapshot = 1,
    /// No port, no room for rules.
    Full = 2,
    /// The transfer is unknown, or known already (a replay).
    Transfer = 3,
    /// Rules could not be put in place.
    Steering = 4,
    /// To an [`Body::Abort`]: the connection was not taken, and will not be.
    NotTaken = 5,
}

impl Refusal {
    fn from_number(number: u8) -> Option<Refusal> {
        [Refusal::Snapshot, Refusal::Full, Refusal::Transfer, Refusal::Steering, Refusal::NotTaken]
            .into_iter()
            .find(|refusal| *refusal as u8 == number)
    }

    /// A word for counters.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Snapshot => "snapshot",
            Refusal::Full => "full",
            Refusal::Transfer => "transfer",
            Refusal::Steering => "steering",
            Refusal::NotTaken => "not_taken",
        }
    }
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Balancer: take this connection (an encoded snapshot).
    BeginOffload(Vec<u8>),
    /// Backend: it is restored at `local`, and its source rule stands. The times in nanoseconds are for statistics.
    ServerReady {
        /// Where packets of the client have to go.
        local: SocketAddr,
        /// Time that restoring took.
        thaw_ns: u64,
        /// Time that the source rule took.
        rule_ns: u64,
    },
    /// Balancer: packets are redirected, go on.
    LbReady,
    /// Backend, to LB_READY or to an abort: the connection is mine. Only now the balancer gives its socket up.
    Taken,
    /// Backend: take it back, or, without a snapshot, it has ended.
    ServerDone(Done),
    /// Balancer: it is back (or forgotten); forget it.
    EndOffload,
    /// Either: no; roll back.
    Refused(Refusal),
    /// Either, when an answer is overdue: is the connection yours? If it is not, it never will be, whatever of this
    /// transfer is still on its way with a generation up to this one. Answered with TAKEN or END_OFFLOAD (yes), with
    /// `NotTaken` (no), or with another refusal (nobody can know).
    Abort(u32),
    /// Balancer: are you there?
    Ping(Ping),
    /// Backend: yes. With the number of connections that it owns. The transfer is a number of this process.
    Pong(u32),
}

/// A connection that comes back or has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Which attempt to give it back this is, from 0.
    pub generation: u32,
    /// Where it is: a balancer that was started anew compares it with its rule.
    pub at: SocketAddr,
    /// The balancer's address of the connection: a balancer that was started anew knows it only by its rule.
    pub local: SocketAddr,
    /// The client's address.
    pub peer: SocketAddr,
    /// An encoded snapshot; empty if the connection has ended.
    pub snapshot: Vec<u8>,
}

/// What a balancer tells its backends with each heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ping {
    /// The mean number of connections per backend.
    pub mean: u32,
    /// Names of the backends that get no connections now.
    pub absent: Vec<String>,
}

/// One message about one transfer. Pings are about transfer 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The balancer's number of the transfer.
    pub transfer: u64,
    /// What is said.
    pub body: Body,
}

/// Why bytes are no message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MessageError {
    /// Shorter than a head.
    #[error("a message of {0} bytes is shorter than its head of {HEAD}")]
    Short(usize),
    /// Longer than the limit.
    #[error("a message of {0} bytes is longer than the limit of {MAX_LENGTH}")]
    Long(usize),
    /// Another version.
    #[error("message version {0} is not {VERSION}: run the same release on balancer and backends")]
    Version(u8),
    /// No such message.
    #[error("there is no message of kind {0}")]
    Kind(u8),
    /// The body does not fit its kind.
    #[error("the body of a message of kind {kind} has {length} bytes, or values that it cannot have")]
    Body {
        /// Its kind.
        kind: u8,
        /// Bytes in the body.
        length: usize,
    },
}

impl Message {
    /// The message with its length field.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend([VERSION, self.body.kind()]);
        bytes.extend(self.transfer.to_be_bytes());
        match &self.body {
            Body::BeginOffload(snapshot) => bytes.extend(snapshot),
            Body::ServerDone(done) => {
                bytes.extend(done.generation.to_be_bytes());
                put_address(&mut bytes, done.at);
                put_address(&mut bytes, done.local);
                put_address(&mut bytes, done.peer);
                bytes.extend(&done.snapshot);
            }
            Body::ServerReady { local, thaw_ns, rule_ns } => {
                put_address(&mut bytes, *local);
                bytes.extend(thaw_ns.to_be_bytes());
                bytes.extend(rule_ns.to_be_bytes());
            }
            Body::Refused(refusal) => bytes.push(*refusal as u8),
            Body::Pong(number) | Body::Abort(number) => bytes.extend(number.to_be_bytes()),
            Body::Ping(ping) => {
                bytes.extend(ping.mean.to_be_bytes());
                for name in &ping.absent {
                    // Configurations have no longer ones.
                    let name = &name.as_bytes()[..name.len().min(255)];
                    bytes.push(name.len() as u8);
                    bytes.extend(name);
                }
            }
            Body::LbReady | Body::EndOffload | Body::Taken => {}
        }
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    /// A message without its length field.
    ///
    /// # Errors
    /// [`MessageError`]: nothing else can be read from that peer.
    pub fn decode(bytes: &[u8]) -> Result<Message, MessageError> {
        if bytes.len() > MAX_LENGTH {
            return Err(MessageError::Long(bytes.len()));
        }
        let Some((head, body)) = bytes.split_first_chunk::<HEAD>() else {
            return Err(MessageError::Short(bytes.len()));
        };
        let [version, kind, transfer @ ..] = *head;
        if version != VERSION {
            return Err(MessageError::Version(version));
        }
        let body = decode_body(kind, body)?;
        Ok(Message { transfer: u64::from_be_bytes(transfer), body })
    }

    /// Reads one message.
    ///
    /// # Errors
    /// Those of the stream; `InvalidData` with a [`MessageError`].
    pub fn read(from: &mut impl Read) -> io::Result<Message> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        let invalid = |error: MessageError| io::Error::new(io::ErrorKind::InvalidData, error);
        if length > MAX_LENGTH {
            return Err(invalid(MessageError::Long(length)));
        }
        // Grows with what arrives, not with what is claimed.
        let mut bytes = Vec::with_capacity(length.min(64 << 10));
        from.by_ref().take(length as u64).read_to_end(&mut bytes)?;
        if bytes.len() < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Message::decode(&bytes).map_err(invalid)
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.encode())?;
        to.flush()
    }
}

impl Body {
    fn kind(&self) -> u8 {
        match self {
            Body::BeginOffload(_) => 1,
            Body::ServerReady { .. } => 2,
            Body::LbReady => 3,
            Body::ServerDone(_) => 4,
            Body::EndOffload => 5,
            Body::Refused(_) => 6,
            Body::Ping(_) => 7,
            Body::Pong(_) => 8,
            Body::Taken => 9,
            Body::Abort(_) => 10,
        }
    }
}

fn decode_body(kind: u8, body: &[u8]) -> Result<Body, MessageError> {
    let bad = || MessageError::Body { kind, length: body.len() };
    let number = || Ok(u32::from_be_bytes(body.try_into().map_err(|_| bad())?));
    Ok(match kind {
        1 => Body::BeginOffload(body.to_vec()),
        2 => server_ready(body).ok_or_else(bad)?,
        3 if body.is_empty() => Body::LbReady,
        4 => Body::ServerDone(server_done(body).ok_or_else(bad)?),
        5 if body.is_empty() => Body::EndOffload,
        6 => match body {
            [number] => Body::Refused(Refusal::from_number(*number).ok_or_else(bad)?),
            _ => return Err(bad()),
        },
        7 => Body::Ping(ping(body).ok_or_else(bad)?),
        8 => Body::Pong(number()?),
        9 if body.is_empty() => Body::Taken,
        10 => Body::Abort(number()?),
        3 | 5 | 9 => return Err(bad()),
        _ => return Err(MessageError::Kind(kind)),
    })
}

fn server_ready(mut body: &[u8]) -> Option<Body> {
    let local = take_address(&mut body)?;
    let (thaw_ns, rule_ns) = (u64::from_be_bytes(*take(&mut body)?), u64::from_be_bytes(*take(&mut body)?));
    body.is_empty().then_some(Body::ServerReady { local, thaw_ns, rule_ns })
}

fn server_done(mut body: &[u8]) -> Option<Done> {
    let generation = u32::from_be_bytes(*take(&mut body)?);
    let (at, local, peer) = (take_address(&mut body)?, take_address(&mut body)?, take_address(&mut body)?);
    Some(Done { generation, at, local, peer, snapshot: body.to_vec() })
}

fn ping(mut body: &[u8]) -> Option<Ping> {
    let mean = u32::from_be_bytes(*take(&mut body)?);
    let mut absent = Vec::new();
    while let Some((length, rest)) = body.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        absent.push(std::str::from_utf8(name).ok()?.to_owned());
        body = rest;
    }
    Some(Ping { mean, absent })
}

/// Family (4 or 6), address, port.
fn put_address(to: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            to.push(4);
            to.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            to.push(6);
            to.extend(ip.octets());
        }
    }
    to.extend(address.port().to_be_bytes());
}

fn take_address(from: &mut &[u8]) -> Option<SocketAddr> {
    let ip: IpAddr = match take::<1>(from)? {
        [4] => Ipv4Addr::from(*take::<4>(from)?).into(),
        [6] => Ipv6Addr::from(*take::<16>(from)?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(*take(from)?)))
}

fn take<'a, const N: usize>(from: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(taken)
}
