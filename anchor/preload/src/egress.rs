//! Sending: metadata is copied as ever; where a placeholder stands in the application's bytes, the payload it stands for
//! is moved from its pipe into the socket.
//!
//! Three things must agree before a byte leaves a pipe: the mark (this process wrote it, for exactly this offset), the
//! order (it is the next byte of that segment) and, where the stream is understood, the protocol program (payload is
//! due here, and so much of it). When they do not, nothing that is right can be sent any more: the connection is reset.

use std::sync::MutexGuard;

use libc::{c_int, iovec};
use syscalls::Errno;
use underdeck_protocols::{Place, UNTIL_CLOSE};
use underdeck_stats::{Reason, Role};

use crate::anchor::{self, Anchor, Refusal, Segment, UNMARKED_MOST};
use crate::batch::{self, Then};
use crate::engine::Engine;
use crate::mark::{self, MAGIC, MARK, Mark, Sighting};
use crate::messages::SENT;
use crate::socket::{Link, Owed, Socket};
use crate::{iov, sys};

/// How many bytes of a call are searched for placeholders at once.
const LOOK_MOST: usize = 512 << 10;

/// One call of the application.
struct Call<'a> {
    iov: &'a [iovec],
    flags: c_int,
    size: usize,
    done: usize,
    /// Nothing is sent: placeholders are put back, and somebody else sends the bytes (a TLS library).
    only_put_back: bool,
}

/// Why a step went no further.
enum Stop {
    Kernel(Errno),
    /// A placeholder that cannot be resolved, and why.
    Doubt(&'static str),
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

/// Sends `iov` as the kernel would.
pub(crate) fn transmit(engine: &Engine, socket: &mut Socket, iov: &[iovec], flags: c_int) -> sys::Result<usize> {
    if socket.tx_error != 0 {
        return Err(Errno::new(core::mem::take(&mut socket.tx_error).into()));
    }
    socket.expects_head = true;
    if completes_a_mark(engine, socket, iov, 0) {
        doubt(engine, socket, COMPLETED);
        return Err(Errno::ECONNRESET);
    }
    let result = transmit_some(engine, socket, iov, flags);
    socket.note_full(match result {
        Ok(n) => n < iov::total(iov),
        Err(error) => error == Errno::EAGAIN,
    });
    result
}

fn transmit_some(engine: &Engine, socket: &mut Socket, iov: &[iovec], flags: c_int) -> sys::Result<usize> {
    if !anchor::any_open() && socket.link.is_none() && socket.owed.is_none() {
        let n = sys::send(socket.fd, iov, flags)?;
        socket.sent(engine, iov, 0, n);
        return Ok(n);
    }
    match socket.owed.take() {
        None => send_all(engine, socket, iov, flags),
        Some(owed) => send_after(engine, socket, owed, iov, flags),
    }
}

const COMPLETED: &str = "a placeholder whose payload is gone";

/// Whether the bytes that were let out were the beginning of a mark after all: `iov` has the rest of its magic, from byte `from` on.
#[inline]
fn completes_a_mark(engine: &Engine, socket: &mut Socket, iov: &[iovec], from: usize) -> bool {
    socket.let_out > 0 && goes_on(engine, socket, iov, from)
}

#[cold]
fn goes_on(engine: &Engine, socket: &mut Socket, iov: &[iovec], from: usize) -> bool {
    let out = usize::from(core::mem::take(&mut socket.let_out));
    let mut bytes = [0; MAGIC];
    let (known, _) = socket.payload_ahead(engine, iov, from, iov::total(iov) - from, &mut bytes[out..], true);
    if !engine.magic.goes_on(out, &bytes[out..out + known]) {
        return false;
    }
    socket.let_out = (out + known) as u8;
    out + known == MAGIC
}

/// The application is about to wait: what is held back on its account leaves if no mark can begin there. False: one still can.
pub(crate) fn let_out(engine: &Engine, socket: &mut Socket) -> bool {
    let Some(mut owed) = socket.owed.take() else { return true };
    let (known, may_be) = suspicion(engine, socket, &mut owed);
    if may_be {
        socket.owed = Some(owed);
        return known == MAGIC;
    }
    let sent = match sys::send_bytes(socket.fd, &owed.bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
        Err(Errno::EAGAIN) => 0,
        Err(error) => {
            socket.tx_error = Socket::due(error);
            return true;
        }
        Ok(sent) => sent,
    };
    socket.sent_bytes(engine, &owed.bytes[..sent]);
    if sent == owed.bytes.len() {
        socket.let_out = known as u8;
        return true;
    }
    owed.bytes.drain(..sent);
    socket.owed = Some(owed);
    false
}

/// How many of the first bytes of a mark stand in what is held back, and whether they may be those of one.
fn suspicion(engine: &Engine, socket: &mut Socket, owed: &mut Owed) -> (usize, bool) {
    let (mut bytes, iov) =
        ([0; MAGIC], [iovec { iov_base: owed.bytes.as_mut_ptr().cast(), iov_len: owed.bytes.len() }]);
    let (known, _) = socket.payload_ahead(engine, &iov, 0, owed.bytes.len(), &mut bytes, false);
    (known, known == MAGIC || may_begin(engine, socket, owed.before))
}

/// What is held back, when nothing follows it any more: not what is a mark, nor what may be one where the program gives the
/// message up.
pub(crate) fn last_owed(engine: &Engine, socket: &mut Socket) -> Option<Vec<u8>> {
    let mut owed = socket.owed.take()?;
    let (known, may_be) = suspicion(engine, socket, &mut owed);
    let has_end = socket.tx_place(engine) != Place::Opaque(UNTIL_CLOSE);
    let is_missed = known == MAGIC || has_end || socket.link.is_some_and(|link| anchor::is_unsent(link.message));
    (!may_be || !is_missed).then_some(owed.bytes)
}

/// Sends `iov` after bytes that the application believes to have sent already.
fn send_after(
    engine: &Engine,
    socket: &mut Socket,
    mut owed: Box<Owed>,
    iov: &[iovec],
    flags: c_int,
) -> sys::Result<usize> {
    let mut all = Vec::with_capacity(iov.len() + 1);
    all.push(iovec { iov_base: owed.bytes.as_mut_ptr().cast(), iov_len: owed.bytes.len() });
    all.extend_from_slice(iov);
    let sent = match send_all(engine, socket, &all, flags) {
        Ok(sent) => sent,
        Err(error) => {
            socket.owed = Some(owed);
            return Err(error);
        }
    };
    let held = owed.bytes.len();
    if sent >= held {
        return if sent > held || iov::total(iov) == 0 { Ok(sent - held) } else { Err(Errno::EAGAIN) };
    }
    owed.bytes.drain(..sent);
    socket.owed = Some(owed);
    Err(Errno::EAGAIN)
}

fn send_all(engine: &Engine, socket: &mut Socket, iov: &[iovec], flags: c_int) -> sys::Result<usize> {
    let mut call = Call { iov, flags, size: iov::total(iov), done: 0, only_put_back: false };
    if call.size == 0 {
        return sys::send(socket.fd, iov, flags);
    }
    while call.done < call.size {
        match step(engine, socket, &mut call) {
            Ok(()) => {}
            Err(Stop::Kernel(error)) if call.done == 0 => {
                batch::told(socket);
                return Err(error);
            }
            Err(Stop::Kernel(Errno::EAGAIN)) => {
                batch::told(socket);
                break;
            }
            Err(Stop::Kernel(error)) => {
                socket.tx_error = Socket::due(error);
                break;
            }
            Err(Stop::Doubt(why)) => {
                doubt(engine, socket, why);
                return Err(Errno::ECONNRESET);
            }
        }
    }
    Ok(call.done)
}

/// Puts the payload back into `iov`, from byte `from` on, for somebody who sends it by other means. Returns how many bytes
/// may be sent; the rest may be the beginning of a mark. The socket stands where it stood before.
pub(crate) fn put_back_all(
    engine: &Engine,
    socket: &mut Socket,
    iov: &[iovec],
    from: usize,
) -> Result<usize, &'static str> {
    let before = socket.tx_position();
    socket.sent(engine, iov, 0, from);
    let mut call = Call { iov, flags: 0, size: iov::total(iov), done: from, only_put_back: true };
    let mut result = if completes_a_mark(engine, socket, iov, from) { Err(Stop::Doubt(COMPLETED)) } else { Ok(()) };
    while call.done < call.size && result.is_ok() {
        result = step(engine, socket, &mut call);
    }
    socket.set_tx_position(before);
    let held = socket.owed.take().map_or(0, |owed| owed.bytes.len());
    match result {
        Ok(()) => Ok(call.size - held),
        Err(Stop::Doubt(why)) => Err(why),
        Err(Stop::Kernel(_)) => Err("the pipe cannot be read"),
    }
}

/// Sends what is held back, because bytes follow that are no placeholder: the application moves them itself.
pub(crate) fn send_owed(engine: &Engine, socket: &mut Socket) -> sys::Result<usize> {
    if let Err(stop) = leave(engine, socket) {
        return Err(match stop {
            Stop::Kernel(error) => error,
            Stop::Doubt(why) => {
                doubt(engine, socket, why);
                Errno::ECONNRESET
            }
        });
    }
    while let Some(mut owed) = socket.owed.take() {
        let sent = sys::send_bytes(socket.fd, &owed.bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE);
        let n = *sent.as_ref().unwrap_or(&0);
        socket.sent_bytes(engine, &owed.bytes[..n]);
        if n < owed.bytes.len() {
            owed.bytes.drain(..n);
            socket.owed = Some(owed);
        }
        sent?;
    }
    Ok(0)
}

/// Sends what is held back although the application believes it sent. `ends`: nothing follows it.
pub(crate) fn flush(engine: &Engine, socket: &mut Socket, ends: bool) {
    match leave(engine, socket) {
        Ok(()) => {}
        // The connection is broken already: what was accepted is lost, as it would be in the kernel's own queue.
        Err(Stop::Kernel(error)) if error != Errno::EAGAIN => {
            socket.batch = None;
            socket.tx_error = Socket::due(error);
        }
        Err(_) => return doubt(engine, socket, "payload that was accepted cannot be sent"),
    }
    let owed = if ends { last_owed(engine, socket) } else { socket.owed.take().map(|owed| owed.bytes) };
    if let Some(owed) = owed {
        let _ = sys::send_bytes(socket.fd, &owed, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}

/// The connection cannot go on without sending something wrong.
pub(crate) fn doubt(engine: &Engine, socket: &mut Socket, why: &'static str) {
    engine.stats.reset();
    eprintln!("underdeck: connection of descriptor {} reset: {why}", socket.fd);
    socket.batch = None;
    sys::reset(socket.fd);
    socket.pass();
}

fn step(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>) -> Result<(), Stop> {
    let Some(link) = socket.link.filter(|link| link.left > 0) else { return search(engine, socket, call) };
    if socket.batch.as_ref().is_some_and(|batch| batch.vpi != link.vpi) {
        leave(engine, socket)?;
    }
    let anchor = anchor::lookup(link.vpi);
    let segment = anchor.as_ref().and_then(|anchor| anchor.segment_at(link.offset));
    match (anchor, segment) {
        (Some(anchor), Some(segment)) if socket.next_of(link.vpi, segment) == link.offset => {
            follow(engine, socket, call, link, anchor, segment)
        }
        (anchor, _) => {
            // What the link waited for was put back into the application's buffer in the meantime.
            drop(anchor);
            if let Some(link) = &mut socket.link {
                link.left = 0;
            }
            Ok(())
        }
    }
}

/// Looks for the next placeholder; sends what stands before it.
fn search(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>) -> Result<(), Stop> {
    let (mut plain, mut sighting, at) = first_sighting(engine, call);
    if let Some(cut) = socket.cut_mark_ahead(engine, call.iov, call.done, plain) {
        (plain, sighting) = (cut, Sighting::Begun(0));
    }
    // A mark that does not verify may be one that the application cut: what follows its beginning is something else.
    if let Sighting::Mark(_, mark) = sighting
        && let Ok((anchor, segment, offset)) = genuine(&mark)
    {
        let gap = gap_before(socket.next_of(anchor.vpi, segment), offset, at)?;
        if plain > gap {
            drop(anchor);
            return send_plain(engine, socket, call, plain - gap, true);
        }
        if socket.tx_place(engine) == Place::Metadata {
            return Err(Stop::Doubt("a placeholder where metadata is due"));
        }
        start(socket, anchor, segment);
        return Ok(());
    }
    if plain > 0 {
        return send_plain(engine, socket, call, plain, plain < call.size - call.done);
    }
    resolve(engine, socket, call)
}

/// How many bytes before a mark belong to its segment: the mark may not be the first of its piece, and then the bytes
/// before it must be the next ones in turn.
fn gap_before(next: u64, offset: u64, at: usize) -> Result<usize, Stop> {
    match offset.checked_sub(next) {
        None => Err(Stop::Doubt("a placeholder whose payload was sent already")),
        Some(gap) if gap >= UNMARKED_MOST || gap > at as u64 => {
            Err(Stop::Doubt("a placeholder whose beginning is missing"))
        }
        Some(gap) => Ok(gap as usize),
    }
}

/// The bytes before the first sighting, the sighting, and how many of the bytes before it are in the same slice. Of a long call
/// only the beginning is looked at, because a socket seldom takes more at once: what is near its end waits for the next look.
fn first_sighting(engine: &Engine, call: &Call<'_>) -> (usize, Sighting, usize) {
    let rest = call.size - call.done;
    let most = rest.min(LOOK_MOST);
    let mut before = 0;
    for (address, len) in iov::pieces(call.iov, call.done, most) {
        // SAFETY: the application handed these bytes in to be read.
        let bytes = unsafe { core::slice::from_raw_parts(address, len) };
        match engine.magic.find(bytes) {
            Sighting::Nothing => {}
            Sighting::Begun(at) if most < rest && before + at + MARK > most => break,
            sighting @ (Sighting::Begun(at) | Sighting::Mark(at, _)) => return (before + at, sighting, at),
        }
        before += len;
    }
    // The bytes before a mark may be its segment's, see `gap_before`.
    let plain = if most < rest { most - UNMARKED_MOST as usize } else { rest };
    (plain, Sighting::Nothing, 0)
}

/// Decides whether a mark begins with the next byte: the application may have cut it, and framed its parts anew.
///
/// When the call ends in the middle of what may be a mark, the rest is held back and the application is told that it was
/// sent, if more is bound to follow: then the next call decides.
fn resolve(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>) -> Result<(), Stop> {
    let mut bytes = [0; MARK];
    let (known, open) = socket.payload_ahead(engine, call.iov, call.done, call.size - call.done, &mut bytes, false);
    if known == 0 || !engine.magic.could_begin(&bytes[..known]) {
        return send_plain(engine, socket, call, 1, call.size - call.done > 1);
    }
    if known == MARK {
        let (anchor, segment, offset) = genuine(&Mark::decode(&bytes))?;
        let next = socket.next_of(anchor.vpi, segment);
        if offset < next {
            return Err(Stop::Doubt("a placeholder whose payload was sent already"));
        }
        if offset > next {
            return Err(Stop::Doubt("a placeholder whose beginning is missing"));
        }
        start(socket, anchor, segment);
        return Ok(());
    }
    let len = call.size - call.done;
    let before = anchor::next_message();
    if known < MAGIC && !(open && may_begin(engine, socket, before)) {
        send_plain(engine, socket, call, len, false)?;
        let is_out = open && call.done == call.size;
        socket.let_out = if is_out { known as u8 } else { 0 };
        return Ok(());
    }
    // What is accepted must be bound to leave, whatever comes: the kernel tells the application when there is room.
    if !call.only_put_back && !sys::has_room(socket.fd) {
        return Err(Stop::Kernel(Errno::EAGAIN));
    }
    // A thread that waits although nothing follows shows that it is no mark.
    batch::remember(socket.fd);
    let mut owed = Owed { bytes: vec![0; len], before };
    copy_bytes(call, len, &mut owed.bytes);
    socket.owed = Some(Box::new(owed));
    call.done = call.size;
    Ok(())
}

/// Whether the next byte may begin a placeholder of a message below `before`.
fn may_begin(engine: &Engine, socket: &mut Socket, before: u32) -> bool {
    let in_tunnel = socket.is_tunnel(engine);
    anchor::may_begin(socket.role, socket.link.map(|link| link.message), before, in_tunnel)
}

fn genuine(mark: &Mark) -> Result<(MutexGuard<'static, Anchor>, Segment, u64), Stop> {
    let anchor = anchor::lookup(mark.vpi).ok_or(Stop::Doubt("a placeholder whose payload is gone"))?;
    let (segment, offset) = anchor.verify(mark).ok_or(Stop::Doubt("a placeholder that does not verify"))?;
    Ok((anchor, segment, offset))
}

/// The next byte is the first of `segment` that has not left yet.
fn start(socket: &mut Socket, mut anchor: MutexGuard<'static, Anchor>, segment: Segment) {
    anchor.touch();
    if socket.link.is_none_or(|link| link.message != anchor.message) {
        SENT.enter(anchor.message);
        if let Some(link) = socket.link {
            SENT.leave(link.message);
        }
    }
    let (by_copy, is_proven) = match socket.link {
        Some(link) if link.vpi == anchor.vpi => (link.by_copy, link.is_proven),
        _ => (!sys::is_nonblocking(socket.fd) || !sys::sigpipe_is_ignored(), false),
    };
    let (vpi, message) = (anchor.vpi, anchor.message);
    let offset = socket.next_of(vpi, segment);
    let left = (segment.end() - offset) as u32;
    socket.link = Some(Link { vpi, message, offset, left, by_copy, is_proven });
}

/// Sends `len` bytes as they are.
fn send_plain(engine: &Engine, socket: &mut Socket, call: &mut Call<'_>, len: usize, more: bool) -> Result<(), Stop> {
    if call.only_put_back {
        socket.sent(engine, call.iov, call.done, len);
        call.done += len;
        return Ok(());
    }
    leave(engine, socket)?;
    let part = iov::Part::new(call.iov, call.size, call.done, len);
    let flags = call.flags | if more || part.bytes() < len { libc::MSG_MORE } else { 0 };
    let n = sys::send(socket.fd, part.slices(), flags)?;
    socket.sent(engine, call.iov, call.done, n);
    call.done += n;
    Ok(())
}

/// Sends what waits, because something else follows it.
fn leave(engine: &Engine, socket: &mut Socket) -> Result<(), Stop> {
    batch::leave(engine, socket, true).map_err(|refusal| match refusal {
        Refusal::Kernel(error) => Stop::Kernel(error),
        Refusal::Unspliceable | Refusal::Gone => Stop::Doubt("payload that was accepted cannot be sent"),
    })
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
        // Whether the application's own bytes follow cannot be known.
        Place::Passed => {
            if anchor.role == Role::Accepted {
                engine.routes.disprove(anchor.route);
            }
            return Err(Stop::Doubt("a placeholder on a connection that is not followed"));
        }
        Place::Opaque(left) => usize::try_from(left).unwrap_or(usize::MAX),
        Place::Metadata => {
            // The application framed the payload anew: a line between two chunks, or the end of the message.
            drop(anchor);
            let metadata = socket.metadata_ahead(engine, call.iov, call.done, rest);
            return if metadata == 0 {
                Err(Stop::Doubt("neither payload nor metadata follows"))
            } else {
                send_plain(engine, socket, call, metadata, metadata < rest)
            };
        }
    };
    let piece = (link.left as usize).min(rest).min(due);
    verify(engine, &anchor, segment, link.offset, call, call.done, piece)?;
    if call.only_put_back {
        return put_back(engine, socket, call, link, anchor, piece);
    }
    if link.by_copy {
        return send_copied(engine, socket, call, link, anchor, piece);
    }
    let piece =
        piece + following(engine, &anchor, link.offset + piece as u64, call, call.done + piece, rest.min(due) - piece);
    let then = match piece {
        _ if piece < rest => Then::CallGoesOn,
        _ if piece < due => Then::MessageGoesOn,
        _ => Then::Nothing,
    };
    match batch::forward(engine, socket, &mut anchor, link, piece, then, call.flags) {
        Ok(0) => Err(Stop::Kernel(Errno::EAGAIN)),
        Ok(n) => {
            drop(anchor);
            socket.link = Some(Link { is_proven: true, ..link });
            socket.skipped_tx(engine, n);
            call.done += n;
            advance(socket, n);
            Ok(())
        }
        Err(Refusal::Kernel(error)) => Err(error.into()),
        Err(Refusal::Unspliceable) => send_copied(engine, socket, call, link, anchor, piece),
        Err(Refusal::Gone) => Err(Stop::Doubt("the pipe holds less than was received")),
    }
}

/// How many of the `most` bytes from `at` on are further segments, each of which begins with its mark: they can leave
/// together. `offset` is where the anchor stands there.
fn following(engine: &Engine, anchor: &Anchor, offset: u64, call: &Call<'_>, at: usize, most: usize) -> usize {
    let mut len = 0;
    while len < most {
        let next = anchor.segment_at(offset + len as u64);
        let Some(segment) = next.filter(|segment| segment.start == offset + len as u64 && segment.taken == 0) else {
            break;
        };
        let part = (segment.len as usize).min(most - len);
        let marked = iov::pieces(call.iov, at + len, part).next().is_some_and(|(_, bytes)| bytes >= MARK);
        if !marked || verify(engine, anchor, segment, segment.start, call, at + len, part).is_err() {
            break;
        }
        len += part;
    }
    len
}

/// Moves the link on by `n` bytes, and over into the segment in whose middle that ends. At the end of a segment it stays, so
/// that it is known what was being sent when the connection is closed.
fn advance(socket: &mut Socket, n: usize) {
    let Some(link) = &mut socket.link else { return };
    link.offset += n as u64;
    if n < link.left as usize {
        link.left -= n as u32;
        return;
    }
    let here = anchor::lookup(link.vpi).and_then(|anchor| anchor.segment_at(link.offset));
    let begun = here.filter(|segment| segment.start < link.offset);
    link.left = begun.map_or(0, |segment| (segment.end() - link.offset) as u32);
}

/// Checks every mark that must stand in `len` bytes of the call from `begin` on, the first of which is `offset`.
fn verify(
    engine: &Engine,
    anchor: &Anchor,
    segment: Segment,
    offset: u64,
    call: &Call<'_>,
    begin: usize,
    len: usize,
) -> Result<(), Stop> {
    let mut from = (offset - segment.start) as usize;
    for (address, bytes) in iov::pieces(call.iov, begin, len) {
        let positions = mark::positions(from, (from + bytes).min(segment.len as usize));
        // Each is in a cache line of its own, which has often left the fast caches by now.
        positions.clone().for_each(|at| sys::prefetch(address.wrapping_add(at - from)));
        for at in positions {
            // SAFETY: `positions` keeps whole marks within the slice.
            let found = unsafe { &*address.add(at - from).cast::<[u8; MARK]>() };
            if !engine.magic.stands_in(found, anchor.vpi, segment.start + at as u64, &anchor.secret) {
                return Err(Stop::Doubt("a placeholder with a mark missing"));
            }
        }
        from += bytes;
    }
    Ok(())
}

/// Puts the payload back into the application's buffer, for somebody else who sends it from there.
fn put_back(
    engine: &Engine,
    socket: &mut Socket,
    call: &mut Call<'_>,
    link: Link,
    mut anchor: MutexGuard<'static, Anchor>,
    piece: usize,
) -> Result<(), Stop> {
    let mut offset = link.offset;
    for (address, bytes) in iov::pieces(call.iov, call.done, piece) {
        // SAFETY: the bytes of a placeholder are the application's receive buffer, writable, of which nobody knows what
        // it holds but us.
        let done = unsafe { anchor.materialise(engine, offset, address, bytes, Reason::ExitTls) };
        done.map_err(|_| Stop::Doubt(NOT_PUT_BACK))?;
        offset += bytes as u64;
    }
    drop(anchor);
    advance(socket, piece);
    send_plain(engine, socket, call, piece, false)
}

const NOT_PUT_BACK: &str = "payload could not be put back";

/// Sends the payload by way of memory: the socket takes no splices. What it does not take yet stays there.
fn send_copied(
    engine: &Engine,
    socket: &mut Socket,
    call: &mut Call<'_>,
    link: Link,
    mut anchor: MutexGuard<'static, Anchor>,
    piece: usize,
) -> Result<(), Stop> {
    if socket.batch.is_some() {
        drop(anchor);
        return leave(engine, socket);
    }
    let more = piece < call.size - call.done;
    match anchor.forward_copied(engine, link.offset, piece, socket.fd, more, call.flags) {
        Ok(n) => {
            drop(anchor);
            socket.skipped_tx(engine, n);
            call.done += n;
            advance(socket, n);
            Ok(())
        }
        Err(Refusal::Kernel(error)) => Err(error.into()),
        Err(Refusal::Unspliceable | Refusal::Gone) => Err(Stop::Doubt(NOT_PUT_BACK)),
    }
}

#[cfg(test)]
mod cuts;
#[cfg(test)]
mod parts;
#[cfg(test)]
mod tests;
