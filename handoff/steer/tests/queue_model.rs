//! Every interleaving of producers and the device's thread, up to three preemptions: when a withdrawal returns, the
//! device does not have the rule, and never gets it afterwards.

#[allow(dead_code, reason = "the model uses a part")]
#[path = "../src/queue.rs"]
mod queue;

/// What `src/queue.rs` takes its locks from.
mod sync {
    pub use loom::sync::{Condvar, Mutex, MutexGuard};
}

use std::collections::HashSet;

use loom::sync::{Arc, Mutex};
use loom::thread;
use queue::{Queue, Refused, Withdrawn, Work};

type Device = Arc<Mutex<HashSet<u8>>>;

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// The device's thread, as `src/slow.rs` has it.
fn consumer(queue: &Arc<Queue<u8, ()>>, device: &Device) -> thread::JoinHandle<()> {
    let (queue, device) = (Arc::clone(queue), Arc::clone(device));
    thread::spawn(move || {
        while let Some(work) = queue.next() {
            // The device works without the queue's lock: this is where the race would be.
            thread::yield_now();
            match work {
                Work::Insert(key, ()) => assert!(device.lock().unwrap().insert(key), "twice in the device"),
                Work::Remove(key) => assert!(device.lock().unwrap().remove(&key), "removed what is not there"),
            }
            queue.done(&work, true);
        }
    })
}

#[test]
fn a_withdrawn_rule_is_gone() {
    model(|| {
        let queue = Arc::new(Queue::new(2));
        let device: Device = Arc::default();
        let thread = consumer(&queue, &device);
        queue.insert(1, ()).unwrap();
        let withdrawn = queue.withdraw(&1);
        assert!(matches!(withdrawn, Withdrawn::Cancelled | Withdrawn::Removed));
        assert!(device.lock().unwrap().is_empty(), "{withdrawn:?}");
        queue.close();
        thread.join().unwrap();
        assert!(device.lock().unwrap().is_empty(), "a stale rule has landed after it was {withdrawn:?}");
    });
}

#[test]
fn a_rule_that_is_set_anew_is_not_confused_with_the_old_one() {
    model(|| {
        let queue = Arc::new(Queue::new(2));
        let device: Device = Arc::default();
        let thread = consumer(&queue, &device);
        queue.insert(1, ()).unwrap();
        queue.withdraw(&1);
        queue.insert(1, ()).unwrap();
        queue.withdraw(&1);
        assert!(device.lock().unwrap().is_empty());
        queue.close();
        thread.join().unwrap();
        assert!(device.lock().unwrap().is_empty());
    });
}

#[test]
fn two_threads_withdraw_the_same_rule() {
    model(|| {
        let queue = Arc::new(Queue::new(2));
        let device: Device = Arc::default();
        let thread = consumer(&queue, &device);
        queue.insert(1, ()).unwrap();
        let other = {
            let (queue, device) = (Arc::clone(&queue), Arc::clone(&device));
            thread::spawn(move || {
                queue.withdraw(&1);
                assert!(device.lock().unwrap().is_empty());
            })
        };
        queue.withdraw(&1);
        assert!(device.lock().unwrap().is_empty());
        other.join().unwrap();
        queue.close();
        thread.join().unwrap();
    });
}

#[test]
fn closing_empties_the_device() {
    model(|| {
        let queue = Arc::new(Queue::new(1));
        let device: Device = Arc::default();
        let thread = consumer(&queue, &device);
        queue.insert(1, ()).unwrap();
        let second = queue.insert(2, ());
        assert!(matches!(second, Ok(()) | Err(Refused::Full)));
        queue.close();
        thread.join().unwrap();
        assert!(device.lock().unwrap().is_empty());
        assert_eq!(queue.insert(3, ()), Err(Refused::Closed));
    });
}
