//! Exits other than a TCP socket: files, TLS libraries, compressors. The payload is put back in the place of its
//! placeholder, in the application's own buffer, where a plain receive would have put it in the first place.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use libc::iovec;
use underdeck_stats::Reason;

use crate::anchor::{self, Anchor, Segment, UNMARKED_MOST};
use crate::engine::Engine;
use crate::iov;
use crate::mark::{self, MARK, Mark, Sighting, Vpi};

/// A placeholder that cannot be resolved stands in the bytes.
#[derive(Debug)]
pub(crate) struct Doubt;

/// A descriptor that is being given the payload of an anchor.
struct Middle {
    exit: usize,
    vpi: Vpi,
    message: u32,
    /// Where the next bytes are expected to go on.
    offset: u64,
}

static MIDDLES: Mutex<Vec<Middle>> = Mutex::new(Vec::new());
static MIDDLE_COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread looks at [`MIDDLES`]: a signal handler that writes (nginx logs signals) must not wait for the lock.
    static LOOKS: AtomicBool = const { AtomicBool::new(false) };
}

/// Puts back every placeholder in `iov`, whose bytes are about to leave by `exit`: a descriptor, or none where an exit
/// leaves no trace when it is over (a compressor).
pub(crate) fn materialise(engine: &Engine, exit: Option<usize>, iov: &[iovec], why: Reason) -> Result<(), Doubt> {
    let size = iov::total(iov);
    for (address, len) in iov::pieces(iov, 0, size) {
        let mut from = go_on(engine, exit, address, len, why)?;
        while from < len {
            from = next(engine, exit, address, from, len, why)?;
        }
    }
    Ok(())
}

/// Nothing more goes to this descriptor. For a connection (TLS) that means that nobody will send the rest.
pub(crate) fn closed(fd: i32, is_connection: bool) {
    if MIDDLE_COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let (Ok(exit), Some(engine)) = (usize::try_from(fd), crate::engine::running())
        && let Some(middle) = take_middle(exit)
        && is_connection
    {
        anchor::abandon(engine, middle.message);
    }
}

/// Bytes at the beginning of a slice that go on with a segment whose first bytes left before.
fn go_on(engine: &Engine, exit: Option<usize>, address: *mut u8, len: usize, why: Reason) -> Result<usize, Doubt> {
    let Some((vpi, offset)) = exit.and_then(middle_of) else { return Ok(0) };
    let Some(mut anchor) = anchor::lookup(vpi) else { return Ok(0) };
    let Some(segment) = anchor.segment_at(offset).filter(|segment| segment.next() == offset) else { return Ok(0) };
    if segment.taken == 0 {
        return Ok(0); // it begins with a mark
    }
    let piece = len.min(segment.left() as usize);
    if !is_intact(engine, &anchor, segment, offset, address, piece) {
        return Ok(0);
    }
    put_back(engine, &mut anchor, offset, address, piece, why)?;
    settle(exit, anchor, offset + piece as u64);
    Ok(piece)
}

/// Puts back the first placeholder from `from` on; returns where it ends.
fn next(
    engine: &Engine,
    exit: Option<usize>,
    address: *mut u8,
    from: usize,
    len: usize,
    why: Reason,
) -> Result<usize, Doubt> {
    // SAFETY: the application handed these bytes in to be read.
    let bytes = unsafe { core::slice::from_raw_parts(address.add(from), len - from) };
    let Sighting::Mark(at, mark) = engine.magic.find(bytes) else { return Ok(len) };
    let (mut anchor, segment, offset) = genuine(&mark)?;
    let gap = offset.checked_sub(segment.next()).filter(|gap| *gap < UNMARKED_MOST).ok_or(Doubt)? as usize;
    let begin = (from + at).checked_sub(gap).filter(|begin| *begin >= from).ok_or(Doubt)?;
    let piece = (len - begin).min(segment.left() as usize);
    let start = address.wrapping_add(begin);
    if !is_intact(engine, &anchor, segment, segment.next(), start, piece) {
        return Err(Doubt);
    }
    put_back(engine, &mut anchor, segment.next(), start, piece, why)?;
    settle(exit, anchor, segment.next() + piece as u64);
    Ok(begin + piece)
}

/// Remembers where the next bytes for `exit` are expected to go on.
fn settle(exit: Option<usize>, anchor: MutexGuard<'static, Anchor>, offset: u64) {
    let Some(exit) = exit else { return };
    let (vpi, message) = (anchor.vpi, anchor.message);
    drop(anchor);
    with_middles(|middles| {
        middles.retain(|middle| middle.exit != exit);
        middles.push(Middle { exit, vpi, message, offset });
    });
}

fn genuine(mark: &Mark) -> Result<(MutexGuard<'static, Anchor>, Segment, u64), Doubt> {
    let anchor = anchor::lookup(mark.vpi).ok_or(Doubt)?;
    let (segment, offset) = anchor.verify(mark).ok_or(Doubt)?;
    Ok((anchor, segment, offset))
}

/// Whether every mark that must stand in `len` bytes from `offset` on does.
fn is_intact(engine: &Engine, anchor: &Anchor, segment: Segment, offset: u64, address: *mut u8, len: usize) -> bool {
    let from = (offset - segment.start) as usize;
    mark::positions(from, (from + len).min(segment.len as usize)).all(|at| {
        // SAFETY: `positions` keeps whole marks within the slice.
        let found = unsafe { core::slice::from_raw_parts(address.add(at - from), MARK) };
        found == engine.magic.encode(anchor.vpi, segment.start + at as u64, &anchor.secret)
    })
}

fn put_back(
    engine: &Engine,
    anchor: &mut Anchor,
    offset: u64,
    to: *mut u8,
    len: usize,
    why: Reason,
) -> Result<(), Doubt> {
    // SAFETY: a placeholder stands only in memory that the application gave us to receive into, or copied it to.
    unsafe { anchor.materialise(engine, offset, to, len, why) }.map_err(|_| Doubt)
}

fn middle_of(exit: usize) -> Option<(Vpi, u64)> {
    if MIDDLE_COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    with_middles(|middles| middles.iter().find(|middle| middle.exit == exit).map(|middle| (middle.vpi, middle.offset)))
        .flatten()
}

fn take_middle(exit: usize) -> Option<Middle> {
    with_middles(|middles| {
        let at = middles.iter().position(|middle| middle.exit == exit)?;
        Some(middles.swap_remove(at))
    })
    .flatten()
}

/// Runs `then` on [`MIDDLES`]; not in a signal handler that interrupted this thread here.
fn with_middles<T>(then: impl FnOnce(&mut Vec<Middle>) -> T) -> Option<T> {
    LOOKS.with(|looks| {
        if looks.swap(true, Ordering::SeqCst) {
            return None;
        }
        let result = MIDDLES.lock().ok().map(|mut middles| {
            let result = then(&mut middles);
            MIDDLE_COUNT.store(middles.len(), Ordering::Relaxed);
            result
        });
        looks.store(false, Ordering::SeqCst);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_handler_that_writes_does_not_wait_for_the_write_that_it_interrupted() {
        const FILE: usize = usize::MAX;
        let vpi = Vpi { slot: 0, generation: 0 };
        with_middles(|middles| {
            middles.push(Middle { exit: FILE, vpi, message: 0, offset: 7 });
            MIDDLE_COUNT.store(middles.len(), Ordering::Relaxed);
            // What the handler does.
            assert_eq!(middle_of(FILE), None);
        });
        assert_eq!(middle_of(FILE), Some((vpi, 7)));
        assert!(take_middle(FILE).is_some());
    }
}
