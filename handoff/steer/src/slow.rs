//! The slow tier: a device, such as the flow table of a network card, that carries more packets than a program but takes
//! long to be told about a rule.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::queue::{Queue, Refused, Withdrawn, Work};
use crate::{Counters, Error, Flow, Steer, Target};

/// From this many expected bytes on, a hardware rule is worth its time (XO, section 6.3).
pub const WORTH_BYTES: u64 = 2 << 20;

/// How often a removal that fails is tried.
const REMOVE_ATTEMPTS: usize = 3;

/// What a device said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlowError {
    /// The kernel or the card cannot do it at all.
    #[error("no hardware rules here: {0}")]
    Unsupported(String),
    /// This rule failed.
    #[error("the rule was refused: {0}")]
    Refused(String),
}

/// A device with a flow table. Only one thread calls it.
pub trait SlowTier: Send {
    /// Redirects packets of the flow's peer to `target`. May take milliseconds. Must leave nothing behind on an error.
    ///
    /// # Errors
    /// If the device refuses.
    fn insert(&mut self, flow: &Flow, target: &Target) -> Result<(), SlowError>;

    /// Takes the rule of the flow back. When this returns, no packet is redirected any more.
    ///
    /// # Errors
    /// If the device refuses.
    fn remove(&mut self, flow: &Flow) -> Result<(), SlowError>;
}

#[derive(Debug, Default)]
struct Tally {
    installed: AtomicU64,
    cancelled: AtomicU64,
    refused: AtomicU64,
    full: AtomicU64,
}

/// What the slow tier has done since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowCounters {
    /// Rules that the device took.
    pub installed: u64,
    /// Rules that were withdrawn before the device saw them.
    pub cancelled: u64,
    /// Rules that the device refused.
    pub refused: u64,
    /// Rules for which there was no room in the queue.
    pub full: u64,
    /// Rules that wait now.
    pub waiting: u64,
    /// Rules in the device now.
    pub present: u64,
}

/// A device with its queue and its thread.
pub struct Slow {
    queue: Arc<Queue<Flow, Target>>,
    tally: Arc<Tally>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slow").field("counters", &self.counters()).finish()
    }
}

impl Slow {
    /// Starts the device's thread. At most `waiting` rules wait for it: with a device that takes 2 ms for a rule, 16 of
    /// them mean that a rule is at most about 32 ms late.
    pub fn start(mut tier: Box<dyn SlowTier>, waiting: usize) -> Slow {
        let queue: Arc<Queue<Flow, Target>> = Arc::new(Queue::new(waiting));
        let tally = Arc::new(Tally::default());
        let (work, count) = (Arc::clone(&queue), Arc::clone(&tally));
        let thread = std::thread::spawn(move || {
            while let Some(piece) = work.next() {
                let succeeded = run(tier.as_mut(), &piece, &count);
                work.done(&piece, succeeded);
            }
        });
        Slow { queue, tally, thread: Some(thread) }
    }

    /// Asks for a rule and returns at once. False if it stays with the fast tier, because too many wait.
    pub fn insert(&self, flow: &Flow, target: &Target) -> bool {
        match self.queue.insert(*flow, *target) {
            Ok(()) | Err(Refused::Present) => true,
            Err(Refused::Full) => {
                self.tally.full.fetch_add(1, Ordering::Relaxed);
                false
            }
            Err(Refused::Closed) => false,
        }
    }

    /// Returns when the device does not have the rule and will not get it. False if the device failed to remove it.
    pub fn withdraw(&self, flow: &Flow) -> bool {
        match self.queue.withdraw(flow) {
            Withdrawn::Cancelled => _ = self.tally.cancelled.fetch_add(1, Ordering::Relaxed),
            Withdrawn::Absent | Withdrawn::Removed => {}
            Withdrawn::Stuck => return false,
        }
        true
    }

    /// The device has the rule.
    pub fn is_installed(&self, flow: &Flow) -> bool {
        self.queue.is_installed(flow)
    }

    /// What was done so far.
    pub fn counters(&self) -> SlowCounters {
        let (waiting, present) = self.queue.lengths();
        SlowCounters {
            installed: self.tally.installed.load(Ordering::Relaxed),
            cancelled: self.tally.cancelled.load(Ordering::Relaxed),
            refused: self.tally.refused.load(Ordering::Relaxed),
            full: self.tally.full.load(Ordering::Relaxed),
            waiting: waiting as u64,
            present: present as u64,
        }
    }
}

impl Drop for Slow {
    /// Empties the device.
    fn drop(&mut self) {
        self.queue.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(tier: &mut dyn SlowTier, piece: &Work<Flow, Target>, tally: &Tally) -> bool {
    match piece {
        Work::Insert(flow, target) => {
            let succeeded = tier.insert(flow, target).is_ok();
            let counter = if succeeded { &tally.installed } else { &tally.refused };
            counter.fetch_add(1, Ordering::Relaxed);
            succeeded
        }
        Work::Remove(flow) => (0..REMOVE_ATTEMPTS).any(|_| tier.remove(flow).is_ok()),
    }
}

/// Both tiers: every redirection is fast at first, and those that are worth it move to the device when it is ready.
#[derive(Debug)]
pub struct Tiers {
    steer: Steer,
    slow: Option<Slow>,
    worth_bytes: u64,
}

impl Tiers {
    /// `slow` gets the flows of which at least `worth_bytes` are expected ([`WORTH_BYTES`] is the paper's rule).
    pub fn new(steer: Steer, slow: Option<Slow>, worth_bytes: u64) -> Tiers {
        Tiers { steer, slow, worth_bytes }
    }

    /// The fast tier, for all but redirections.
    pub fn steer(&self) -> &Steer {
        &self.steer
    }

    /// The slow tier.
    pub fn slow(&self) -> Option<&Slow> {
        self.slow.as_ref()
    }

    /// Redirects at once, and asks the device too if at least so many bytes are expected. Unknown counts as few.
    ///
    /// # Errors
    /// Those of [`Steer::redirect`].
    pub fn redirect(&self, flow: &Flow, target: &Target, expected_bytes: Option<u64>) -> Result<(), Error> {
        self.steer.redirect(flow, target)?;
        if let Some(slow) = &self.slow
            && expected_bytes.is_some_and(|bytes| bytes >= self.worth_bytes)
        {
            slow.insert(flow, target);
        }
        Ok(())
    }

    /// Ends a redirection in both tiers, the device first: when this returns, packets reach this host's sockets.
    ///
    /// # Errors
    /// Those of [`Steer::remove_ingress`]; [`Error::DeviceRule`] if the device keeps the rule.
    pub fn remove_ingress(&self, flow: &Flow) -> Result<Option<Counters>, Error> {
        let withdrawn = self.slow.as_ref().is_none_or(|slow| slow.withdraw(flow));
        let counters = self.steer.remove_ingress(flow)?;
        if withdrawn { Ok(counters) } else { Err(Error::DeviceRule(*flow)) }
    }
}
