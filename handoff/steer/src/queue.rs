//! The cancellable queue before a slow device: insertions wait in line, a withdrawal does not.
//!
//! A rule that is withdrawn while it waits never reaches the device. One that the device is working on is removed right
//! after. Taking a rule out of the line and marking it as being worked on is one step under one lock: between the two
//! there is no moment in which a withdrawal would find nothing, and the rule would land afterwards.
//!
//! ```text
//!            insert            next             done
//!  (absent) ───────> Queued ───────> Installing ─────> Installed
//!     ^                │ withdraw         │ withdraw        │ withdraw
//!     │<───────────────┘                  v                 │
//!     │                              Installing,            │
//!     │          done                to be removed          │
//!     └──────────────── Removing <────────┴─────────────────┘
//! ```
//!
//! The locks come from `crate::sync`, so that the same file is checked by a model checker.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// What the thread of the device does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work<K, V> {
    /// Put this rule into the device.
    Insert(K, V),
    /// Take this rule out of the device.
    Remove(K),
}

/// Why a rule was not put in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many wait as may.
    Full,
    /// It is there already, or being withdrawn.
    Present,
    /// The queue is closed.
    Closed,
}

/// How a withdrawal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// There was no such rule.
    Absent,
    /// It never reached the device.
    Cancelled,
    /// It was in the device, or under way to it, and is not any more.
    Removed,
    /// The device did not remove it.
    Stuck,
}

#[derive(Debug)]
enum State<V> {
    Queued(V),
    Installing { withdrawn: bool },
    Installed,
    Removing,
    Stuck,
}

#[derive(Debug)]
struct Entry<V> {
    /// Tells this life of the key from the next one.
    id: u64,
    state: State<V>,
}

#[derive(Debug)]
struct Inner<K, V> {
    entries: HashMap<K, Entry<V>>,
    insertions: VecDeque<K>,
    removals: VecDeque<K>,
    next_id: u64,
    closed: bool,
}

/// Many threads insert and withdraw; one works on the device.
#[derive(Debug)]
pub struct Queue<K, V> {
    inner: Mutex<Inner<K, V>>,
    changed: Condvar,
    capacity: usize,
}

impl<K: Copy + Eq + Hash, V: Copy> Queue<K, V> {
    /// At most `capacity` rules wait.
    pub fn new(capacity: usize) -> Queue<K, V> {
        let inner = Inner {
            entries: HashMap::new(),
            insertions: VecDeque::new(),
            removals: VecDeque::new(),
            next_id: 0,
            closed: false,
        };
        Queue { inner: Mutex::new(inner), changed: Condvar::new(), capacity }
    }

    /// Puts a rule in line and returns at once.
    pub fn insert(&self, key: K, value: V) -> Result<(), Refused> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(Refused::Closed);
        }
        if inner.entries.contains_key(&key) {
            return Err(Refused::Present);
        }
        if inner.insertions.len() >= self.capacity {
            return Err(Refused::Full);
        }
        let id = inner.next_id;
        inner.next_id += 1;
        inner.entries.insert(key, Entry { id, state: State::Queued(value) });
        inner.insertions.push_back(key);
        self.changed.notify_all();
        Ok(())
    }

    /// Withdraws a rule and returns when it is certain that it is not in the device and will not get there.
    pub fn withdraw(&self, key: &K) -> Withdrawn {
        let mut inner = self.lock();
        let Some(entry) = inner.entries.get_mut(key) else { return Withdrawn::Absent };
        let id = entry.id;
        match &mut entry.state {
            State::Queued(_) => {
                inner.entries.remove(key);
                inner.insertions.retain(|waiting| waiting != key);
                return Withdrawn::Cancelled;
            }
            State::Installing { withdrawn } => *withdrawn = true,
            State::Installed => {
                entry.state = State::Removing;
                inner.removals.push_back(*key);
                self.changed.notify_all();
            }
            State::Removing => {}
            State::Stuck => return Withdrawn::Stuck,
        }
        loop {
            match inner.entries.get(key) {
                Some(entry) if entry.id == id => match entry.state {
                    State::Stuck => return Withdrawn::Stuck,
                    _ => inner = self.wait(inner),
                },
                _ => return Withdrawn::Removed,
            }
        }
    }

    /// For the thread of the device: the next piece of work; removals first. None when the queue is closed and nothing
    /// is left in the device. Each piece must be followed by [`done`](Self::done).
    pub fn next(&self) -> Option<Work<K, V>> {
        let mut inner = self.lock();
        loop {
            if let Some(key) = inner.removals.pop_front() {
                return Some(Work::Remove(key));
            }
            if let Some(key) = inner.insertions.pop_front() {
                let entry = inner.entries.get_mut(&key).expect("what waits has an entry");
                let State::Queued(value) = entry.state else { unreachable!("what waits is queued") };
                entry.state = State::Installing { withdrawn: false };
                return Some(Work::Insert(key, value));
            }
            if inner.closed {
                return None;
            }
            inner = self.wait(inner);
        }
    }

    /// For the thread of the device: how a piece of work ended. A rule that was withdrawn meanwhile is removed next.
    pub fn done(&self, work: &Work<K, V>, succeeded: bool) {
        let mut inner = self.lock();
        let closed = inner.closed;
        let key = match work {
            Work::Insert(key, _) => {
                let Some(entry) = inner.entries.get_mut(key) else { return };
                let withdrawn = matches!(entry.state, State::Installing { withdrawn: true }) || closed;
                match (succeeded, withdrawn) {
                    (true, true) => {
                        entry.state = State::Removing;
                        inner.removals.push_back(*key);
                    }
                    (true, false) => entry.state = State::Installed,
                    (false, _) => _ = inner.entries.remove(key),
                }
                self.changed.notify_all();
                return;
            }
            Work::Remove(key) => key,
        };
        match (succeeded, inner.entries.get_mut(key)) {
            (true, _) => _ = inner.entries.remove(key),
            (false, Some(entry)) => entry.state = State::Stuck,
            (false, None) => {}
        }
        self.changed.notify_all();
    }

    /// Cancels what waits, and has the device emptied.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let waiting = std::mem::take(&mut inner.insertions);
        for key in waiting {
            inner.entries.remove(&key);
        }
        let installed = inner.entries.iter_mut().filter(|(_, entry)| matches!(entry.state, State::Installed));
        let keys: Vec<K> = installed
            .map(|(key, entry)| {
                entry.state = State::Removing;
                *key
            })
            .collect();
        inner.removals.extend(keys);
        self.changed.notify_all();
    }

    /// The device has the rule, for all that is known.
    pub fn is_installed(&self, key: &K) -> bool {
        self.lock().entries.get(key).is_some_and(|entry| matches!(entry.state, State::Installed))
    }

    /// Rules in line, and rules in the device.
    pub fn lengths(&self) -> (usize, usize) {
        let inner = self.lock();
        let installed = inner.entries.values().filter(|entry| matches!(entry.state, State::Installed)).count();
        (inner.insertions.len(), installed)
    }

    /// A thread that panicked has left a consistent state: nothing here panics half-way.
    fn lock(&self) -> MutexGuard<'_, Inner<K, V>> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, Inner<K, V>>) -> MutexGuard<'a, Inner<K, V>> {
        self.changed.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
