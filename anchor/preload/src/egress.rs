//! Sending: metadata is copied as ever; where a placeholder stands in the application's bytes, the payload it stands for
//! is moved from its pipe into the socket.
//!
//! Three things must agree before a byte leaves a pipe: the mark (this process wrote it, for exactly this offset), the
//! order (it is the next byte of that segment) and, where the stream is understood, the protocol program (payload is
//! due here, and so much of it). When they do not, nothing that is right can be sent any more: the connection is reset.

use std::sync::MutexGuard;

use libc::{c_int, iovec};
use syscalls::Errno;
use underdeck_protocols::Place;
use underdeck_stats::Reason;

use crate::anchor::{self, Anchor, Refusal, Segment, UNMARKED_MOST};
use crate::engine::Engine;
use crate::mark::{self, MAGIC, MARK, Mark, Sighting};
use crate::socket::{Link, Owed, Socket};
use crate::{iov, sys};

/// One call of the application.
struct Call<'a> {
    iov: &'a [iovec],
    flags: c_int,
    size: usize,
    done: usize,
}

/// Why a step went no further.
enum Stop {
    Kernel(Errno),
    /// A placeholder that cannot be resolved.
    Doubt,
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

/// Sends `iov` as the kernel would.
pub(crate) fn transmit(engine: &Engine, socket: &mut Socket, iov: &[iovec], flags: c_int) -> sys::Result<usize> {
    if socket.tx_error != 0 {
        return Err(Errno::new(core::mem::take(&mut socket.tx_error)));
    }
    socket.expects_head = true;
    if !anchor::any_open() && socket.link.is_none() && socket.owed.is_none() {
        let n = sys::send(socket.fd, iov, flags)?;
        socket.sent(engine, iov, 0, n);
        return Ok(n);
    }
    let mut call = Call { iov, flags, size: iov::total(iov), done: 0 };
    if call.size == 0 {
        return sys::send(socket.fd, iov, flags);
    }
    while call.done < call.size {
        match step(engine, socket, &mut call) {
            Ok(()) => {}
            Err(Stop::Kernel(error)) if call.done == 0 => return Err(error),
            Err(Stop::Kernel(Errno::EAGAIN)) => break,
            Err(Stop::Kernel(error)) => {
                socket.tx_error = error.into_raw();
                break;
            }
            Err(Stop::Doubt) => {
                doubt(engine, socket);
                return Err(Errno::ECONNRESET);
            }
        }
    }
    Ok(call.done)
}

/// Sends what is held back although the application believes it sent; before the sending side is closed.
pub(crate) fn flush(engine: &Engine, socket: &mut Socket) {
    if let Some(owed) = socket.owed.take() {
        let bytes = &owed.bytes[..usize::from(owed.len)];
        let _ = sys::send_bytes(socket.fd, bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
    if let Some(link) = socket.link
        && link.claimed > 0
        && let Some(mut anchor) = anchor::lookup(link.vpi)
    {
        let _ = anchor.forward(engine, link.offset, link.claimed.into(), socket.fd, false, libc::MSG_NOSIGNAL);
    }
}

/// The connection cannot go on without sending something wrong.
pub(crate) fn doubt(engine: &Engine, socket: &mut Socket) {
    engine.stats.reset();
    sys::reset(socket.fd);
    socket.pass();
}

fn step(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>) -> Result<(), Stop> {
    if socket.owed.is_some() {
        return settle_owed(engine, socket, call);
    }
    let Some(link) = socket.link.filter(|link| link.left > 0) else { return search(engine, socket, call) };
    let anchor = anchor::lookup(link.vpi);
    let segment = anchor.as_ref().and_then(|anchor| anchor.segment_at(link.offset));
    match (anchor, segment) {
        (Some(anchor), Some(segment)) if segment.next() == link.offset => {
            follow(engine, socket, call, link, anchor, segment)
        }
        (anchor, _) => {
            // What the link waited for was put back into the application's buffer in the meantime.
            drop(anchor);
            socket.unlink(engine);
            Ok(())
        }
    }
}

/// Looks for the next placeholder; sends what stands before it.
fn search(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>) -> Result<(), Stop> {
    let (plain, sighting, at) = first_sighting(engine, call);
    match sighting {
        Sighting::Nothing => send_plain(engine, socket, call, plain, false),
        Sighting::Begun(_) if plain > 0 => send_plain(engine, socket, call, plain, true),
        Sighting::Begun(_) => begun(engine, socket, call),
        Sighting::Mark(_, mark) => {
            let (anchor, segment, offset) = genuine(&mark)?;
            let gap = offset.checked_sub(segment.next()).ok_or(Stop::Doubt)?;
            // The mark may not be the first of its piece: the bytes before it are the next ones in turn.
            let gap = usize::try_from(gap).map_err(|_| Stop::Doubt)?;
            if gap as u64 >= UNMARKED_MOST || gap > at {
                return Err(Stop::Doubt);
            }
            if plain > gap {
                drop(anchor);
                return send_plain(engine, socket, call, plain - gap, true);
            }
            start(engine, socket, anchor, segment);
            Ok(())
        }
    }
}

/// The bytes before the first sighting, the sighting, and how many of the bytes before it are in the same slice.
fn first_sighting(engine: &Engine, call: &Call<'_>) -> (usize, Sighting, usize) {
    let mut before = 0;
    for (address, len) in iov::pieces(call.iov, call.done, call.size - call.done) {
        // SAFETY: the application handed these bytes in to be read.
        let bytes = unsafe { core::slice::from_raw_parts(address, len) };
        let last = call.done + before + len == call.size;
        match engine.magic.find(bytes) {
            Sighting::Nothing => {}
            // Only the end of the whole call can be the beginning of a mark that goes on in the next; less than the
            // magic in the middle is a coincidence.
            Sighting::Begun(at) if !last && len - at < MAGIC => {}
            sighting @ (Sighting::Begun(at) | Sighting::Mark(at, _)) => return (before + at, sighting, at),
        }
        before += len;
    }
    (before, Sighting::Nothing, 0)
}

fn genuine(mark: &Mark) -> Result<(MutexGuard<'static, Anchor>, Segment, u64), Stop> {
    let anchor = anchor::lookup(mark.vpi).ok_or(Stop::Doubt)?;
    let (segment, offset) = anchor.verify(mark).ok_or(Stop::Doubt)?;
    Ok((anchor, segment, offset))
}

/// The next byte is the first of `segment` that has not left yet.
fn start(engine: &Engine, socket: &mut Socket, mut anchor: MutexGuard<'static, Anchor>, segment: Segment) {
    let (offset, left) = (segment.next(), segment.left());
    if let Some(link) = &mut socket.link
        && link.vpi == anchor.vpi
    {
        (link.offset, link.left, link.claimed) = (offset, left, 0);
        return;
    }
    anchor.link();
    let vpi = anchor.vpi;
    drop(anchor);
    socket.unlink(engine);
    let by_copy = !sys::is_nonblocking(socket.fd) || !sys::sigpipe_is_ignored();
    socket.link = Some(Link { vpi, offset, left, claimed: 0, by_copy });
}

/// Sends `len` bytes as they are.
fn send_plain(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>, len: usize, more: bool) -> Result<(), Stop> {
    let part = iov::Part::new(call.iov, call.size, call.done, len);
    let flags = call.flags | if more || part.bytes() < len { libc::MSG_MORE } else { 0 };
    let n = sys::send(socket.fd, part.slices(), flags)?;
    socket.sent(engine, call.iov, call.done, n);
    call.done += n;
    Ok(())
}

/// The application's bytes end with what may be the first bytes of a mark.
///
/// They are held back, and the application is told that they were sent, if the protocol promises that more payload
/// follows: then the next call decides. A segment is never shorter than a mark, so that where less payload is due, or
/// none, they are no mark.
fn begun(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>) -> Result<(), Stop> {
    let len = call.size - call.done;
    let more_follows = matches!(socket.tx_place(engine), Place::Opaque(left) if left >= MARK as u64);
    if len >= MARK || (!more_follows && len < MAGIC) {
        return send_plain(engine, socket, call, len, false);
    }
    let mut owed = Owed { bytes: [0; MARK], len: len as u8 };
    copy_bytes(call, len, &mut owed.bytes);
    socket.owed = Some(Box::new(owed));
    call.done += len;
    Ok(())
}

/// Decides what the bytes held back were, by the bytes that follow them.
fn settle_owed(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>) -> Result<(), Stop> {
    let Some(mut owed) = socket.owed.take() else { return Ok(()) };
    let have = usize::from(owed.len);
    let take = (MARK - have).min(call.size - call.done);
    copy_bytes(call, take, &mut owed.bytes[have..]);
    let known = have + take;
    if engine.magic.could_begin(&owed.bytes[..known]) {
        if known < MARK {
            owed.len = known as u8;
            socket.owed = Some(owed);
            call.done += take;
            return Ok(());
        }
        let (anchor, segment, offset) = genuine(&Mark::decode(&owed.bytes))?;
        if offset != segment.next() {
            return Err(Stop::Doubt);
        }
        start(engine, socket, anchor, segment);
        if let Some(link) = &mut socket.link {
            link.claimed = have as u8;
        }
        return Ok(());
    }
    match sys::send_bytes(socket.fd, &owed.bytes[..have], call.flags | libc::MSG_MORE) {
        Ok(n) => {
            socket.sent_bytes(engine, &owed.bytes[..n]);
            if n < have {
                owed.bytes.copy_within(n..have, 0);
                owed.len = (have - n) as u8;
                socket.owed = Some(owed);
            }
            Ok(())
        }
        Err(error) => {
            socket.owed = Some(owed);
            Err(error.into())
        }
    }
}

fn copy_bytes(call: &Call<'_>, len: usize, to: &mut [u8]) {
    let mut at = 0;
    for (address, bytes) in iov::pieces(call.iov, call.done, len) {
        // SAFETY: the application handed these bytes in to be read; `to` has room for `len`.
        let from = unsafe { core::slice::from_raw_parts(address, bytes) };
        to[at..at + bytes].copy_from_slice(from);
        at += bytes;
    }
}

/// Sends the next piece of the segment that the socket is in the middle of.
fn follow(
    engine: &Engine,
    socket: &mut Socket,
    call: &mut Call<'_>,
    link: Link,
    mut anchor: MutexGuard<'static, Anchor>,
    segment: Segment,
) -> Result<(), Stop> {
    let rest = call.size - call.done;
    let due = match socket.tx_place(engine) {
        Place::Passed => usize::MAX,
        Place::Opaque(left) => usize::try_from(left).unwrap_or(usize::MAX),
        Place::Metadata => {
            // The application framed the payload anew: a line between two chunks, or the end of the message.
            drop(anchor);
            let metadata = socket.metadata_ahead(engine, call.iov, call.done, rest);
            return if metadata == 0 {
                Err(Stop::Doubt)
            } else {
                send_plain(engine, socket, call, metadata, metadata < rest)
            };
        }
    };
    let claimed = usize::from(link.claimed);
    let piece = (link.left as usize - claimed).min(rest).min(due.saturating_sub(claimed));
    verify(engine, &anchor, segment, link.offset + claimed as u64, call, piece)?;
    if link.by_copy {
        return put_back(engine, socket, call, link, anchor, piece);
    }
    let more = piece < rest;
    match anchor.forward(engine, link.offset, claimed + piece, socket.fd, more, call.flags) {
        Ok(0) => Err(Stop::Kernel(Errno::EAGAIN)),
        Ok(n) => {
            drop(anchor);
            socket.skipped_tx(engine, n);
            let unclaimed = n.min(claimed);
            call.done += n - unclaimed;
            advance(engine, socket, n, unclaimed);
            Ok(())
        }
        Err(Refusal::Kernel(error)) => Err(error.into()),
        Err(Refusal::Unspliceable) => put_back(engine, socket, call, link, anchor, piece),
        Err(Refusal::Gone) => Err(Stop::Doubt),
    }
}

/// Moves the link on by `n` bytes; ends it with its anchor, or carries it over into a segment too short for a mark.
fn advance(engine: &Engine, socket: &mut Socket, n: usize, unclaimed: usize) {
    let Some(link) = &mut socket.link else { return };
    link.offset += n as u64;
    link.left -= n as u32;
    link.claimed -= unclaimed as u8;
    if link.left > 0 {
        return;
    }
    let next = anchor::lookup(link.vpi).and_then(|anchor| anchor.segment_at(link.offset));
    match next {
        Some(segment) if (segment.len as usize) < MARK => link.left = segment.left(),
        // The next segment has a mark of its own; the link stays, so that the anchor knows that somebody sends it.
        Some(_) => {}
        None if anchor::has_more(link.vpi) => {}
        None => socket.unlink(engine),
    }
}

/// Checks every mark that must stand in the next `len` bytes of the call, the first of which is `offset`.
fn verify(
    engine: &Engine,
    anchor: &Anchor,
    segment: Segment,
    offset: u64,
    call: &Call<'_>,
    len: usize,
) -> Result<(), Stop> {
    let mut from = (offset - segment.start) as usize;
    for (address, bytes) in iov::pieces(call.iov, call.done, len) {
        for at in mark::positions(from, (from + bytes).min(segment.len as usize)) {
            // SAFETY: `positions` keeps whole marks within the slice.
            let found = unsafe { core::slice::from_raw_parts(address.add(at - from), MARK) };
            if found != engine.magic.encode(anchor.vpi, segment.start + at as u64, &anchor.secret) {
                return Err(Stop::Doubt);
            }
        }
        from += bytes;
    }
    Ok(())
}

/// Puts the payload back into the application's buffer and lets it be sent from there: the socket takes no splices.
fn put_back(
    engine: &Engine,
    socket: &mut Socket,
    call: &mut Call<'_>,
    link: Link,
    mut anchor: MutexGuard<'static, Anchor>,
    piece: usize,
) -> Result<(), Stop> {
    if link.claimed > 0 {
        return Err(Stop::Doubt);
    }
    let mut offset = link.offset;
    for (address, bytes) in iov::pieces(call.iov, call.done, piece) {
        // SAFETY: the bytes of a placeholder are the application's receive buffer, writable, of which nobody knows what
        // it holds but us.
        let done = unsafe { anchor.materialise(engine, offset, address, bytes, Reason::ExitUnspliceable) };
        done.map_err(|_| Stop::Doubt)?;
        offset += bytes as u64;
    }
    drop(anchor);
    advance(engine, socket, piece, 0);
    let link_after = socket.link.take();
    let sent = send_plain(engine, socket, call, piece, false);
    socket.link = link_after;
    sent
}
