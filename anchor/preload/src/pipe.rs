//! Pipes: where anchored payload lies.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Mutex;

use syscalls::Errno;
use underdeck_stats::{Block, Gauge};

use crate::sys;

/// Capacity that a pipe is given when it is made: 64 slots. A slot holds one contiguous piece of what was received: 1448
/// bytes of it on an ordinary network, up to 32 KiB on loopback.
const BYTES_AT_FIRST: usize = 256 << 10;
/// Capacity after the pipe was full once.
const BYTES_GROWN: usize = 1 << 20;
/// Below this many bytes of capacity (slots × page size) a pipe is not worth having: an unprivileged user over
/// `fs.pipe-user-pages-soft` gets pipes of two slots.
const LEAST_BYTES: usize = 8 * 4096;
/// Seconds for which nobody asks again after a pipe was denied: to make one and to find it too small costs more than a copy.
const DENIED_S: u64 = 1;
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

/// Pipes of one anchor at most. An ordinary user's pipe takes 256 slots, 1 MiB of file pages.
const CHAIN_MOST: usize = 16;

/// The pipes of one anchor, in the order in which they were filled.
#[derive(Default)]
pub(crate) struct Chain(VecDeque<Held>);

struct Held {
    pipe: Pipe,
    bytes: usize,
}

impl Chain {
    pub(crate) fn new(pipe: Pipe) -> Self {
        Self(VecDeque::from([Held { pipe, bytes: 0 }]))
    }

    /// Whether it stands for an open anchor.
    pub(crate) fn is_open(&self) -> bool {
        !self.0.is_empty()
    }

    /// Moves up to `len` bytes from a socket into the last pipe. `EAGAIN`: the socket is empty or the pipe is full.
    pub(crate) fn fill(&mut self, from: i32, len: usize) -> sys::Result<usize> {
        let last = self.0.back_mut().ok_or(Errno::EBADF)?;
        let n = sys::splice(from, last.pipe.write, len, false)?;
        last.bytes += n;
        Ok(n)
    }

    /// Whether the last pipe may have no slot left.
    pub(crate) fn may_be_full(&self) -> bool {
        self.0.back().is_some_and(|last| last.bytes > 0)
    }

    /// Makes room when the last pipe is full.
    pub(crate) fn grow(&mut self, pool: &Pool, stats: &Block) -> bool {
        if self.0.back_mut().is_some_and(|last| last.pipe.grow()) {
            return true;
        }
        if self.0.len() >= CHAIN_MOST {
            return false;
        }
        let more = pool.take(stats);
        let made = more.is_some();
        self.0.extend(more.map(|pipe| Held { pipe, bytes: 0 }));
        made
    }

    /// Moves up to `len` of the oldest bytes to a socket.
    pub(crate) fn forward(
        &mut self,
        to: i32,
        len: usize,
        more: bool,
        pool: &Pool,
        stats: &Block,
    ) -> sys::Result<usize> {
        let first = self.first(pool, stats)?;
        let n = sys::splice(first.pipe.read, to, len.min(first.bytes), more || len > first.bytes)?;
        first.bytes -= n;
        Ok(n)
    }

    /// Copies up to `len` of the oldest bytes.
    ///
    /// # Safety
    /// `to` must be valid for writes of `len` bytes.
    pub(crate) unsafe fn read(&mut self, to: *mut u8, len: usize, pool: &Pool, stats: &Block) -> sys::Result<usize> {
        let first = self.first(pool, stats)?;
        // SAFETY: promised by the caller.
        let n = unsafe { sys::read(first.pipe.read, to, len.min(first.bytes)) }?;
        first.bytes -= n;
        Ok(n)
    }

    /// Gives all pipes back; those that hold something are closed.
    pub(crate) fn close(&mut self, pool: &Pool, stats: &Block) {
        for held in core::mem::take(&mut self.0) {
            if held.bytes == 0 { pool.give_back(held.pipe, stats) } else { Pool::discard(held.pipe, stats) }
        }
    }

    /// For the child of a fork.
    pub(crate) fn abandon(&mut self) {
        for held in core::mem::take(&mut self.0) {
            sys::close(held.pipe.read);
            sys::close(held.pipe.write);
        }
    }

    /// The first pipe that holds something; empty ones before it go back.
    fn first(&mut self, pool: &Pool, stats: &Block) -> sys::Result<&mut Held> {
        while self.0.len() > 1 && self.0.front().is_some_and(|held| held.bytes == 0) {
            if let Some(held) = self.0.pop_front() {
                pool.give_back(held.pipe, stats);
            }
        }
        self.0.front_mut().filter(|held| held.bytes > 0).ok_or(Errno::EIO)
    }
}

/// The pipes of the process that hold nothing at the moment.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Pipe>>,
    /// The second until which no new pipe is asked for, because there was none to be had.
    denied_until: AtomicU64,
}

impl Pool {
    /// An empty pipe, or none when descriptors or the user's share of pipe pages are used up.
    pub(crate) fn take(&self, stats: &Block) -> Option<Pipe> {
        if let Some(pipe) = self.idle.lock().ok()?.pop() {
            return Some(pipe);
        }
        let denied_until = self.denied_until.load(Ordering::Relaxed);
        if denied_until != 0 && sys::seconds() < denied_until {
            return None;
        }
        let pipe = Self::make();
        let until = if pipe.is_none() { sys::seconds() + DENIED_S } else { 0 };
        self.denied_until.store(until, Ordering::Relaxed);
        stats.up(Gauge::PipesOpen, u64::from(pipe.is_some()));
        pipe
    }

    fn make() -> Option<Pipe> {
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
        // A lock that another thread of the parent held at the fork is never released here.
        let Ok(mut idle) = self.idle.try_lock() else { return };
        for pipe in core::mem::take(&mut *idle) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_of_a_fork_does_not_wait_for_a_thread_that_it_does_not_have() {
        let pool = Pool::default();
        let (read, write) = sys::pipe().expect("a pipe");
        pool.idle.lock().expect("free").push(Pipe { read, write, grown: false });
        let held = pool.idle.lock().expect("free");
        pool.abandon();
        drop(held);
        pool.abandon();
        assert!(sys::pipe_bytes(read).is_err(), "closed when the lock is free");
    }
}
