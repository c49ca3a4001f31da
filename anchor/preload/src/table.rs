//! Descriptor -> what the engine knows of it. The look-up for a descriptor that is not ours is one load and one branch.

use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::Mutex;

use crate::cell::Cell;
use crate::socket::Socket;

/// Descriptors above are left alone.
pub(crate) const DESCRIPTORS: usize = 1 << 20;

/// Zero pages until they are used: 8 bytes for each descriptor that is.
static TABLE: [AtomicPtr<Cell>; DESCRIPTORS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; DESCRIPTORS];

/// The highest descriptor that ever had an entry; bounds the walk after a fork.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// Cells whose connection is closed. They are used again, never freed: a thread that raced with a close finds a cell of
/// another connection, and sees that by its descriptor, instead of freed memory.
static SPARE: Mutex<Vec<&'static Cell>> = Mutex::new(Vec::new());

/// Cells that are made at once.
const CELLS_AT_ONCE: usize = 16;

/// Not a cell: a stream socket that is neither connected nor accepted yet.
static FRESH_STREAM: Cell = Cell::placeholder();
/// Not a cell: a descriptor of the engine itself.
static OURS: Cell = Cell::placeholder();

/// What stands at a descriptor.
pub(crate) enum Entry {
    Nothing,
    /// A stream socket, not connected yet.
    Fresh,
    /// The engine's own; the application has no such descriptor.
    Ours,
    Socket(&'static Cell),
}

/// The entry of a descriptor.
#[inline]
pub(crate) fn entry(fd: i32) -> Entry {
    let Some(slot) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) else { return Entry::Nothing };
    let cell = slot.load(Ordering::Acquire);
    if cell.is_null() {
        Entry::Nothing
    } else if core::ptr::eq(cell, &FRESH_STREAM) {
        Entry::Fresh
    } else if core::ptr::eq(cell, &OURS) {
        Entry::Ours
    } else {
        // SAFETY: every other pointer in the table came from a `&'static Cell`.
        Entry::Socket(unsafe { &*cell })
    }
}

/// The connection behind a descriptor, if it is one of ours.
#[inline]
pub(crate) fn socket(fd: i32) -> Option<&'static Cell> {
    match entry(fd) {
        Entry::Socket(cell) => Some(cell),
        _ => None,
    }
}

/// Remembers that `fd` is a stream socket.
pub(crate) fn note_stream(fd: i32) {
    set(fd, &FRESH_STREAM);
}

/// Hides a descriptor of the engine from the application.
pub(crate) fn claim(fd: i32) {
    set(fd, &OURS);
}

/// Forgets whatever stood at `fd`.
pub(crate) fn release(fd: i32) {
    if let Some(slot) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) {
        slot.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// Begins to follow a connection.
pub(crate) fn insert(fd: i32, socket: Socket) {
    if usize::try_from(fd).map_or(true, |fd| fd >= DESCRIPTORS) {
        return;
    }
    let Some(cell) = unused() else { return };
    if cell.occupy(fd, socket) {
        set(fd, cell);
    }
}

/// A cell without a connection. They are made by the dozen: the allocator's own word for each would count.
fn unused() -> Option<&'static Cell> {
    let mut spare = SPARE.lock().ok()?;
    if spare.is_empty() {
        let more: &'static [Cell] = Box::leak(Box::new([const { Cell::placeholder() }; CELLS_AT_ONCE]));
        spare.extend(more);
    }
    spare.pop()
}

/// Lets a second descriptor stand for the same connection.
pub(crate) fn alias(fd: i32, cell: &'static Cell) {
    set(fd, cell);
}

/// A cell whose connection is gone, for the next one.
pub(crate) fn recycle(cell: &'static Cell) {
    if let Ok(mut spare) = SPARE.lock() {
        spare.push(cell);
    }
}

/// The highest descriptor that ever had an entry.
pub(crate) fn highest() -> u32 {
    u32::try_from(HIGHEST.load(Ordering::Relaxed)).unwrap_or(0)
}

/// For the child of a fork: forgets every connection; those of the parent are not the child's business.
pub(crate) fn forget_all() {
    let highest = usize::try_from(HIGHEST.swap(-1, Ordering::Relaxed) + 1).unwrap_or(0);
    for (fd, slot) in TABLE.iter().take(highest).enumerate() {
        crate::watch::forget(fd as i32);
        if !slot.load(Ordering::Relaxed).is_null() {
            slot.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
    }
}

fn set(fd: i32, cell: &'static Cell) {
    if let Some(slot) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) {
        slot.store(core::ptr::from_ref(cell).cast_mut(), Ordering::Release);
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
}
