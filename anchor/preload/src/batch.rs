//! Batches: pieces of payload that were accepted from the application one by one and leave together.
//!
//! Many proxies write 8 or 16 KiB at a time, each of which would become a packet of its own. Inside an event loop, pieces
//! of one segment after the other wait until there are [`MOST`] bytes, until something else is to be sent on the connection,
//! or until the thread waits for events, or for anything else that the library sees (`hooks/idle.rs`). While more of the message
//! is to come, full packets leave, and what is left over waits for it. Bytes are accepted only where the kernel has room for
//! them for certain, so that what was accepted can also be sent.

use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use syscalls::Errno;

use crate::anchor::{self, Anchor, Refusal};
use crate::egress;
use crate::engine::{self, Engine};
use crate::hooks::quietly;
use crate::mark::Vpi;
use crate::socket::{Link, Socket};
use crate::{sys, table};

/// Bytes that wait on one connection at most.
const MOST: usize = 128 << 10;
/// [`Batch::looks`] of what may still grow.
const LOOKS: u8 = 1;
/// The same of what is left over when full packets have left: alone it costs as much as a full packet.
const LOOKS_OF_A_TAIL: u8 = 8;

/// Payload of one anchor that waits, at the end of what was accepted on its connection.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) vpi: Vpi,
    /// Offset of its first byte in the anchor.
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// The application knows that the connection takes no more, and comes again.
    told: bool,
    /// How often the loop may still look for events, without waiting for them, before this leaves.
    looks: u8,
}

/// What comes after a piece of payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// More bytes of the same call.
    CallGoesOn,
    /// More of the same message, with another call.
    MessageGoesOn,
    Nothing,
}

impl Batch {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len as u64
    }
}

/// Some batch was begun in this process: before, there is nothing to look for.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread waits for events with epoll: batches leave there.
    static IS_LOOP: Cell<bool> = const { Cell::new(false) };
    static WAITING: RefCell<Waiting> = const { RefCell::new(Waiting(Vec::new())) };
}

/// Descriptors of connections with batches, or with bytes that are held back because they may be the beginning of a mark.
struct Waiting(Vec<c_int>);

impl Drop for Waiting {
    /// The thread ends.
    fn drop(&mut self) {
        for fd in self.0.drain(..) {
            quietly(true, || leave_at(fd, false));
        }
    }
}

/// Sends `len` bytes from where the link stands, behind what waits, or lets them wait with it. Returns how many of them were
/// accepted.
pub(crate) fn forward(
    engine: &Engine,
    socket: &mut Socket,
    anchor: &mut Anchor,
    link: Link,
    len: usize,
    then: Then,
    flags: c_int,
) -> Result<usize, Refusal> {
    if link.is_proven && accept(socket, link, len) {
        return Ok(len);
    }
    if socket.batch.is_some() {
        expect_socket(socket.fd)?;
    }
    let mut tail = if link.is_proven && then == Then::MessageGoesOn { tail(socket, len) } else { 0 };
    loop {
        let (from, waiting) = socket.batch.as_ref().map_or((link.offset, 0), |batch| (batch.offset, batch.len));
        let all = waiting + len;
        let sent = anchor.forward(engine, from, all - tail, socket.fd, then == Then::CallGoesOn, flags)?;
        if tail > 0 && sent == all - tail && remember(socket.fd) {
            let offset = from + sent as u64;
            socket.batch =
                Some(Box::new(Batch { vpi: link.vpi, offset, len: tail, told: false, looks: LOOKS_OF_A_TAIL }));
            return Ok(len);
        }
        tail = 0;
        if sent > waiting {
            socket.batch = None;
            return Ok(sent - waiting);
        }
        if sent == 0 {
            return Ok(0);
        }
        moved(socket, sent);
    }
}

/// Lets `len` bytes wait, if there is room for them.
fn accept(socket: &mut Socket, link: Link, len: usize) -> bool {
    let fits = match &socket.batch {
        Some(batch) => batch.len + len <= MOST && !batch.told,
        None => len <= MOST / 2,
    };
    if !fits || !has_room(socket, len) {
        return false;
    }
    match &mut socket.batch {
        Some(batch) => batch.len += len,
        None => {
            if !remember(socket.fd) {
                return false;
            }
            socket.batch = Some(Box::new(Batch { vpi: link.vpi, offset: link.offset, len, told: false, looks: LOOKS }));
        }
    }
    true
}

/// Whether `len` more bytes may wait: this thread comes back to look after them, and the kernel will take them for certain.
fn has_room(socket: &mut Socket, len: usize) -> bool {
    if !IS_LOOP.get() || socket.aliases > 0 {
        return false;
    }
    if (socket.room as usize) < len {
        // Half of it: the kernel counts its own structures as well.
        let room = (sys::send_room(socket.fd) / 2).saturating_sub(socket.waiting());
        socket.room = u32::try_from(room).unwrap_or(u32::MAX);
        if socket.packet == 0 {
            socket.packet = sys::largest_packet(socket.fd);
        }
    }
    socket.room as usize >= len
}

/// How many bytes at the end of what waits and `len` more would leave in a packet that is not full, and had better wait for
/// those that follow.
fn tail(socket: &mut Socket, len: usize) -> usize {
    let all = socket.waiting() + len;
    if !has_room(socket, len) || socket.packet == 0 || all < usize::from(socket.packet) {
        return 0;
    }
    all % usize::from(socket.packet)
}

/// How many of the bytes that wait stay although the loop looks for events: it has more to do.
fn stays(socket: &mut Socket) -> usize {
    let packet = usize::from(socket.packet);
    let Some(batch) = &mut socket.batch else { return 0 };
    if packet > 0 && batch.len >= packet {
        batch.looks = LOOKS_OF_A_TAIL;
        return batch.len % packet;
    }
    let may_stay = batch.looks > 0;
    batch.looks = batch.looks.saturating_sub(1);
    if may_stay { batch.len } else { 0 }
}

/// Has a connection looked after when this thread looks for events. False: not now, in a signal handler for instance.
pub(crate) fn remember(fd: c_int) -> bool {
    EVER.store(true, Ordering::Relaxed);
    let remembered = WAITING.try_with(|waiting| waiting.try_borrow_mut().map(|mut it| it.0.push(fd)).is_ok());
    remembered.unwrap_or(false)
}

fn moved(socket: &mut Socket, sent: usize) {
    if let Some(batch) = &mut socket.batch {
        batch.offset += sent as u64;
        batch.len -= sent;
        if batch.len == 0 {
            socket.batch = None;
        }
    }
}

/// The application was told that the connection takes no more for now.
pub(crate) fn told(socket: &mut Socket) {
    if let Some(batch) = &mut socket.batch {
        batch.told = true;
    }
}

/// A splice goes to files as well, and the connection may have been closed unseen (fclose) since its bytes were accepted.
fn expect_socket(fd: c_int) -> Result<(), Refusal> {
    if sys::is_socket(fd) { Ok(()) } else { Err(Refusal::Kernel(Errno::ENOTSOCK)) }
}

/// Sends what waits; `more` follows at once.
pub(crate) fn leave(engine: &Engine, socket: &mut Socket, more: bool) -> Result<(), Refusal> {
    leave_but(engine, socket, 0, more)
}

/// Sends what waits, but for the last `tail` bytes.
fn leave_but(engine: &Engine, socket: &mut Socket, tail: usize, more: bool) -> Result<(), Refusal> {
    if socket.batch.is_some() {
        expect_socket(socket.fd)?;
    }
    while let Some(batch) = &socket.batch {
        let (vpi, offset, len) = (batch.vpi, batch.offset, batch.len.saturating_sub(tail));
        if len == 0 {
            break;
        }
        let mut anchor = anchor::lookup(vpi).ok_or(Refusal::Gone)?;
        match anchor.forward(engine, offset, len, socket.fd, more, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)? {
            0 => return Err(Refusal::Kernel(Errno::EAGAIN)),
            sent => {
                drop(anchor);
                moved(socket, sent);
            }
        }
    }
    Ok(())
}

/// Sends what waits on a connection, payload or what may be the beginning of a mark. `is_busy`: the loop has more to do, so that
/// a packet that is not full may wait a little longer.
/// False: something is left, because of that, because the kernel does not take it after all, or because somebody is at work on it.
pub(crate) fn leave_at(fd: c_int, is_busy: bool) -> bool {
    let (Some(cell), Some(engine)) = (table::socket(fd), engine::running()) else { return true };
    // A signal handler must not wait for the thread that it has interrupted.
    if cell.is_busy() {
        return false;
    }
    let gone = cell.with(fd, |socket| {
        let has_left = leave_unless_busy(engine, socket, is_busy);
        if !has_left || socket.batch.is_some() {
            has_left
        } else {
            socket.owed.is_none() || !is_busy && egress::let_out(engine, socket)
        }
    });
    gone.unwrap_or(true)
}

/// The same of payload alone.
fn leave_unless_busy(engine: &Engine, socket: &mut Socket, is_busy: bool) -> bool {
    if socket.batch.as_ref().is_none_or(|batch| batch.told) {
        return true;
    }
    let tail = if is_busy { stays(socket) } else { 0 };
    match leave_but(engine, socket, tail, false) {
        Ok(()) => tail == 0,
        Err(Refusal::Kernel(Errno::EAGAIN)) => false,
        Err(Refusal::Kernel(error)) => {
            socket.batch = None;
            socket.tx_error = Socket::due(error);
            true
        }
        Err(Refusal::Unspliceable | Refusal::Gone) => {
            egress::doubt(engine, socket, "payload that was accepted cannot be sent");
            true
        }
    }
}

/// The thread is about to wait for something else than events, or may be.
#[inline]
pub(crate) fn before_waiting() {
    if EVER.load(Ordering::Relaxed) {
        leave_before_waiting();
    }
}

#[cold]
#[inline(never)]
fn leave_before_waiting() {
    quietly(true, || leave_all(true));
}

/// The thread is about to look for events. `waits`: it may wait for them; otherwise what was begun lately may still grow. False:
/// something has not left yet, so that the wait must be short.
pub(crate) fn before_events(waits: bool) -> bool {
    IS_LOOP.set(true);
    leave_all(waits)
}

fn leave_all(waits: bool) -> bool {
    let due = WAITING.try_with(|waiting| waiting.try_borrow_mut().map(|mut it| core::mem::take(&mut it.0)));
    let Ok(Ok(mut due)) = due else { return true };
    // A connection is put on the list again whenever its batch begins anew.
    due.sort_unstable();
    due.dedup();
    due.retain(|fd| !leave_at(*fd, !waits));
    let all_gone = due.is_empty();
    for fd in due {
        remember(fd);
    }
    all_gone
}

#[cfg(test)]
mod tests;
