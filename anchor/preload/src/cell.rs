//! One connection that several threads may use.

use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::socket::Socket;
use crate::watch;

/// One connection, behind a lock. Cells are used again, never freed.
pub(crate) struct Cell(Mutex<Option<Socket>>);

// The promise is 256 bytes for an idle connection: this, the lock and the entries in the tables.
const _: () = assert!(size_of::<Cell>() + size_of::<usize>() + watch::BYTES <= 256);

impl Cell {
    pub(crate) const fn placeholder() -> Self {
        Self(Mutex::new(None))
    }

    /// Puts a connection into an unused cell; false if the cell was broken by a panic.
    pub(crate) fn occupy(&self, fd: i32, mut socket: Socket) -> bool {
        let Ok(mut slot) = self.0.lock() else { return false };
        socket.fd = fd;
        *slot = Some(socket);
        true
    }

    /// Runs `then` on the connection, unless it is not that of `fd` any more.
    pub(crate) fn with<T>(&self, fd: i32, then: impl FnOnce(&mut Socket) -> T) -> Option<T> {
        let mut guard = self.lock()?;
        let socket = guard.as_mut()?;
        if socket.fd != fd {
            if socket.aliases == 0 {
                return None;
            }
            // One of several: what it is by now, the kernel says.
            socket.fd = fd;
        }
        Some(then(socket))
    }

    /// Whether somebody is at work on it: perhaps this thread, which a signal has interrupted.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.0.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Takes the connection out.
    pub(crate) fn vacate(&self) -> Option<Socket> {
        self.lock()?.take()
    }

    fn lock(&self) -> Option<MutexGuard<'_, Option<Socket>>> {
        self.0.lock().ok()
    }
}
