//! Pipes: where anchored payload lies.

use std::sync::Mutex;

use crate::sys;
use underdeck_stats::{Block, Gauge};

/// Capacity that a pipe is given when it is made: 64 slots. A slot holds one contiguous piece of what was received: 1448
/// bytes of it on an ordinary network, up to 32 KiB on loopback.
const BYTES_AT_FIRST: usize = 256 << 10;
/// Capacity after the pipe was full once.
const BYTES_GROWN: usize = 1 << 20;
/// Below this many bytes of capacity (slots × page size) a pipe is not worth having: an unprivileged user over
/// `fs.pipe-user-pages-soft` gets pipes of two slots.
const LEAST_BYTES: usize = 8 * 4096;
/// Idle pipes kept for the next message. More are closed.
const IDLE_MOST: usize = 64;

/// One pipe, empty when it is in the pool.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) read: i32,
    pub(crate) write: i32,
    grown: bool,
}

impl Pipe {
    /// Makes room in a pipe that is full; false if it has been made before, or the kernel gives no more.
    pub(crate) fn grow(&mut self) -> bool {
        !core::mem::replace(&mut self.grown, true) && sys::set_pipe_bytes(self.write, BYTES_GROWN).is_ok()
    }
}

/// The pipes of the process that hold nothing at the moment.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Pipe>>,
}

impl Pool {
    /// An empty pipe, or none when descriptors or the user's share of pipe pages are used up.
    pub(crate) fn take(&self, stats: &Block) -> Option<Pipe> {
        if let Some(pipe) = self.idle.lock().ok()?.pop() {
            return Some(pipe);
        }
        let floor = descriptor_floor();
        let (read, write) = sys::pipe().ok()?;
        let capacity = sys::set_pipe_bytes(write, BYTES_AT_FIRST).or_else(|_| sys::pipe_bytes(write)).unwrap_or(0);
        if capacity < LEAST_BYTES {
            sys::close(read);
            sys::close(write);
            return None;
        }
        let pipe = Pipe { read: sys::raise(read, floor), write: sys::raise(write, floor), grown: false };
        crate::table::claim(pipe.read);
        crate::table::claim(pipe.write);
        stats.up(Gauge::PipesOpen, 1);
        Some(pipe)
    }

    /// Takes an empty pipe back.
    pub(crate) fn give_back(&self, pipe: Pipe, stats: &Block) {
        if let Ok(mut idle) = self.idle.lock()
            && idle.len() < IDLE_MOST
        {
            idle.push(pipe);
            return;
        }
        Self::discard(pipe, stats);
    }

    /// Closes a pipe, with whatever it holds.
    pub(crate) fn discard(pipe: Pipe, stats: &Block) {
        for end in [pipe.read, pipe.write] {
            crate::table::release(end);
            sys::close(end);
        }
        stats.down(Gauge::PipesOpen, 1);
    }

    /// For the child of a fork: closes the inherited ends without touching the parent's counters.
    pub(crate) fn abandon(&self) {
        for pipe in self.idle.lock().map(|mut idle| core::mem::take(&mut *idle)).unwrap_or_default() {
            sys::close(pipe.read);
            sys::close(pipe.write);
        }
    }
}

/// Programs size tables by descriptor and expect theirs to be low, so ours start in the upper half of what is allowed,
/// but not above 16384, because the kernel's own table grows with the number.
fn descriptor_floor() -> i32 {
    i32::try_from((sys::descriptor_limit() / 2).min(16_384)).unwrap_or(512)
}
