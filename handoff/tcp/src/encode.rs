//! The encoding of a snapshot: versioned, and every length checked.
//!
//! All numbers are big-endian, except the bytes of kernel TLS, which only a kernel of the same architecture reads.
//!
//! ```text
//! "UDTS" | version u16 | reserved u16 | length u32 of all that follows | fields
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::ktls::{Direction, Ktls};
use crate::options::{self, Buffers, SocketOptions};
use crate::sys::RepairWindow;
use crate::{Negotiated, Snapshot, TcpState};

const MAGIC: [u8; 4] = *b"UDTS";
const VERSION: u16 = 1;
const HEADER: usize = 12;

/// Largest queue that is accepted, in bytes. Linux's own default limit of a receive buffer is half of it.
pub const MAX_QUEUE: usize = 64 << 20;
/// Largest application blob, in bytes.
pub const MAX_BLOB: usize = 16 << 20;

/// Largest shift count of RFC 7323, section 2.3.
const MAX_SCALE: u8 = 14;

/// Why bytes are no snapshot.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The first four bytes are wrong.
    #[error("this is no connection snapshot: it does not begin with UDTS")]
    Magic,
    /// Written by a newer version.
    #[error("the snapshot has version {found}, and this program reads version {supported}: upgrade it")]
    Newer {
        /// The snapshot's version.
        found: u16,
        /// The newest version that is read here.
        supported: u16,
    },
    /// Fewer bytes than announced.
    #[error("the snapshot ends early: {needed} bytes are needed at offset {offset}, {left} are left")]
    Short {
        /// Where in the bytes.
        offset: usize,
        /// How many are needed there.
        needed: usize,
        /// How many there are.
        left: usize,
    },
    /// More bytes than announced.
    #[error("{0} bytes follow the end of the snapshot")]
    Trailing(usize),
    /// A field has a value that cannot be.
    #[error("{field} has an impossible value, near offset {offset}")]
    Field {
        /// Which field.
        field: &'static str,
        /// Behind it in the bytes.
        offset: usize,
    },
}

impl Snapshot {
    /// As bytes for another host. They hold payload and, with kernel TLS, keys: send them over an encrypted, mutually
    /// authenticated channel only.
    pub fn encode(&self) -> Vec<u8> {
        let room = 256 + self.receive.len() + self.send.len() + self.blob.len();
        let mut out = Writer(Vec::with_capacity(room));
        out.0.extend_from_slice(&MAGIC);
        out.u16(VERSION);
        out.u16(0);
        out.u32(0);
        self.write_connection(&mut out);
        self.write_options(&mut out);
        for direction in
            [self.ktls.as_ref().and_then(|k| k.tx.as_ref()), self.ktls.as_ref().and_then(|k| k.rx.as_ref())]
        {
            out.bytes(direction.map_or(&[], Direction::bytes));
        }
        out.u8(u8::from(self.ktls.is_some()));
        out.bytes(&self.receive);
        out.bytes(&self.send);
        out.u32(self.unsent);
        out.bytes(&self.blob);
        let length = (out.0.len() - HEADER) as u32;
        out.0[8..HEADER].copy_from_slice(&length.to_be_bytes());
        out.0
    }

    fn write_connection(&self, out: &mut Writer) {
        out.u8(if self.local.is_ipv4() { 4 } else { 6 });
        out.address(self.local);
        out.address(self.peer);
        out.u8(self.state as u8);
        out.u8(u8::from(self.fin_unsent));
        let negotiated = &self.negotiated;
        out.u16(negotiated.mss);
        let flags = u8::from(negotiated.window_scale.is_some())
            | u8::from(negotiated.sack) << 1
            | u8::from(negotiated.timestamp.is_some()) << 2
            | u8::from(negotiated.ecn) << 3;
        out.u8(flags);
        let (theirs, ours) = negotiated.window_scale.unwrap_or((0, 0));
        out.u8(theirs);
        out.u8(ours);
        out.u32(negotiated.timestamp.unwrap_or(0));
        out.u32(self.send_end);
        out.u32(self.receive_end);
        let window = &self.window;
        for value in [window.snd_wl1, window.snd_wnd, window.max_window, window.rcv_wnd, window.rcv_wup] {
            out.u32(value);
        }
    }

    fn write_options(&self, out: &mut Writer) {
        let options = &self.options;
        out.u8(options.ints.len() as u8);
        for (id, value) in &options.ints {
            out.u8(*id);
            out.u32(*value);
        }
        out.u8(u8::from(options.linger.is_some()));
        out.u32(options.linger.unwrap_or(0));
        out.bytes(&options.congestion);
        for value in [options.buffers.receive, options.buffers.send, options.buffers.lock] {
            out.u32(value);
        }
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If the bytes come from a newer version, are cut, have bytes too many, or hold a value that cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Snapshot, DecodeError> {
        let mut input = Reader { bytes, at: 0 };
        if input.take(4).map_err(|_| DecodeError::Magic)? != MAGIC {
            return Err(DecodeError::Magic);
        }
        let version = input.u16()?;
        if version > VERSION {
            return Err(DecodeError::Newer { found: version, supported: VERSION });
        }
        let reserved = input.u16()?;
        input.check(version == VERSION && reserved == 0, "version")?;
        let length = input.u32()? as usize;
        let left = bytes.len() - input.at;
        if length > left {
            return Err(DecodeError::Short { offset: input.at, needed: length, left });
        }
        let snapshot = read_snapshot(&mut input)?;
        match bytes.len() - input.at {
            0 if input.at == HEADER + length => Ok(snapshot),
            0 => Err(DecodeError::Field { field: "length", offset: HEADER }),
            trailing => Err(DecodeError::Trailing(trailing)),
        }
    }
}

fn read_snapshot(input: &mut Reader<'_>) -> Result<Snapshot, DecodeError> {
    let family = input.u8()?;
    input.check(matches!(family, 4 | 6), "address family")?;
    let (local, peer) = (input.address(family)?, input.address(family)?);
    let state = TcpState::from_kernel(input.u8()?).filter(|state| state.can_be_handed_over());
    let state = state.ok_or(DecodeError::Field { field: "state", offset: input.at })?;
    let fin_unsent = input.bool("unsent FIN")?;
    input.check(!fin_unsent || state.fin_in_flight(), "unsent FIN")?;
    let negotiated = read_negotiated(input)?;
    let (send_end, receive_end) = (input.u32()?, input.u32()?);
    let window = RepairWindow {
        snd_wl1: input.u32()?,
        snd_wnd: input.u32()?,
        max_window: input.u32()?,
        rcv_wnd: input.u32()?,
        rcv_wup: input.u32()?,
    };
    input.check(
        window.max_window >= window.snd_wnd && window.rcv_wnd <= 1 << 30 && window.snd_wnd <= 1 << 30,
        "window",
    )?;
    let options = read_options(input)?;
    let (tx, rx) = (input.direction()?, input.direction()?);
    let has_ktls = input.bool("kernel TLS")?;
    input.check(has_ktls || (tx.is_none() && rx.is_none()), "kernel TLS")?;
    let ktls = has_ktls.then_some(Ktls { tx, rx });
    let receive = input.bytes(MAX_QUEUE, "receive queue")?.to_vec();
    let send = input.bytes(MAX_QUEUE, "send queue")?.to_vec();
    let unsent = input.u32()?;
    input.check(unsent as usize <= send.len() && (state != TcpState::FinWait2 || send.is_empty()), "unsent bytes")?;
    // A FIN that was sent has all data before it.
    input.check(unsent == 0 || fin_unsent || !state.we_closed(), "unsent bytes")?;
    let blob = input.bytes(MAX_BLOB, "application blob")?.to_vec();
    Ok(Snapshot {
        local,
        peer,
        state,
        negotiated,
        send_end,
        receive_end,
        window,
        receive,
        send,
        unsent,
        fin_unsent,
        options,
        ktls,
        blob,
    })
}

fn read_negotiated(input: &mut Reader<'_>) -> Result<Negotiated, DecodeError> {
    let mss = input.u16()?;
    input.check(mss > 0, "maximum segment size")?;
    let flags = input.u8()?;
    input.check(flags < 16, "negotiated options")?;
    let (theirs, ours) = (input.u8()?, input.u8()?);
    input.check(theirs <= MAX_SCALE && ours <= MAX_SCALE, "window scale")?;
    input.check(flags & 1 != 0 || (theirs, ours) == (0, 0), "window scale")?;
    let timestamp = input.u32()?;
    input.check(flags & 4 != 0 || timestamp == 0, "timestamp")?;
    Ok(Negotiated {
        mss,
        window_scale: (flags & 1 != 0).then_some((theirs, ours)),
        sack: flags & 2 != 0,
        timestamp: (flags & 4 != 0).then_some(timestamp),
        ecn: flags & 8 != 0,
    })
}

fn read_options(input: &mut Reader<'_>) -> Result<SocketOptions, DecodeError> {
    let count = input.u8()?;
    let mut ints = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (id, value) = (input.u8()?, input.u32()?);
        input.check(options::is_known(id), "socket option")?;
        ints.push((id, value));
    }
    let (has_linger, seconds) = (input.bool("linger")?, input.u32()?);
    input.check(has_linger || seconds == 0, "linger")?;
    let congestion = input.bytes(15, "congestion control")?.to_vec();
    input.check(congestion.iter().all(|byte| byte.is_ascii_graphic()), "congestion control")?;
    let buffers = Buffers { receive: input.u32()?, send: input.u32()?, lock: input.u32()? };
    input.check(buffers.receive <= 1 << 30 && buffers.send <= 1 << 30 && buffers.lock <= 3, "buffer sizes")?;
    Ok(SocketOptions { ints, linger: has_linger.then_some(seconds), congestion, buffers })
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    fn address(&mut self, address: SocketAddr) {
        match address.ip() {
            IpAddr::V4(v4) => self.0.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => self.0.extend_from_slice(&v6.octets()),
        }
        self.u16(address.port());
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let left = self.bytes.len() - self.at;
        if count > left {
            return Err(DecodeError::Short { offset: self.at, needed: count, left });
        }
        self.at += count;
        Ok(&self.bytes[self.at - count..self.at])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.take(N)?.try_into().expect("take returns as many as asked for"))
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        let value = self.u8()?;
        self.check(value < 2, field)?;
        Ok(value == 1)
    }

    fn bytes(&mut self, most: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()? as usize;
        self.check(length <= most, field)?;
        self.take(length)
    }

    fn address(&mut self, family: u8) -> Result<SocketAddr, DecodeError> {
        let ip = match family {
            4 => IpAddr::V4(Ipv4Addr::from(self.array::<4>()?)),
            _ => IpAddr::V6(Ipv6Addr::from(self.array::<16>()?)),
        };
        let port = self.u16()?;
        self.check(port != 0 && !ip.is_unspecified() && !ip.is_multicast(), "address")?;
        Ok(SocketAddr::new(ip, port))
    }

    fn direction(&mut self) -> Result<Option<Direction>, DecodeError> {
        let bytes = self.bytes(256, "kernel TLS")?;
        if bytes.is_empty() {
            return Ok(None);
        }
        Direction::parse(bytes).map(Some).map_err(|_| DecodeError::Field { field: "kernel TLS", offset: self.at })
    }

    fn check(&self, holds: bool, field: &'static str) -> Result<(), DecodeError> {
        if holds { Ok(()) } else { Err(DecodeError::Field { field, offset: self.at }) }
    }
}
