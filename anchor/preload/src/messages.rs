//! Messages that connections are at work on: what was anchored of them is not dropped because nothing of it was sent lately.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers of messages, and how many connections are at work on each.
pub(crate) struct Messages(Mutex<BTreeMap<u32, u32>>);

/// Such as are being received, and requests that were received and not answered: the rest is bound to be asked for.
pub(crate) static RECEIVED: Messages = Messages::new();
/// Such as a connection has begun to send: the rest cannot leave elsewhere.
pub(crate) static SENT: Messages = Messages::new();

impl Messages {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// A connection begins with a message.
    pub(crate) fn enter(&self, message: u32) {
        *self.lock().entry(message).or_default() += 1;
    }

    /// A connection that has begun with it goes on to another one, or is closed.
    pub(crate) fn leave(&self, message: u32) {
        let mut all = self.lock();
        if let Some(count) = all.get_mut(&message) {
            *count -= 1;
            if *count == 0 {
                all.remove(&message);
            }
        }
    }

    /// Whether any connection is at work on it.
    pub(crate) fn has(&self, message: u32) -> bool {
        self.lock().contains_key(&message)
    }

    /// For the child of a fork.
    pub(crate) fn forget_all(&self) {
        // A lock that another thread of the parent held at the fork is never released here.
        if let Ok(mut all) = self.0.try_lock() {
            all.clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
