//! Anchors: payload that was received and not sent yet. One anchor per span of payload.
//!
//! ```text
//!              taken            pipe_head                tail
//!  ──────────────┬────────────────┬──────────────────────┬──> offset
//!   left already │ spilled pieces │ in the pipe          │
//! ```
//!
//! An anchor outlives the socket it was received on (the paper's appendix A.4): it is closed when all of it has left, or
//! when nobody can ask for the rest any more.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::TryLockError::WouldBlock;
use std::sync::{Mutex, MutexGuard};

use libc::c_int;
use syscalls::Errno;
use underdeck_stats::{Block, Gauge, Reason, Role};

use crate::engine::Engine;
use crate::mark::{Mark, STRIDE, Secret, Vpi};
use crate::messages::{RECEIVED, SENT};
use crate::pipe::Chain;
use crate::{socket, sys};

const SLOTS: usize = 1 << 16;

/// Anchors by slot. They are used again, never freed, so that a mark can be looked up without a lock.
static ANCHORS: [AtomicPtr<Mutex<Anchor>>; SLOTS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS];
static SPARE: Mutex<Vec<u16>> = Mutex::new(Vec::new());
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Anchors that exist. While there are none, nothing that is sent can be a placeholder.
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// Anchors that nothing is added to any more and that still hold something: (VPI, second when that began).
static DETACHED: Mutex<VecDeque<(Vpi, u64)>> = Mutex::new(VecDeque::new());
static DETACHED_COUNT: AtomicUsize = AtomicUsize::new(0);
/// When (second) something of a message was last sent; messages whose numbers fall together keep each other alive.
static ACTIVE: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
static MESSAGES: AtomicU32 = AtomicU32::new(0);

/// Until when (second) placeholders may turn up behind which there is nothing any more.
static SUSPECT_UNTIL: AtomicU64 = AtomicU64::new(0);
/// How long after payload was dropped every sent byte is still looked at.
const SUSPICION_S: u64 = 300;

/// Whether any placeholder can be out. While there is none, nothing that is sent needs to be looked at.
#[inline]
pub(crate) fn any_open() -> bool {
    OPEN.load(Ordering::Acquire) != 0 || (SUSPECT_UNTIL.load(Ordering::Relaxed) != 0 && is_suspicious())
}

#[cold]
fn is_suspicious() -> bool {
    let until = SUSPECT_UNTIL.load(Ordering::Relaxed);
    if sys::seconds() < until {
        return true;
    }
    // Lost only if another thread has just dropped something: then that thread sets it again.
    let _ = SUSPECT_UNTIL.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
    false
}

/// One stretch of application memory that holds a placeholder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Offset of its first byte in the anchor.
    pub(crate) start: u64,
    pub(crate) len: u32,
    /// How many of its first bytes have left.
    pub(crate) taken: u32,
}

impl Segment {
    pub(crate) fn next(&self) -> u64 {
        self.start + u64::from(self.taken)
    }

    /// Offset behind its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    pub(crate) fn left(&self) -> u32 {
        self.len - self.taken
    }
}

/// Bytes that had to leave the pipe before their turn, because later ones were asked for first.
struct Spill {
    offset: u64,
    bytes: Vec<u8>,
}

/// What one span of payload needs until it has left.
pub(crate) struct Anchor {
    pub(crate) vpi: Vpi,
    pub(crate) secret: Secret,
    pub(crate) role: Role,
    pub(crate) route: u8,
    pipes: Chain,
    tail: u64,
    pipe_head: u64,
    spilled: Vec<Spill>,
    segments: VecDeque<Segment>,
    /// What was read ahead and had to be taken out of the pipe.
    unread: Vec<u8>,
    /// The receiving socket still adds to it.
    attached: bool,
    /// A connection has begun to send it: its end will be told.
    touched: bool,
    /// The connection that it was being sent on was closed in the middle.
    abandoned: bool,
    /// The message that it is a part of.
    pub(crate) message: u32,
    /// It goes on until the connection is closed.
    is_endless: bool,
}

/// Why bytes could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The kernel said no; `EAGAIN` when the socket takes no more.
    Kernel(Errno),
    /// The receiving socket takes no spliced pages.
    Unspliceable,
    /// They left already, or never were: whoever asks holds a placeholder that nothing stands behind.
    Gone,
}

/// A number for a message; its anchors share it.
pub(crate) fn new_message() -> u32 {
    MESSAGES.fetch_add(1, Ordering::Relaxed)
}

/// The number that the next message gets.
pub(crate) fn next_message() -> u32 {
    MESSAGES.load(Ordering::Relaxed)
}

/// Opens an anchor with an empty pipe; none when there is no pipe or no slot.
pub(crate) fn open(engine: &Engine, role: Role, route: u8, message: u32, is_endless: bool) -> Option<Vpi> {
    reap(engine);
    let pipe = engine.pipes.take(engine.stats)?;
    let Some(slot) = free_slot() else {
        engine.pipes.give_back(pipe, engine.stats);
        return None;
    };
    let secret = engine.secret();
    let mut anchor = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    anchor.vpi.generation = anchor.vpi.generation.wrapping_add(1);
    *anchor = Anchor {
        secret,
        role,
        route,
        message,
        is_endless,
        pipes: Chain::new(pipe),
        attached: true,
        ..Anchor::closed(anchor.vpi)
    };
    OPEN.fetch_add(1, Ordering::AcqRel);
    engine.stats.up(Gauge::AnchorsOpen, 1);
    Some(anchor.vpi)
}

/// The open anchor of that name.
pub(crate) fn lookup(vpi: Vpi) -> Option<MutexGuard<'static, Anchor>> {
    let slot = ANCHORS[usize::from(vpi.slot)].load(Ordering::Acquire);
    // SAFETY: slots are leaked boxes that are never freed.
    let anchor = unsafe { slot.as_ref() }?.lock().ok()?;
    (anchor.vpi == vpi && anchor.pipes.is_open()).then_some(anchor)
}

/// The receiving socket is done with it: the span ended, or the socket was closed.
pub(crate) fn detach(engine: &Engine, vpi: Vpi) {
    let Some(mut anchor) = lookup(vpi) else { return };
    anchor.attached = false;
    anchor.close_if_done(engine);
    let waits = anchor.pipes.is_open();
    drop(anchor);
    if waits && let Ok(mut detached) = DETACHED.lock() {
        detached.push_back((vpi, sys::seconds()));
        DETACHED_COUNT.store(detached.len(), Ordering::Relaxed);
    }
}

/// The connection on which a message was being sent was closed: nobody will send the rest, if there is one.
pub(crate) fn abandon(engine: &Engine, message: u32) {
    if OPEN.load(Ordering::Acquire) == 0 {
        return;
    }
    for slot in slots() {
        let Ok(mut anchor) = slot.lock() else { continue };
        if anchor.pipes.is_open() && anchor.message == message {
            anchor.abandoned = true;
            anchor.close_if_done(engine);
        }
    }
}

/// Routes of what was received by accepted connections and of which nothing has left yet.
pub(crate) fn unsent_uploads() -> Vec<u8> {
    if OPEN.load(Ordering::Acquire) == 0 {
        return Vec::new();
    }
    let is_one = |it: &Anchor| it.role == Role::Accepted && !it.touched && !it.segments.is_empty();
    slots().filter_map(|slot| slot.try_lock().ok().filter(|it| is_one(it)).map(|it| it.route)).collect()
}

/// Whether a placeholder may begin on a connection of `role` that sends `message` (none: nothing anchored yet): one of that
/// message, or of another one below `limit`, from the other side, that no connection has begun to send. `in_tunnel`: of another
/// tunnel.
pub(crate) fn may_begin(role: Role, message: Option<u32>, limit: u32, in_tunnel: bool) -> bool {
    let is_one = |it: &Anchor| {
        let is_older = limit.wrapping_sub(it.message).cast_signed() > 0;
        let is_unsent = || !it.touched && is_older && it.role != role && (it.is_endless || !in_tunnel);
        let may_come = message == Some(it.message) || is_unsent() && !SENT.has(it.message);
        may_come && it.segments.iter().any(|segment| segment.taken == 0)
    };
    // One that somebody is at work on may be it.
    let may_be =
        |slot: &Mutex<Anchor>| slot.try_lock().map_or_else(|busy| matches!(busy, WouldBlock), |it| is_one(&it));
    OPEN.load(Ordering::Acquire) != 0 && slots().any(may_be)
}

/// Whether a message has segments of which nothing has left.
pub(crate) fn is_unsent(message: u32) -> bool {
    let is_one = |it: &Anchor| it.message == message && it.segments.iter().any(|segment| segment.taken == 0);
    slots().any(|slot| slot.try_lock().is_ok_and(|it| is_one(&it)))
}

/// Whether an anchor waits for somebody to send it.
pub(crate) fn any_detached() -> bool {
    DETACHED_COUNT.load(Ordering::Relaxed) != 0
}

/// How many that nobody has begun to send are kept for connections that take no more at the moment.
const AWAITED_MOST: usize = 64;

/// Closes detached anchors that nobody has begun to send within the grace period, nor anything else of the same message, if it
/// was received to its end (a request: and answered): the connection that they were for is gone, unless one takes no more at
/// the moment. Those of which a connection has begun to send are closed with it.
pub(crate) fn reap(engine: &Engine) {
    if !any_detached() {
        return;
    }
    let now = sys::seconds();
    let Ok(mut detached) = DETACHED.lock() else { return };
    // The oldest come first; the others are looked at when they have waited as long.
    for _ in 0..detached.len() {
        let Some((vpi, since)) = detached.front().copied() else { break };
        if since + engine.config.grace_s >= now {
            break;
        }
        detached.pop_front();
        if let Some(mut anchor) = lookup(vpi) {
            let active = ACTIVE[anchor.message as usize % ACTIVE.len()].load(Ordering::Relaxed);
            let is_under_way = anchor.touched || SENT.has(anchor.message) || RECEIVED.has(anchor.message);
            let is_awaited = || socket::is_other_side_full(anchor.role) && detached.len() < AWAITED_MOST;
            if is_under_way || is_awaited() || active + engine.config.grace_s >= now {
                detached.push_back((vpi, now));
            } else {
                anchor.close(engine);
            }
        }
    }
    DETACHED_COUNT.store(detached.len(), Ordering::Relaxed);
}

/// Every slot that was ever used.
fn slots() -> impl Iterator<Item = &'static Mutex<Anchor>> {
    let used = ANCHORS.iter().take(NEXT.load(Ordering::Relaxed) as usize);
    // SAFETY: slots are leaked boxes that are never freed.
    used.filter_map(|slot| unsafe { slot.load(Ordering::Relaxed).as_ref() })
}

/// For the child of a fork: closes the inherited pipes; the payload is the parent's.
pub(crate) fn abandon_all() {
    for slot in slots() {
        // A lock that another thread of the parent held at the fork is never released here: leave that slot behind.
        let Ok(mut anchor) = slot.try_lock() else { continue };
        anchor.pipes.abandon();
    }
    OPEN.store(0, Ordering::Release);
    SENT.forget_all();
    RECEIVED.forget_all();
}

fn free_slot() -> Option<&'static Mutex<Anchor>> {
    let spare = SPARE.lock().ok()?.pop();
    let number = match spare {
        Some(number) => usize::from(number),
        None => NEXT.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < SLOTS as u32).then_some(n + 1)).ok()?
            as usize,
    };
    let slot = ANCHORS[number].load(Ordering::Acquire);
    // SAFETY: slots are leaked boxes that are never freed.
    if let Some(slot) = unsafe { slot.as_ref() } {
        return Some(slot);
    }
    let vpi = Vpi { slot: number as u16, generation: 0 };
    let fresh: &'static Mutex<Anchor> = Box::leak(Box::new(Mutex::new(Anchor::closed(vpi))));
    ANCHORS[number].store(core::ptr::from_ref(fresh).cast_mut(), Ordering::Release);
    Some(fresh)
}

impl Anchor {
    fn closed(vpi: Vpi) -> Self {
        Self {
            vpi,
            secret: [0; 2],
            role: Role::Connected,
            route: 0,
            pipes: Chain::default(),
            tail: 0,
            pipe_head: 0,
            spilled: Vec::new(),
            segments: VecDeque::new(),
            unread: Vec::new(),
            attached: false,
            touched: false,
            abandoned: false,
            message: 0,
            is_endless: false,
        }
    }

    /// Bytes that lie here.
    pub(crate) fn held(&self) -> u64 {
        self.tail - self.pipe_head + self.spilled.iter().map(|spill| spill.bytes.len() as u64).sum::<u64>()
    }

    fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Moves up to `len` bytes from the socket into the pipe, without waiting.
    pub(crate) fn receive(&mut self, from: c_int, len: usize) -> sys::Result<usize> {
        self.pipes.fill(from, len)
    }

    /// Whether there may be no room for more.
    pub(crate) fn may_be_full(&self) -> bool {
        self.pipes.may_be_full()
    }

    /// The pipe is full: tries to make room.
    pub(crate) fn grow(&mut self, engine: &Engine) -> bool {
        self.pipes.grow(&engine.pipes, engine.stats)
    }

    /// What was read ahead and taken out of the pipe: the first bytes that were not entered, if there are any.
    pub(crate) fn unread(&mut self) -> &mut Vec<u8> {
        &mut self.unread
    }

    /// Takes all of the `len` bytes that [`Anchor::receive`] brought, and that have not been entered, out of the pipe.
    pub(crate) fn settle(&mut self, engine: &Engine, len: usize) -> Result<(), Refusal> {
        if self.unread.is_empty() {
            let mut bytes = vec![0; len];
            self.take_back(engine, &mut bytes)?;
            self.unread = bytes;
        }
        Ok(())
    }

    /// Takes the first bytes that [`Anchor::receive`] brought, and that have not been entered, out of the pipe again.
    pub(crate) fn take_back(&mut self, engine: &Engine, to: &mut [u8]) -> Result<(), Refusal> {
        self.reach(engine, self.tail, Reason::ExitOther)?;
        let mut done = 0;
        while done < to.len() {
            let rest = &mut to[done..];
            // SAFETY: within the slice.
            let n = unsafe { self.pipes.read(rest.as_mut_ptr(), rest.len(), &engine.pipes, engine.stats) };
            done += n.ok().filter(|n| *n > 0).ok_or(Refusal::Gone)?;
        }
        Ok(())
    }

    /// Enters what [`Anchor::receive`] brought as one segment of the application's memory.
    pub(crate) fn add_segment(&mut self, len: u32, stats: &Block) -> Segment {
        self.segments.push_back(Segment { start: self.tail, len: 0, taken: 0 });
        self.extend_segment(len, stats)
    }

    /// Enters what [`Anchor::receive`] brought as more of the last segment: it lies right behind it, and the application
    /// has not been told of either.
    pub(crate) fn extend_segment(&mut self, len: u32, stats: &Block) -> Segment {
        self.tail += u64::from(len);
        stats.up(Gauge::BytesHeld, u64::from(len));
        Block::add(&stats.role(self.role).bytes_anchored, u64::from(len));
        let fresh = Segment { start: self.tail - u64::from(len), len, taken: 0 };
        let Some(last) = self.segments.back_mut() else { return fresh };
        last.len += len;
        *last
    }

    /// A connection begins to send it.
    pub(crate) fn touch(&mut self) {
        self.touched = true;
    }

    /// The segment that a mark speaks of and the offset it stands for, if this anchor wrote it.
    pub(crate) fn verify(&self, mark: &Mark) -> Option<(Segment, u64)> {
        let wrapped = self.tail.wrapping_sub(u64::from((self.tail as u32).wrapping_sub(mark.offset_low)));
        let segment = self.segment_at(wrapped)?;
        mark.is_genuine(&self.secret, wrapped).then_some((segment, wrapped))
    }

    /// The segment that holds the byte at `offset`, unless all of it has left.
    pub(crate) fn segment_at(&self, offset: u64) -> Option<Segment> {
        let at = self.segments.partition_point(|segment| segment.end() <= offset);
        self.segments.get(at).filter(|segment| segment.start <= offset).copied()
    }

    /// Moves up to `len` bytes from `offset` on to a socket, without waiting and without copying where they still lie in the pipe.
    pub(crate) fn forward(
        &mut self,
        engine: &Engine,
        offset: u64,
        len: usize,
        to: c_int,
        more: bool,
        flags: c_int,
    ) -> Result<usize, Refusal> {
        self.reach(engine, offset, Reason::ExitOther)?;
        let sent = if offset < self.pipe_head {
            let spill = self.spill_at(offset).ok_or(Refusal::Gone)?;
            let from = (offset - spill.offset) as usize;
            let until = spill.bytes.len().min(from + len);
            let flags = flags | if more { libc::MSG_MORE } else { 0 };
            sys::send_bytes(to, &spill.bytes[from..until], flags).map_err(Refusal::Kernel)?
        } else {
            let sent = match self.pipes.forward(to, len, more, &engine.pipes, engine.stats) {
                Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Err(Refusal::Unspliceable),
                Err(Errno::EIO) => return Err(Refusal::Gone),
                other => other.map_err(Refusal::Kernel)?,
            };
            self.pipe_head += sent as u64;
            Block::add(&engine.stats.role(self.role).bytes_forwarded, sent as u64);
            engine.routes.forwarded(self.route, sent);
            sent
        };
        self.taken(engine, offset, sent);
        Ok(sent)
    }

    /// As [`Anchor::forward`], by way of memory: for a socket that takes no splices.
    pub(crate) fn forward_copied(
        &mut self,
        engine: &Engine,
        offset: u64,
        len: usize,
        to: c_int,
        more: bool,
        flags: c_int,
    ) -> Result<usize, Refusal> {
        let end = offset + len as u64;
        engine.routes.materialised(self.route, end.saturating_sub(self.pipe_head.max(offset)) as usize);
        self.reach(engine, end, Reason::ExitUnspliceable)?;
        self.forward(engine, offset, len, to, more, flags)
    }

    /// Copies `len` bytes from `offset` on into the application's memory: the placeholder becomes the payload.
    ///
    /// # Safety
    /// `to` must be valid for writes of `len` bytes.
    pub(crate) unsafe fn materialise(
        &mut self,
        engine: &Engine,
        offset: u64,
        to: *mut u8,
        len: usize,
        why: Reason,
    ) -> Result<(), Refusal> {
        let (role, route) = (self.role, self.route);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            self.reach(engine, at, Reason::ExitOther)?;
            let copied = if at < self.pipe_head {
                let spill = self.spill_at(at).ok_or(Refusal::Gone)?;
                let from = (at - spill.offset) as usize;
                let bytes = (spill.bytes.len() - from).min(len - done);
                // SAFETY: promised by the caller; a spill is memory of ours and does not overlap.
                unsafe { core::ptr::copy_nonoverlapping(spill.bytes.as_ptr().add(from), to.add(done), bytes) };
                bytes
            } else {
                // SAFETY: promised by the caller.
                let bytes = unsafe { self.pipes.read(to.add(done), len - done, &engine.pipes, engine.stats) }
                    .map_err(Refusal::Kernel)?;
                if bytes == 0 {
                    return Err(Refusal::Gone);
                }
                self.pipe_head += bytes as u64;
                bytes
            };
            self.taken(engine, at, copied);
            done += copied;
        }
        engine.stats.materialised(role, why, len as u64);
        engine.routes.materialised(route, len);
        Ok(())
    }

    /// Takes bytes that stand before `offset` out of the pipe, for those who ask for them later.
    fn reach(&mut self, engine: &Engine, offset: u64, why: Reason) -> Result<(), Refusal> {
        if offset <= self.pipe_head {
            return Ok(());
        }
        let missing = usize::try_from(offset - self.pipe_head).map_err(|_| Refusal::Gone)?;
        if offset > self.tail {
            return Err(Refusal::Gone);
        }
        let mut bytes = vec![0; missing];
        let mut done = 0;
        while done < missing {
            // SAFETY: within the vector.
            let read =
                unsafe { self.pipes.read(bytes.as_mut_ptr().add(done), missing - done, &engine.pipes, engine.stats) };
            match read.map_err(Refusal::Kernel)? {
                0 => return Err(Refusal::Gone),
                n => done += n,
            }
        }
        engine.stats.materialised(self.role, why, missing as u64);
        self.spilled.push(Spill { offset: self.pipe_head, bytes });
        self.pipe_head = offset;
        Ok(())
    }

    fn spill_at(&self, offset: u64) -> Option<&Spill> {
        self.spilled.iter().find(|spill| spill.offset <= offset && offset < spill.offset + spill.bytes.len() as u64)
    }

    /// Strikes `bytes` from `offset` on off the books.
    fn taken(&mut self, engine: &Engine, offset: u64, bytes: usize) {
        let end = offset + bytes as u64;
        let first = self.segments.partition_point(|segment| segment.end() <= offset);
        for segment in self.segments.range_mut(first..).take_while(|segment| segment.start < end) {
            segment.taken = (end.min(segment.end()) - segment.start) as u32;
        }
        if first == 0 {
            while self.segments.front().is_some_and(|segment| segment.left() == 0) {
                self.segments.pop_front();
            }
        } else {
            self.segments.retain(|segment| segment.left() > 0);
        }
        let segments = &self.segments;
        let wanted = |from: u64, len: u64| segments.iter().any(|s| s.next() < from + len && from < s.end());
        self.spilled.retain(|spill| wanted(spill.offset, spill.bytes.len() as u64));
        engine.stats.down(Gauge::BytesHeld, bytes as u64);
        ACTIVE[self.message as usize % ACTIVE.len()].store(sys::seconds(), Ordering::Relaxed);
        self.close_if_done(engine);
    }

    /// Closes it when nobody will add to it and nobody can ask for what is left.
    pub(crate) fn close_if_done(&mut self, engine: &Engine) {
        if !self.attached && (self.is_empty() || self.abandoned) {
            self.close(engine);
        }
    }

    fn close(&mut self, engine: &Engine) {
        if !self.pipes.is_open() {
            return;
        }
        let left: u64 = self.segments.iter().map(|segment| u64::from(segment.left())).sum();
        if left > 0 {
            Block::add(&engine.stats.role(self.role).bytes_dropped, left);
            SUSPECT_UNTIL.store(sys::seconds() + SUSPICION_S, Ordering::Relaxed);
        }
        engine.stats.down(Gauge::BytesHeld, left);
        engine.stats.down(Gauge::AnchorsOpen, 1);
        self.pipes.close(&engine.pipes, engine.stats);
        *self = Self::closed(self.vpi);
        OPEN.fetch_sub(1, Ordering::AcqRel);
        if let Ok(mut spare) = SPARE.lock() {
            spare.push(self.vpi.slot);
        }
    }
}

/// The distance by which a mark may be the first one seen of bytes that began before it.
pub(crate) const UNMARKED_MOST: u64 = STRIDE as u64;
