//! Half-closed states. The kernel restores established connections only; the rest comes about as it did the first time:
//! our FIN by `shutdown`, which repair mode keeps from being sent again, and what the peer did by a segment that is
//! made here and sent to the connection's own address through the loopback device.

use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::freeze::Info;
use crate::segment::{ACK, FIN, Segment, raw_socket};
use crate::{Error, Snapshot, TcpState, sys};

/// A segment through the loopback device is taken before `sendto` returns, unless the kernel defers it under load.
const PATIENCE: Duration = Duration::from_millis(500);

/// A raw socket that can send what the peer has sent, if the state needs that.
pub(crate) fn peer_voice(state: TcpState, local: SocketAddr) -> Result<Option<OwnedFd>, Error> {
    if !state.peer_closed() && state != TcpState::FinWait2 {
        return Ok(None);
    }
    raw_socket(local).map(Some)
}

/// What `restore` works on.
pub(crate) struct Restored<'a> {
    pub fd: RawFd,
    pub snapshot: &'a Snapshot,
    /// Sequence number of the first byte that the peer has not acknowledged.
    pub una: u32,
    pub local: SocketAddr,
    pub voice: Option<&'a OwnedFd>,
}

/// Brings an established connection into the state of the snapshot. Unsent data and an unsent FIN come later.
pub(crate) fn restore(at: &Restored<'_>) -> Result<(), Error> {
    use TcpState::*;
    let fin_from_peer = |wanted| segment(at, FIN | ACK, at.una, wanted);
    match at.snapshot.state {
        Established => Ok(()),
        CloseWait => fin_from_peer(CloseWait),
        // Our FIN was not sent: shutdown() follows when the unsent bytes are out.
        FinWait1 if at.snapshot.fin_unsent => Ok(()),
        LastAck | Closing if at.snapshot.fin_unsent => fin_from_peer(CloseWait),
        FinWait1 => sys::shutdown_write(at.fd),
        FinWait2 => {
            sys::shutdown_write(at.fd)?;
            segment(at, ACK, at.snapshot.send_end.wrapping_add(1), FinWait2)
        }
        LastAck => {
            fin_from_peer(CloseWait)?;
            sys::shutdown_write(at.fd)
        }
        Closing => {
            sys::shutdown_write(at.fd)?;
            fin_from_peer(Closing)
        }
        state => Err(Error::State(state)),
    }
}

/// Sends what the peer would send, and waits until it has brought the connection into state `wanted`.
fn segment(at: &Restored<'_>, flags: u8, acknowledge: u32, wanted: TcpState) -> Result<(), Error> {
    let Restored { fd, snapshot, local, .. } = *at;
    let voice = at.voice.ok_or(Error::NotLocal(local))?;
    let shift = snapshot.negotiated.window_scale.map_or(0, |(theirs, _)| theirs);
    let segment = Segment {
        from: snapshot.peer,
        to: local,
        sequence: snapshot.receive_end,
        acknowledge,
        flags,
        window: (snapshot.window.snd_wnd >> shift).min(0xffff) as u16,
        timestamp: None,
        payload: &[],
    };
    if segment.send(voice).is_err() {
        // As if a filter had taken it: the caller must know that the connection was not touched.
        return Err(Error::HalfClose { wanted: snapshot.state, found: Info::read(fd)?.state });
    }

    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = Info::read(fd)?.state;
        if found == wanted {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::HalfClose { wanted: snapshot.state, found });
        }
        std::thread::yield_now();
    }
}
