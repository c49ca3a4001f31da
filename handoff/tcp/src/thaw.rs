//! Putting a connection into the kernel.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::freeze::leave_repair;
use crate::half_close::Restored;
use crate::resend::Outstanding;
use crate::sys::{self, RepairOption, RepairWindow};
use crate::{Error, Queue, Snapshot, half_close, ktls, options};

/// Twice the least step of the timestamp clock. Its lowest bit is a flag, so what was read may be one step behind what
/// the peer has seen, and a peer drops segments whose timestamp goes back (PAWS, RFC 7323, section 5).
const TIMESTAMP_MARGIN: u32 = 2;

/// A restored connection that is still in repair mode: it has its place in the kernel's tables and takes packets, but
/// sends nothing of its own. Put the steering in place, then call [`finish`](Thawing::finish). Dropping it closes the
/// socket silently: the connection is as alive as it was before, wherever it is.
#[derive(Debug)]
pub struct Thawing {
    /// In repair mode, until `finish` takes it.
    fd: Option<OwnedFd>,
    local: SocketAddr,
    /// Sends what the peer has sent, for half-closed states.
    voice: Option<OwnedFd>,
    half_closed: bool,
    una: u32,
    /// The first unacknowledged bytes, as many as a segment takes at most.
    first: Vec<u8>,
    /// Without what the kernel has already.
    rest: Snapshot,
}

/// Restores a connection at `local`, an address of this host. The port is best the snapshot's own; another one, or
/// another address than the snapshot's, needs packets rewritten in both directions (the `steer` crate).
///
/// # Errors
/// [`Error::AddressInUse`] if the host has a connection between `local` and the snapshot's peer: try another port.
/// [`Error::NotLocal`] if the address is not configured. [`Error::Ktls`] if the connection carries kernel TLS and this kernel
/// has none. Nothing is left behind, and the peer has heard nothing.
pub fn thaw(snapshot: &Snapshot, local: SocketAddr) -> Result<Thawing, Error> {
    restore(snapshot, local, false)
}

/// Restores a connection under the snapshot's own address although this host does not have it (`IP_TRANSPARENT`).
/// Routing must deliver packets for that address to this host's sockets; no rewriting is needed then.
///
/// # Errors
/// As [`thaw`]; half-closed connections in which the peer has sent its FIN cannot be restored this way. What is
/// unacknowledged is sent again after a retransmission time-out only.
pub fn thaw_foreign(snapshot: &Snapshot) -> Result<Thawing, Error> {
    restore(snapshot, snapshot.local, true)
}

impl Thawing {
    /// Where the connection was restored.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    #[cfg(test)]
    pub(crate) fn as_raw(&self) -> RawFd {
        self.fd.as_ref().expect("only finish and drop take it").as_raw_fd()
    }

    /// Restores half-closed states, the last thing that can go wrong: call it before the other side is told that it may
    /// give the connection up. If the peer has closed, the kernel acknowledges that once more, so the source rule, or a
    /// block in both directions, must stand. Nothing to do for established connections, and if it was called before.
    ///
    /// # Errors
    /// [`Error::HalfClose`]. Drop this then: the socket is dissolved without a word to the peer.
    pub fn half_close(&mut self) -> Result<(), Error> {
        if !self.half_closed {
            let fd = self.fd.as_ref().expect("only finish and drop take it").as_raw_fd();
            let Thawing { rest, local, voice, una, .. } = &*self;
            half_close::restore(&Restored { fd, snapshot: rest, una: *una, local: *local, voice: voice.as_ref() })?;
            self.half_closed = true;
        }
        Ok(())
    }

    /// Leaves repair mode: sends what was unsent, and the first unacknowledged segment again. The descriptor is in
    /// non-blocking mode and closes on exec.
    ///
    /// # Errors
    /// Those of [`half_close`](Thawing::half_close), if that was not called before. Others come after repair mode has
    /// ended, and close the connection.
    pub fn finish(mut self) -> Result<OwnedFd, Error> {
        self.half_close()?;
        // From here on the connection is live, and errors close it like any other.
        let fd = self.fd.take().expect("only finish and drop take it");
        let (raw, snapshot) = (fd.as_raw_fd(), &self.rest);
        leave_repair(raw, snapshot.options.reuse_address())?;
        let fin = snapshot.state.fin_in_flight() && !snapshot.fin_unsent;
        let outstanding = Outstanding { snapshot, local: self.local, sequence: self.una, bytes: &self.first, fin };
        let _ = outstanding.resend(raw);
        sys::queue(raw, snapshot.unsent()).map_err(|(accepted, source)| Error::QueueRefused {
            queue: Queue::Send,
            accepted,
            length: snapshot.unsent().len(),
            source,
        })?;
        if snapshot.fin_unsent {
            sys::shutdown_write(raw)?;
        }
        options::restore_buffers(raw, &snapshot.options.buffers)?;
        Ok(fd)
    }
}

impl Drop for Thawing {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            sys::dissolve(&fd);
        }
    }
}

fn restore(snapshot: &Snapshot, local: SocketAddr, foreign: bool) -> Result<Thawing, Error> {
    let peer = snapshot.peer;
    if local.is_ipv4() != peer.is_ipv4() {
        return Err(Error::Family { local, peer });
    }
    let voice = half_close::peer_voice(snapshot.state, local)?;
    let fd = sys::stream_socket(&local)?;
    let raw = fd.as_raw_fd();
    sys::set_option(raw, libc::IPPROTO_TCP, libc::TCP_REPAIR, sys::TCP_REPAIR_ON, "TCP_REPAIR")?;
    if foreign {
        allow_foreign(raw, local.is_ipv6())?;
    }
    before_connect(raw, snapshot)?;
    connect(&fd, local, peer)?;
    let unacknowledged = snapshot.unacknowledged();
    let first = unacknowledged[..unacknowledged.len().min(usize::from(snapshot.negotiated.mss))].to_vec();
    let (una, rest) = (snapshot.send_start(), snapshot.rest());
    let thawing = Thawing { fd: Some(fd), local, voice, half_closed: false, una, first, rest };
    after_connect(raw, snapshot)?;
    Ok(thawing)
}

fn allow_foreign(fd: RawFd, v6: bool) -> Result<(), Error> {
    match v6 {
        true => sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1, "IPV6_TRANSPARENT"),
        false => sys::set_option(fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1, "IP_TRANSPARENT"),
    }
}

/// What only a closed socket takes: sequence numbers, and all that decides about buffers and segment size.
fn before_connect(fd: RawFd, snapshot: &Snapshot) -> Result<(), Error> {
    // The first flight goes out in segments of the right size, instead of the 524 bytes of a socket that knows nothing.
    // Only values from 88 on are taken; smaller ones do not occur outside tests of stacks.
    let mss = u32::from(snapshot.negotiated.mss).clamp(88, 32767);
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, mss, "TCP_MAXSEG")?;
    let promised = snapshot.receive.len() + snapshot.window.rcv_wnd as usize;
    options::make_room(fd, &snapshot.options.buffers, promised, snapshot.send.len())?;
    set_sequence(fd, sys::TCP_SEND_QUEUE, snapshot.send_start())?;
    set_sequence(fd, sys::TCP_RECV_QUEUE, snapshot.receive_start())
}

/// In repair mode this sends nothing: the socket is established at once.
fn connect(fd: &OwnedFd, local: SocketAddr, peer: SocketAddr) -> Result<(), Error> {
    sys::bind(fd, &local).map_err(|source| match source.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => Error::NotLocal(local),
        Some(libc::EADDRINUSE) => Error::AddressInUse { local, peer },
        _ => Error::Call { call: "bind", source },
    })?;
    sys::connect(fd, &peer).map_err(|source| match source.raw_os_error() {
        Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE) => Error::AddressInUse { local, peer },
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => Error::NoRoute { local, peer, source },
        _ => Error::Call { call: "connect", source },
    })
}

/// What was negotiated, the queues, the clocks and the windows. The windows come last: they refer to all the rest.
fn after_connect(fd: RawFd, snapshot: &Snapshot) -> Result<(), Error> {
    sys::set_slice(
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_REPAIR_OPTIONS,
        &negotiated_options(snapshot),
        "TCP_REPAIR_OPTIONS",
    )?;
    if snapshot.negotiated.window_scale.is_none() {
        // What does not fit into 16 bits cannot be advertised.
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 0xffff, "TCP_WINDOW_CLAMP")?;
    }
    if let Some(timestamp) = snapshot.negotiated.timestamp {
        let value = timestamp.wrapping_add(TIMESTAMP_MARGIN);
        sys::set_option(fd, libc::IPPROTO_TCP, sys::TCP_TIMESTAMP, value, "TCP_TIMESTAMP")?;
    }
    options::apply(fd, &snapshot.options, snapshot.peer.is_ipv6())?;
    fill(fd, sys::TCP_RECV_QUEUE, Queue::Receive, &snapshot.receive)?;
    fill(fd, sys::TCP_SEND_QUEUE, Queue::Send, snapshot.unacknowledged())?;
    sys::set_option(fd, libc::IPPROTO_TCP, sys::TCP_REPAIR_WINDOW, window(snapshot), "TCP_REPAIR_WINDOW")?;
    match &snapshot.ktls {
        // Both queues are empty then, so nothing above has been taken for a record.
        Some(ktls) => Ok(ktls::restore(fd, ktls)?),
        None => Ok(()),
    }
}

fn negotiated_options(snapshot: &Snapshot) -> Vec<RepairOption> {
    let negotiated = &snapshot.negotiated;
    // A shift count of zero is not the same as leaving it out: the kernel would keep the one that it would have offered.
    let (theirs, ours) = negotiated.window_scale.unwrap_or((0, 0));
    let mut options = vec![
        RepairOption { code: sys::TCPOPT_MAXSEG, value: u32::from(negotiated.mss) },
        RepairOption { code: sys::TCPOPT_WINDOW, value: u32::from(theirs) | u32::from(ours) << 16 },
    ];
    if negotiated.sack {
        options.push(RepairOption { code: sys::TCPOPT_SACK_PERM, value: 0 });
    }
    if negotiated.timestamp.is_some() {
        options.push(RepairOption { code: sys::TCPOPT_TIMESTAMP, value: 0 });
    }
    options
}

/// The windows as they were, except that the peer's FIN, which comes later, is not counted as received yet.
fn window(snapshot: &Snapshot) -> RepairWindow {
    let mut window = snapshot.window;
    let ahead = window.rcv_wup.wrapping_sub(snapshot.receive_end) as i32;
    if ahead > 0 {
        window.rcv_wup = snapshot.receive_end;
        window.rcv_wnd = window.rcv_wnd.wrapping_add(ahead as u32);
    }
    if snapshot.peer_closed() {
        // The FIN needs room in the window. Nothing comes after it.
        let used = snapshot.receive_end.wrapping_sub(window.rcv_wup);
        window.rcv_wnd = window.rcv_wnd.max(used.saturating_add(1));
    }
    window
}

fn fill(fd: RawFd, queue: i32, which: Queue, bytes: &[u8]) -> Result<(), Error> {
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue, "TCP_REPAIR_QUEUE")?;
    let refused = |(accepted, source): (usize, io::Error)| Error::QueueRefused {
        queue: which,
        accepted,
        length: bytes.len(),
        source,
    };
    sys::queue(fd, bytes).map_err(refused)
}

fn set_sequence(fd: RawFd, queue: i32, value: u32) -> Result<(), Error> {
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue, "TCP_REPAIR_QUEUE")?;
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, value, "TCP_QUEUE_SEQ")
}
