use std::fmt;
use std::net::SocketAddr;

use crate::ktls::Ktls;
use crate::options::SocketOptions;
use crate::sys::RepairWindow;

/// The states of RFC 9293, section 3.3.2, under the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the RFC's")]
pub enum TcpState {
    Established = 1,
    SynSent = 2,
    SynReceived = 3,
    FinWait1 = 4,
    FinWait2 = 5,
    TimeWait = 6,
    Closed = 7,
    CloseWait = 8,
    LastAck = 9,
    Listen = 10,
    Closing = 11,
}

impl TcpState {
    /// From the kernel's number.
    pub(crate) fn from_kernel(number: u8) -> Option<TcpState> {
        use TcpState::*;
        Some(match number {
            1 => Established,
            2 => SynSent,
            3 | 12 => SynReceived,
            4 => FinWait1,
            5 => FinWait2,
            6 => TimeWait,
            7 => Closed,
            8 => CloseWait,
            9 => LastAck,
            10 => Listen,
            11 => Closing,
            _ => return None,
        })
    }

    /// The connection can be handed over in this state.
    pub fn can_be_handed_over(self) -> bool {
        use TcpState::*;
        matches!(self, Established | FinWait1 | FinWait2 | CloseWait | LastAck | Closing)
    }

    /// The peer has sent its FIN, and we have received all before it.
    pub fn peer_closed(self) -> bool {
        matches!(self, TcpState::CloseWait | TcpState::LastAck | TcpState::Closing)
    }

    /// We have closed our direction, and the FIN has its place in the send queue.
    pub fn we_closed(self) -> bool {
        use TcpState::*;
        matches!(self, FinWait1 | FinWait2 | LastAck | Closing)
    }

    /// Our FIN is still in the send queue: not sent, or not acknowledged.
    pub(crate) fn fin_in_flight(self) -> bool {
        self.we_closed() && self != TcpState::FinWait2
    }
}

impl fmt::Display for TcpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use TcpState::*;
        f.write_str(match self {
            Established => "ESTABLISHED",
            SynSent => "SYN-SENT",
            SynReceived => "SYN-RECEIVED",
            FinWait1 => "FIN-WAIT-1",
            FinWait2 => "FIN-WAIT-2",
            TimeWait => "TIME-WAIT",
            Closed => "CLOSED",
            CloseWait => "CLOSE-WAIT",
            LastAck => "LAST-ACK",
            Listen => "LISTEN",
            Closing => "CLOSING",
        })
    }
}

/// One of the two queues of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// Received, acknowledged, not read by the application yet.
    Receive,
    /// Written by the application, not acknowledged by the peer yet.
    Send,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Queue::Receive => "receive queue",
            Queue::Send => "send queue",
        })
    }
}

/// What both ends agreed on in the handshake (`tcpi_options`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The largest segment that the peer takes, in bytes without TCP options (RFC 9293, section 3.7.1).
    pub mss: u16,
    /// Shift counts of the peer's and of our window, if window scaling was agreed on (RFC 7323, section 2). At most 14.
    pub window_scale: Option<(u8, u8)>,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Timestamps (RFC 7323, section 3): the value of our clock when the snapshot was taken. Its lowest bit tells the
    /// kernel whether the clock counts microseconds.
    pub timestamp: Option<u32>,
    /// Explicit congestion notification (RFC 3168) was agreed on. No interface restores it: a thawed connection sends
    /// packets without ECT.
    pub ecn: bool,
}

/// The state of one TCP connection, taken by [`freeze`](crate::freeze()).
///
/// Sequence numbers are those of the first byte *behind* each queue, as `TCP_QUEUE_SEQ` has them, but without a FIN.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) state: TcpState,
    pub(crate) negotiated: Negotiated,
    /// Sequence number of the byte that would follow the send queue.
    pub(crate) send_end: u32,
    /// Sequence number of the byte that would follow the receive queue.
    pub(crate) receive_end: u32,
    pub(crate) window: RepairWindow,
    pub(crate) receive: Vec<u8>,
    /// Unacknowledged bytes, then unsent ones.
    pub(crate) send: Vec<u8>,
    /// How many bytes at the end of `send` were not sent yet.
    pub(crate) unsent: u32,
    /// Our FIN was not sent yet.
    pub(crate) fin_unsent: bool,
    pub(crate) options: SocketOptions,
    pub(crate) ktls: Option<Ktls>,
    pub(crate) blob: Vec<u8>,
}

impl Snapshot {
    /// The address and port that the connection had on the host where it was frozen.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The state of the connection.
    pub fn state(&self) -> TcpState {
        self.state
    }

    /// What was agreed on in the handshake.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// The application's own bytes, as given to [`freeze`](crate::freeze()).
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// Bytes that the peer has sent and the application has not read.
    pub fn unread(&self) -> &[u8] {
        &self.receive
    }

    /// Bytes that were sent at least once and that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> &[u8] {
        &self.send[..self.send.len() - self.unsent as usize]
    }

    /// Bytes that the application has written and that were never sent.
    pub fn unsent(&self) -> &[u8] {
        &self.send[self.send.len() - self.unsent as usize..]
    }

    /// The peer has closed its direction: after [`unread`](Self::unread) comes the end of the stream.
    pub fn peer_closed(&self) -> bool {
        self.state.peer_closed()
    }

    /// The connection carries kernel TLS.
    pub fn has_ktls(&self) -> bool {
        self.ktls.is_some()
    }

    /// A copy without the queues, except for what is to be sent when repair mode has ended, and without the blob.
    pub(crate) fn rest(&self) -> Snapshot {
        Snapshot {
            receive: Vec::new(),
            send: self.unsent().to_vec(),
            blob: Vec::new(),
            options: self.options.clone(),
            ktls: None,
            ..*self
        }
    }

    /// Sequence number of the first byte of the send queue.
    pub(crate) fn send_start(&self) -> u32 {
        self.send_end.wrapping_sub(self.send.len() as u32)
    }

    /// Sequence number of the first byte of the receive queue.
    pub(crate) fn receive_start(&self) -> u32 {
        self.receive_end.wrapping_sub(self.receive.len() as u32)
    }
}

/// Payload, blob and keys stay out of logs.
impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("local", &self.local)
            .field("peer", &self.peer)
            .field("state", &self.state)
            .field("negotiated", &self.negotiated)
            .field("unread", &self.receive.len())
            .field("unacknowledged", &self.unacknowledged().len())
            .field("unsent", &self.unsent)
            .field("window", &self.window)
            .field("ktls", &self.ktls.is_some())
            .field("blob", &self.blob.len())
            .finish_non_exhaustive()
    }
}
