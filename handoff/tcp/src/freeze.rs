//! Reading a connection out of the kernel.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::options::SocketOptions;
use crate::resend::Outstanding;
use crate::sys::{self, RepairWindow};
use crate::{Error, FreezeError, Negotiated, Snapshot, TcpState, ktls, options};

/// How often the state is read again before giving up on a connection whose packets still arrive.
const ATTEMPTS: u32 = 16;

// tcpi_options, include/uapi/linux/tcp.h
const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_WSCALE: u8 = 4;
const TCPI_OPT_ECN: u8 = 8;

/// A connection that was read, and whose socket waits in repair mode: it sends nothing, and closing it is silent.
///
/// Exactly one of [`resume`](Frozen::resume) and [`release`](Frozen::release) ends this state. Dropping it counts as an
/// accident: the connection leaves repair mode and is closed like any other, so that the peer learns of it.
#[derive(Debug)]
pub struct Frozen {
    fd: Option<OwnedFd>,
    snapshot: Snapshot,
    reuse: u32,
}

/// Puts a connection into repair mode and reads its state.
///
/// Block the connection's packets first (the `steer` crate does that): what arrives afterwards is acknowledged by a
/// kernel that will not own the connection any more. The state is read until two readings agree, so packets that were
/// already past the block do no harm.
///
/// `blob` travels with the snapshot: whatever the application on the other side needs to go on, such as a request that
/// it has already read.
///
/// The socket must not be shared: no `dup`, no other process, no call on it in another thread.
///
/// # Errors
/// The connection is untouched in every case, and the error gives it back.
pub fn freeze(fd: OwnedFd, blob: &[u8]) -> Result<Frozen, FreezeError> {
    match read(fd.as_raw_fd(), blob) {
        Ok((snapshot, reuse)) => Ok(Frozen { fd: Some(fd), snapshot, reuse }),
        Err(error) => Err(FreezeError::new(fd, error)),
    }
}

impl Frozen {
    /// What was read.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Rolls back: the connection goes on here, as if nothing had happened. What the peer sent meanwhile it sends again,
    /// and its acknowledgements are asked for by a retransmission; lift the block first.
    ///
    /// # Errors
    /// If the kernel refuses to leave repair mode, which it does not do to a process that could enter it.
    pub fn resume(mut self) -> Result<OwnedFd, Error> {
        let fd = self.fd.take().expect("only resume, release and drop take it");
        leave_repair(fd.as_raw_fd(), self.reuse)?;
        let _ = self.resend(fd.as_raw_fd());
        Ok(fd)
    }

    /// Less may be unacknowledged than when the state was read: packets may have passed the block.
    fn resend(&self, fd: RawFd) -> Result<(), Error> {
        let Snapshot { local, state, .. } = self.snapshot;
        let fin = usize::from(state.fin_in_flight());
        let waiting = sys::ioctl_int(fd, libc::TIOCOUTQ, "SIOCOUTQ")? as usize;
        let unsent = sys::ioctl_int(fd, sys::SIOCOUTQNSD, "SIOCOUTQNSD")? as usize;
        let acknowledged = (self.snapshot.send.len() + fin).saturating_sub(waiting);
        let end = self.snapshot.send.len().saturating_sub(unsent.saturating_sub(fin));
        let outstanding = Outstanding {
            snapshot: &self.snapshot,
            local,
            sequence: self.snapshot.send_start().wrapping_add(acknowledged as u32),
            bytes: self.snapshot.send.get(acknowledged..end).unwrap_or_default(),
            fin: fin > 0 && unsent == 0 && waiting > 0,
        };
        outstanding.resend(fd)
    }

    /// Closes the socket without a word to the peer: the connection lives elsewhere now.
    pub fn release(mut self) {
        if let Some(fd) = self.fd.take() {
            sys::dissolve(&fd);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            let _ = leave_repair(fd.as_raw_fd(), self.reuse);
        }
    }
}

/// Leaving repair mode clears `SO_REUSEADDR`, without which a listener could not be started anew beside the connection.
pub(crate) fn leave_repair(fd: RawFd, reuse: u32) -> Result<(), Error> {
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, sys::TCP_REPAIR_OFF, "TCP_REPAIR")?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse, "SO_REUSEADDR")
}

/// What is fixed for the life of the connection, or does not depend on packets.
struct Fixed {
    local: SocketAddr,
    peer: SocketAddr,
    options: SocketOptions,
    reuse: u32,
}

fn read(fd: RawFd, blob: &[u8]) -> Result<(Snapshot, u32), Error> {
    let protocol: i32 = sys::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, "SO_PROTOCOL")?;
    if protocol != libc::IPPROTO_TCP {
        return Err(Error::NotTcp);
    }
    let state = Info::read(fd)?.state;
    if !state.can_be_handed_over() {
        return Err(Error::State(state));
    }
    let local = sys::local_address(fd)?;
    let fixed = Fixed {
        local,
        peer: sys::peer_address(fd)?,
        options: options::read(fd, local.is_ipv6())?,
        reuse: sys::option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR")?,
    };
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, sys::TCP_REPAIR_ON, "TCP_REPAIR")?;
    match read_in_repair(fd, &fixed, blob) {
        Ok(snapshot) => Ok((snapshot, fixed.reuse)),
        Err(error) => {
            leave_repair(fd, fixed.reuse)?;
            Err(error)
        }
    }
}

fn read_in_repair(fd: RawFd, fixed: &Fixed, blob: &[u8]) -> Result<Snapshot, Error> {
    let mut marks = Marks::read(fd)?;
    for _ in 0..ATTEMPTS {
        let state = marks.info.state;
        if !state.can_be_handed_over() {
            return Err(Error::State(state));
        }
        let ktls = ktls::read(fd, marks.unread, marks.unacknowledged)?;
        let contents = contents(fd, &marks, ktls.is_some());
        let again = Marks::read(fd)?;
        if again != marks {
            marks = again;
            continue;
        }
        let (receive, send) = contents?;
        return snapshot(fd, fixed, &marks, receive, send, ktls, blob);
    }
    Err(Error::Moving(ATTEMPTS))
}

/// Both queues.
fn contents(fd: RawFd, marks: &Marks, ktls: bool) -> Result<(Vec<u8>, Vec<u8>), Error> {
    // SIOCINQ counts to the urgent mark only, and so hides what is behind it. TLS knows no urgent data, and answers the
    // question with its own records.
    if !ktls && sys::has_urgent(fd) {
        return Err(Error::Urgent);
    }
    let receive = match marks.unread {
        0 => Vec::new(),
        unread => {
            select(fd, sys::TCP_RECV_QUEUE)?;
            // One byte more than expected: nothing may hide in the difference.
            sys::peek(fd, unread as usize + 1)?
        }
    };
    let send = match marks.send_bytes() {
        0 => Vec::new(),
        bytes => {
            select(fd, sys::TCP_SEND_QUEUE)?;
            let mut queue = sys::peek(fd, bytes as usize)?;
            // The kernel keeps a segment whole until all of it is acknowledged: the first one may begin too early.
            let known = queue.len().checked_sub(bytes as usize).ok_or(Error::Moving(ATTEMPTS))?;
            queue.drain(..known);
            queue
        }
    };
    Ok((receive, send))
}

fn snapshot(
    fd: RawFd,
    fixed: &Fixed,
    marks: &Marks,
    receive: Vec<u8>,
    send: Vec<u8>,
    ktls: Option<ktls::Ktls>,
    blob: &[u8],
) -> Result<Snapshot, Error> {
    if receive.len() != marks.unread as usize {
        return Err(Error::Urgent);
    }
    let state = marks.info.state;
    let fin_unsent = state.fin_in_flight() && marks.unsent > 0;
    Ok(Snapshot {
        local: fixed.local,
        peer: fixed.peer,
        state,
        negotiated: negotiated(fd, marks)?,
        send_end: marks.write_seq.wrapping_sub(u32::from(state.we_closed())),
        receive_end: marks.rcv_nxt.wrapping_sub(u32::from(state.peer_closed())),
        window: marks.window,
        receive,
        send,
        unsent: marks.unsent - u32::from(fin_unsent),
        fin_unsent,
        options: fixed.options.clone(),
        ktls,
        blob: blob.to_vec(),
    })
}

fn negotiated(fd: RawFd, marks: &Marks) -> Result<Negotiated, Error> {
    let has = |bit| marks.info.options & bit != 0;
    // In repair mode this is the peer's MSS option, not the current segment size.
    let mss: u32 = sys::option(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, "TCP_MAXSEG")?;
    let timestamp = match has(TCPI_OPT_TIMESTAMPS) {
        true => Some(sys::option(fd, libc::IPPROTO_TCP, sys::TCP_TIMESTAMP, "TCP_TIMESTAMP")?),
        false => None,
    };
    Ok(Negotiated {
        mss: mss.min(u32::from(u16::MAX)) as u16,
        window_scale: has(TCPI_OPT_WSCALE).then_some(marks.info.scales),
        sack: has(TCPI_OPT_SACK),
        timestamp,
        ecn: has(TCPI_OPT_ECN),
    })
}

fn select(fd: RawFd, queue: i32) -> Result<(), Error> {
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue, "TCP_REPAIR_QUEUE")
}

/// The first bytes of `struct tcp_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub state: TcpState,
    options: u8,
    /// The peer's shift count, then ours.
    scales: (u8, u8),
}

impl Info {
    pub fn read(fd: RawFd) -> Result<Info, Error> {
        let info: [u8; 8] = sys::option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, "TCP_INFO")?;
        // tcpi_snd_wscale and tcpi_rcv_wscale are bit fields of one byte.
        let scales = match cfg!(target_endian = "little") {
            true => (info[6] & 15, info[6] >> 4),
            false => (info[6] >> 4, info[6] & 15),
        };
        let state = TcpState::from_kernel(info[0]).ok_or(Error::NotTcp)?;
        Ok(Info { state, options: info[5], scales })
    }
}

/// All that packets move. Two equal readings with the queues read in between are one consistent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    info: Info,
    write_seq: u32,
    rcv_nxt: u32,
    /// Bytes that the application has not read, without a FIN.
    unread: u32,
    /// From the first unacknowledged byte to `write_seq`, with a FIN that waits there.
    unacknowledged: u32,
    /// From the first byte that was never sent to `write_seq`, with a FIN.
    unsent: u32,
    window: RepairWindow,
}

impl Marks {
    fn read(fd: RawFd) -> Result<Marks, Error> {
        // Ends with the send queue selected: in this state the kernel does not push data out.
        let rcv_nxt = Self::sequence(fd, sys::TCP_RECV_QUEUE)?;
        let write_seq = Self::sequence(fd, sys::TCP_SEND_QUEUE)?;
        Ok(Marks {
            info: Info::read(fd)?,
            write_seq,
            rcv_nxt,
            unread: sys::ioctl_int(fd, libc::FIONREAD, "SIOCINQ")?,
            unacknowledged: sys::ioctl_int(fd, libc::TIOCOUTQ, "SIOCOUTQ")?,
            unsent: sys::ioctl_int(fd, sys::SIOCOUTQNSD, "SIOCOUTQNSD")?,
            window: sys::option(fd, libc::IPPROTO_TCP, sys::TCP_REPAIR_WINDOW, "TCP_REPAIR_WINDOW")?,
        })
    }

    fn sequence(fd: RawFd, queue: i32) -> Result<u32, Error> {
        select(fd, queue)?;
        sys::option(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, "TCP_QUEUE_SEQ")
    }

    /// Payload bytes in the send queue.
    fn send_bytes(&self) -> u32 {
        self.unacknowledged - u32::from(self.info.state.fin_in_flight())
    }
}
