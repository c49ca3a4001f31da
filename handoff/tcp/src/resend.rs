//! The first segment that waits for its acknowledgement, sent again as soon as repair mode ends.
//!
//! Acknowledgements that came while the peer's packets were blocked are lost, and a connection that leaves repair mode asks
//! for them only if it is established, with a window probe that the peer answers twice a second at most. Otherwise it would
//! wait for its retransmission time-out: a second for a restored connection, and more from then on, because it takes
//! that second for the round-trip time. A segment with data or a FIN is always answered at once.

use std::net::SocketAddr;
use std::os::fd::RawFd;

use crate::segment::{self, ACK, FIN, PSH, Segment};
use crate::{Error, Snapshot, sys};

/// What waits for its acknowledgement.
pub(crate) struct Outstanding<'a> {
    pub snapshot: &'a Snapshot,
    pub local: SocketAddr,
    /// Sequence number of the first byte, or of the FIN.
    pub sequence: u32,
    pub bytes: &'a [u8],
    /// Behind them.
    pub fin: bool,
}

impl Outstanding<'_> {
    /// Sends as much as one segment takes, if there is anything. The kernel's own retransmission makes up for a failure.
    pub fn resend(&self, fd: RawFd) -> Result<(), Error> {
        if self.bytes.is_empty() && !self.fin {
            return Ok(());
        }
        let snapshot = self.snapshot;
        let length = self.bytes.len().min(segment::payload_size(fd)?);
        let fin = self.fin && length == self.bytes.len();
        let timestamp = match snapshot.negotiated.timestamp {
            Some(_) => Some(sys::option(fd, libc::IPPROTO_TCP, sys::TCP_TIMESTAMP, "TCP_TIMESTAMP")?),
            None => None,
        };
        let segment = Segment {
            from: self.local,
            to: snapshot.peer,
            sequence: self.sequence,
            acknowledge: snapshot.receive_end.wrapping_add(u32::from(snapshot.peer_closed())),
            flags: ACK | PSH | if fin { FIN } else { 0 },
            window: own_window(snapshot),
            timestamp,
            payload: &self.bytes[..length],
        };
        segment.send(&segment::raw_socket(self.local)?)
    }
}

/// What the peer was promised last, less what it has used.
fn own_window(snapshot: &Snapshot) -> u16 {
    let end = snapshot.window.rcv_wup.wrapping_add(snapshot.window.rcv_wnd);
    let left = end.wrapping_sub(snapshot.receive_end).cast_signed().max(0).cast_unsigned();
    let shift = snapshot.negotiated.window_scale.map_or(0, |(_, ours)| ours);
    (left >> shift).min(0xffff) as u16
}
