//! Receiving: metadata is copied to the application as ever, payload goes from the socket into a pipe and a placeholder
//! into the application's buffer.
//!
//! A call returns less than was asked for only when the socket is empty: edge-triggered applications rely on it. Where more
//! is taken from the socket than the call asked for, see [`ahead`].

use std::sync::MutexGuard;

use libc::{c_int, iovec};
use syscalls::Errno;
use underdeck_protocols::{Place, UNTIL_CLOSE};
use underdeck_stats::{Gauge, Reason};

use crate::engine::Engine;
use crate::mark::{self, MARK};
use crate::socket::Socket;
use crate::{ahead, anchor, iov, sys};

/// Bytes that are read before payload that is likely to be large: a head, and little else.
const HEAD_WINDOW: usize = 1024;
/// The same when the head was longer than that.
const LONG_HEAD_WINDOW: usize = 4096;
/// The same where only the line between two chunks is expected.
const CHUNK_WINDOW: usize = 32;
/// A read that brings less than this is not worth a splice.
const TRICKLE: usize = 4096;
/// Slices of the application's memory that are too short to hold a mark and a little more are never anchored into.
const LEAST_SLICE: usize = 64;
/// Most that one splice asks for.
const SPLICE_MOST: usize = 1 << 24;

/// Flags that change nothing about what a read means.
const HARMLESS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;

/// One call of the application.
struct Call<'a> {
    iov: &'a [iovec],
    flags: c_int,
    size: usize,
    done: usize,
    /// Anchoring is over for this call.
    copy: Option<Reason>,
}

/// What one step of a call came to.
enum Step {
    /// All that the step asked for.
    Full,
    /// The socket has no more.
    Empty,
    /// End of the stream, when nothing was received before.
    End,
    Failed(Errno),
    /// The connection cannot go on without giving out something wrong.
    Doubt(&'static str),
}

/// Whether flags change nothing about what a read means.
pub(crate) fn is_usual(flags: c_int) -> bool {
    flags & !HARMLESS == 0
}

/// Receives into `iov` as the kernel would.
pub(crate) fn receive(engine: &Engine, socket: &mut Socket, iov: &[iovec], flags: c_int) -> sys::Result<usize> {
    if socket.rx_error != 0 {
        return Err(Errno::new(core::mem::take(&mut socket.rx_error).into()));
    }
    if !is_usual(flags) {
        return receive_unusual(engine, socket, iov, flags);
    }
    let mut call = Call { iov, flags, size: iov::total(iov), done: 0, copy: socket.copies };
    if call.size == 0 {
        return sys::receive(socket.fd, iov, flags);
    }
    while call.done < call.size {
        match step(engine, socket, &mut call) {
            Step::Full => {}
            Step::End if call.done == 0 => return end(socket),
            Step::Empty | Step::End => break,
            Step::Failed(error) if call.done == 0 => return Err(error),
            Step::Failed(Errno::EAGAIN) => break,
            Step::Doubt(why) => {
                crate::egress::doubt(engine, socket, why);
                return Err(Errno::ECONNRESET);
            }
            Step::Failed(error) => {
                socket.rx_error = Socket::due(error);
                break;
            }
        }
    }
    Ok(call.done)
}

/// The kernel says that the stream ends. It tells an error once, to whoever comes first: where that was the engine, because it
/// sent what it had accepted before, a reset would look like an orderly end.
pub(crate) fn end(socket: &mut Socket) -> sys::Result<usize> {
    // A broken pipe is for who sends: the peer had ended its stream before (`tcp_reset` of the kernel), and reading tells that.
    if socket.tx_error == 0 || socket.tx_error == Socket::due(Errno::EPIPE) {
        return Ok(0);
    }
    Err(Errno::new(core::mem::take(&mut socket.tx_error).into()))
}

fn step(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>) -> Step {
    let room = call.size - call.done;
    if socket.ahead > 0 {
        return give(engine, socket, call);
    }
    match socket.rx_place() {
        Place::Opaque(left) => match why_copy(engine, socket, call, left) {
            None if !socket.trickles => hold(engine, socket, call, left),
            None => {
                let step = copy(engine, socket, call, room.min(TRICKLE), Reason::ShortRead);
                socket.trickles = !matches!(step, Step::Full);
                step
            }
            Some(why) => copy(engine, socket, call, room, why),
        },
        Place::Metadata if !socket.expects_head && may_anchor(engine, socket, call) => {
            socket.expects_head = true;
            copy(engine, socket, call, room.min(CHUNK_WINDOW), Reason::HeadOfBody)
        }
        Place::Metadata if engine.routes.expects_large(socket.route) && may_anchor(engine, socket, call) => {
            let window = if call.done == 0 { HEAD_WINDOW } else { LONG_HEAD_WINDOW };
            copy(engine, socket, call, room.min(window), Reason::HeadOfBody)
        }
        Place::Metadata | Place::Passed => copy(engine, socket, call, room, call.copy.unwrap_or(Reason::HeadOfBody)),
    }
}

/// Whether payload behind the metadata that comes next may be anchored: then only the metadata is read.
fn may_anchor(engine: &Engine, socket: &Socket, call: &Call<'_>) -> bool {
    call.copy.is_none() && socket.is_trusted(engine) && !engine.routes.has_relapsed(socket.route)
}

/// Why the payload that comes next is to be copied; none if it is to be anchored.
fn why_copy(engine: &Engine, socket: &mut Socket, call: &Call<'_>, left: u64) -> Option<Reason> {
    if call.copy.is_some() {
        return call.copy;
    }
    if socket.copies_message() {
        return Some(Reason::RouteLearnt);
    }
    let run = (TRICKLE as u64).min(engine.config.min_body);
    if socket.anchor.is_some() && engine.routes.has_relapsed(socket.route) {
        socket.give_up_message(engine);
        return Some(Reason::RouteLearnt);
    }
    let begun = socket.anchor.is_some();
    if !begun && left < engine.config.min_body {
        return Some(Reason::BelowMinBody);
    }
    if left < run {
        return Some(Reason::ShortRead);
    }
    if !begun && is_small(engine, call) {
        return Some(Reason::SmallBuffer);
    }
    if !begun {
        return begin(engine, socket, left).err();
    }
    None
}

/// Whether a splice of so little as the application has room for costs more than a copy.
fn is_small(engine: &Engine, call: &Call<'_>) -> bool {
    ((call.size - call.done) as u64) < (TRICKLE as u64).min(engine.config.min_body)
}

/// A span begins that is worth anchoring: opens an anchor for it.
fn begin(engine: &Engine, socket: &mut Socket, left: u64) -> Result<(), Reason> {
    if !engine.is_on() {
        return Err(Reason::SwitchedOff);
    }
    if socket.may_leave_unseen() {
        return Err(Reason::ProtocolPass);
    }
    if !socket.is_trusted(engine) {
        return Err(Reason::RouteUnproven);
    }
    if engine.stats.level(Gauge::BytesHeld) >= engine.config.max_anchored_total {
        return Err(Reason::TotalLimit);
    }
    if !sys::is_nonblocking(socket.fd) {
        return Err(Reason::BlockingSocket);
    }
    socket.enter_span(engine, left);
    if socket.asks_route(engine) {
        return Err(Reason::RouteLearnt);
    }
    let is_endless = left == UNTIL_CLOSE;
    let anchor = anchor::open(engine, socket.role, socket.route, socket.message, is_endless);
    socket.anchor = Some(anchor.ok_or(Reason::NoPipe)?);
    socket.keep_message();
    // A tunnel may carry keystrokes.
    socket.trickles = is_endless;
    Ok(())
}

/// Copies up to `most` bytes to the application, as the kernel always did.
fn copy(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>, most: usize, why: Reason) -> Step {
    let part = iov::Part::new(call.iov, call.size, call.done, most);
    // After the first bytes the call must not wait for more, whatever the socket's mode is.
    let flags = if call.done == 0 { call.flags } else { call.flags | libc::MSG_DONTWAIT };
    match sys::receive(socket.fd, part.slices(), flags) {
        Ok(0) => Step::End,
        Ok(n) => {
            socket.received(engine, call.iov, call.done, n, why);
            call.done += n;
            if n == part.bytes() { Step::Full } else { Step::Empty }
        }
        Err(error) => Step::Failed(error),
    }
}

/// How much more may be held, and by which limit.
fn allowed(engine: &Engine, anchor: &anchor::Anchor) -> (u64, Reason) {
    let message = engine.config.max_anchored.saturating_sub(anchor.held());
    let process = engine.config.max_anchored_total.saturating_sub(engine.stats.level(Gauge::BytesHeld));
    if process < message { (process, Reason::TotalLimit) } else { (message, Reason::ConnectionLimit) }
}

/// Moves payload from the socket into the pipe and writes the placeholder.
fn hold(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>, left: u64) -> Step {
    let Some(mut anchor) = socket.anchor.and_then(anchor::lookup) else {
        call.copy = Some(Reason::Internal);
        return Step::Full;
    };
    let (allowed, limit) = allowed(engine, &anchor);
    let want = left.min((call.size - call.done) as u64).min(SPLICE_MOST as u64);
    if want > allowed {
        call.copy = Some(limit);
        return Step::Full;
    }
    let want = markable(call.iov, call.done, want as usize);
    if want == 0 {
        call.copy = Some(Reason::SmallBuffer);
        return Step::Full;
    }
    // Where the last read took all it asked for, there is more; elsewhere a few bytes would leave no room for a mark.
    if !socket.flows && sys::waiting(socket.fd).is_ok_and(|waiting| (1..LEAST_SLICE).contains(&waiting)) {
        call.copy = Some(Reason::ShortRead);
        return Step::Full;
    }
    let more = ahead::room(engine, socket, want, left.min(allowed));
    if more == 0 && is_small(engine, call) {
        call.copy = Some(Reason::SmallBuffer);
        return Step::Full;
    }
    let (mut got, mut unplaced) = (0, 0);
    let step = loop {
        match anchor.receive(socket.fd, want - got + more) {
            Ok(0) => break if got == 0 { Step::End } else { Step::Empty },
            Ok(n) => {
                socket.ahead = n.saturating_sub(want - got) as u32;
                let n = n.min(want - got);
                let placed = place(engine, &mut anchor, call, n, got > 0);
                got += placed;
                unplaced = n - placed;
                if unplaced > 0 {
                    break take_back(engine, &mut anchor, call, unplaced);
                }
                if got == want {
                    break Step::Full;
                }
                if sys::waiting(socket.fd) == Ok(0) {
                    break Step::Empty;
                }
            }
            // The socket is empty, or the pipe is full: the kernel says the same for both.
            Err(Errno::EAGAIN) if sys::waiting(socket.fd) == Ok(0) => {
                if got > 0 {
                    break Step::Empty;
                }
                if !anchor.may_be_full() {
                    break Step::Failed(Errno::EAGAIN);
                }
                // A full pipe hides the end of the stream: a plain read tells.
                call.copy = Some(Reason::PipeFull);
                break Step::Full;
            }
            Err(Errno::EAGAIN) if anchor.grow(engine) => {}
            Err(Errno::EAGAIN) => {
                call.copy = Some(Reason::PipeFull);
                break Step::Full;
            }
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => {
                socket.copies = Some(Reason::Internal);
                call.copy = socket.copies;
                break Step::Full;
            }
            Err(error) => break Step::Failed(error),
        }
    };
    drop(anchor);
    socket.flows = got == want;
    if got > 0 {
        socket.trickles = got < want && got < TRICKLE.min(engine.config.min_body as usize);
        socket.anchored(engine, got);
    }
    if unplaced > 0 && matches!(step, Step::Full) {
        socket.received(engine, call.iov, call.done, unplaced, Reason::ShortRead);
        call.done += unplaced;
    }
    step
}

/// Gives bytes that were read ahead to the application.
fn give(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>) -> Step {
    let Some(mut anchor) = socket.anchor.and_then(anchor::lookup) else { return Step::Doubt(AHEAD_IS_GONE) };
    let most = (socket.ahead as usize).min(call.size - call.done);
    // On a connection that was given up meanwhile nobody could tell placeholders from payload.
    let by_copy = socket.rx.place() == Place::Passed || !anchor.unread().is_empty();
    let markable = if by_copy { 0 } else { markable(call.iov, call.done, most) };
    if markable > 0 {
        let n = place(engine, &mut anchor, call, markable, false);
        drop(anchor);
        socket.ahead -= n as u32;
        socket.anchored(engine, n);
        return Step::Full;
    }
    let n = if anchor.unread().is_empty() {
        let n = most.min(LEAST_SLICE);
        match take_back(engine, &mut anchor, call, n) {
            Step::Full => n,
            other => return other,
        }
    } else {
        give_unread(&mut anchor, call.iov, call.done, true)
    };
    drop(anchor);
    socket.ahead -= n as u32;
    socket.received(engine, call.iov, call.done, n, Reason::SmallBuffer);
    call.done += n;
    Step::Full
}

const AHEAD_IS_GONE: &str = "payload that was read ahead is gone";

/// Copies what was taken out of the pipe into `iov`, from byte `from` on, and returns how much of it.
fn give_unread(anchor: &mut anchor::Anchor, iov: &[iovec], from: usize, for_good: bool) -> usize {
    let bytes = anchor.unread();
    let most = bytes.len().min(iov::total(iov) - from);
    let mut done = 0;
    for (address, n) in iov::pieces(iov, from, most) {
        // SAFETY: the application's buffer, given to be written.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr().add(done), address, n) };
        done += n;
    }
    if for_good {
        bytes.drain(..done);
    }
    done
}

/// What was read ahead, in memory: the application asks for it in a way that a pipe cannot answer.
fn settled(engine: &Engine, socket: &mut Socket) -> sys::Result<MutexGuard<'static, anchor::Anchor>> {
    let settled = socket.anchor.and_then(anchor::lookup).and_then(|mut anchor| {
        anchor.settle(engine, socket.ahead as usize).ok()?;
        Some(anchor)
    });
    settled.ok_or_else(|| {
        crate::egress::doubt(engine, socket, AHEAD_IS_GONE);
        Errno::ECONNRESET
    })
}

/// Answers a call that is not answered with placeholders from bytes that were read ahead; none if there are none.
pub(crate) fn unread(engine: &Engine, socket: &mut Socket, iov: &[iovec], flags: c_int) -> Option<sys::Result<usize>> {
    // Urgent data and errors go by beside the stream.
    if socket.ahead == 0 || flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return None;
    }
    let mut anchor = match settled(engine, socket) {
        Ok(anchor) => anchor,
        Err(error) => return Some(Err(error)),
    };
    let peeks = flags & libc::MSG_PEEK != 0;
    if flags & libc::MSG_TRUNC != 0 && !peeks {
        let n = iov::total(iov).min(socket.ahead as usize);
        anchor.unread().drain(..n);
        drop(anchor);
        socket.ahead -= n as u32;
        socket.skipped_rx(engine, n);
        return Some(Ok(n));
    }
    let n = give_unread(&mut anchor, iov, 0, !peeks);
    drop(anchor);
    if !peeks {
        socket.ahead -= n as u32;
        socket.received(engine, iov, 0, n, Reason::CallFlags);
    }
    Some(Ok(n))
}

/// Moves bytes that were read ahead to a pipe of the application, which splices from the connection. `waits`: it may.
pub(crate) fn move_ahead(
    engine: &Engine,
    socket: &mut Socket,
    to: c_int,
    most: usize,
    waits: bool,
) -> sys::Result<usize> {
    // The application's pipe need not be non-blocking itself: so many bytes fit wherever there is room at all (pipe(7)).
    const ATOMIC: usize = libc::PIPE_BUF;
    if !waits && !sys::has_room(to) {
        return Err(Errno::EAGAIN);
    }
    let mut anchor = settled(engine, socket)?;
    let bytes = anchor.unread();
    let n = sys::write(to, &bytes[..bytes.len().min(most).min(ATOMIC)])?;
    bytes.drain(..n);
    drop(anchor);
    socket.ahead -= n as u32;
    socket.skipped_rx(engine, n);
    Ok(n)
}

/// So few bytes came that they have no room for a mark: they are copied out of the pipe again, past whatever is in it.
fn take_back(engine: &Engine, anchor: &mut anchor::Anchor, call: &Call<'_>, len: usize) -> Step {
    let mut bytes = [0; LEAST_SLICE];
    if anchor.take_back(engine, &mut bytes[..len]).is_err() {
        return Step::Doubt("a few bytes could not be taken out of the pipe again");
    }
    let mut from = 0;
    for (address, n) in iov::pieces(call.iov, call.done, len) {
        // SAFETY: the application's buffer, given to be written.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr().add(from), address, n) };
        from += n;
    }
    Step::Full
}

/// How many of the next `want` bytes lie in slices that can hold marks.
fn markable(iov: &[iovec], from: usize, want: usize) -> usize {
    let mut sum = 0;
    for (_, len) in iov::pieces(iov, from, want) {
        if len < LEAST_SLICE {
            break;
        }
        sum += len;
    }
    sum
}

/// Writes the placeholder for the `len` bytes that have just been received, and returns for how many of them there was
/// room: every segment begins with a whole mark. `joined`: the bytes before are the last segment, so far.
fn place(engine: &Engine, anchor: &mut anchor::Anchor, call: &mut Call<'_>, len: usize, joined: bool) -> usize {
    let mut placed = 0;
    for (address, bytes) in iov::pieces(call.iov, call.done, len) {
        let segment = if joined && placed == 0 && !iov::begins_slice(call.iov, call.done) {
            anchor.extend_segment(bytes as u32, engine.stats)
        } else if bytes >= MARK {
            anchor.add_segment(bytes as u32, engine.stats)
        } else {
            break;
        };
        let (from, until) = ((segment.len as usize) - bytes, segment.len as usize);
        // A mark that had no room at the end of what came before has now.
        for at in mark::positions(from.saturating_sub(MARK - 1), until) {
            let mark = engine.magic.encode(anchor.vpi, segment.start + at as u64, &anchor.secret);
            // SAFETY: `positions` keeps whole marks within the slice, which the application gave us to be written; what
            // stands before `address` is the beginning of the same segment.
            unsafe { core::ptr::copy_nonoverlapping(mark.as_ptr(), address.sub(from).add(at), MARK) };
        }
        placed += bytes;
    }
    call.done += placed;
    placed
}

/// Reads with flags that only a copy can honour.
fn receive_unusual(engine: &Engine, socket: &mut Socket, iov: &[iovec], flags: c_int) -> sys::Result<usize> {
    let Some(first) = unread(engine, socket, iov, flags) else {
        return receive_from_kernel(engine, socket, iov, flags);
    };
    let (first, size) = (first?, iov::total(iov));
    if first == size {
        return Ok(first);
    }
    // Less than was asked for means that there is no more.
    let rest = iov::Part::new(iov, size, first, size - first);
    match receive_from_kernel(engine, socket, rest.slices(), flags | libc::MSG_DONTWAIT) {
        Ok(n) => Ok(first + n),
        Err(error) => {
            let is_empty = error == Errno::EAGAIN;
            socket.rx_error = if is_empty { socket.rx_error } else { Socket::due(error) };
            Ok(first)
        }
    }
}

fn receive_from_kernel(engine: &Engine, socket: &mut Socket, iov: &[iovec], flags: c_int) -> sys::Result<usize> {
    let n = sys::receive(socket.fd, iov, flags)?;
    if n == 0 && iov::total(iov) > 0 && flags & libc::MSG_ERRQUEUE == 0 {
        return end(socket);
    }
    if flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) != 0 {
        return Ok(n);
    }
    if flags & libc::MSG_OOB != 0 {
        socket.pass();
    } else if flags & libc::MSG_TRUNC != 0 {
        // TCP throws the bytes away instead of copying them (tcp(7)).
        socket.skipped_rx(engine, n);
    } else {
        socket.received(engine, iov, 0, n, Reason::CallFlags);
    }
    Ok(n)
}
