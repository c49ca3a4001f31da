//! A virtual CPU that sleeps takes tens of microseconds to wake up, at each of many steps of a request. Whoever compares
//! data planes does not want to measure that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use underdeck_lab::place::Place;

/// Threads that run when nobody else wants to (SCHED_IDLE), so that CPUs do not sleep, as with `idle=poll`. Dropping it
/// ends them.
pub struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Begins, on these CPUs.
    pub fn keep(cpus: &[usize]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = |cpu: &usize| {
            let (stop, place) = (stop.clone(), Place::on(&[*cpu]));
            std::thread::spawn(move || {
                let parameters = libc::sched_param { sched_priority: 0 };
                // SAFETY: a structure that outlives the call, of the calling thread.
                let idle = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } == 0;
                // With any other priority it would take time from those that are measured.
                if idle && place.enter().is_ok() {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            })
        };
        let threads = cpus.iter().map(thread).collect();
        Self { stop, threads }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}
