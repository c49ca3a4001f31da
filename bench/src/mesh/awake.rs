//! A virtual CPU that sleeps takes tens of microseconds to wake up, at each of many steps of a request. Whoever compares
//! data planes does not want to measure that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use underdeck_lab::place::Place;
use underdeck_lab::wait;

/// For threads that have ended to be gone.
const GONE: Duration = Duration::from_secs(5);

/// Threads that run when nobody else wants to (SCHED_IDLE), so that CPUs do not sleep, as with `idle=poll`. Dropping it
/// ends them.
pub struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    group: Option<IdleGroup>,
}

/// A control group of idle threads. Without it, a thread's priority holds only within its session (autogroup), and
/// threads of the kernel, which belong to none, would have to wait for it as for any other program.
struct IdleGroup {
    folder: PathBuf,
    threads: PathBuf,
}

impl IdleGroup {
    /// None: there are no control groups for CPU time (version 1, or a `cpu` controller at the root of version 2).
    fn new() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        mounts.lines().find_map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let (place, kind, options) = (words.get(1)?, *words.get(2)?, words.get(3)?);
            let is_v2 = kind == "cgroup2";
            let is_v1 = kind == "cgroup" && options.split(',').any(|option| option == "cpu");
            if !is_v1 && !is_v2 {
                return None;
            }
            let folder = Path::new(place).join(format!("ud-awake-{}-0", std::process::id()));
            std::fs::create_dir(&folder).ok()?;
            let threads = folder.join(if is_v2 { "cgroup.threads" } else { "tasks" });
            // From here on the folder goes again if it is of no use.
            let group = Self { folder, threads };
            if is_v2 {
                std::fs::write(group.folder.join("cgroup.type"), "threaded").ok()?;
            }
            std::fs::write(group.folder.join("cpu.idle"), "1").ok()?;
            Some(group)
        })
    }
}

impl Drop for IdleGroup {
    fn drop(&mut self) {
        // Its threads have ended, but the kernel may not have put them away yet.
        let gone = wait::until("the group is empty", GONE, || std::fs::remove_dir(&self.folder).ok());
        if let Err(error) = gone {
            eprintln!("{}: {error}", self.folder.display());
        }
    }
}

impl Awake {
    /// Begins, on these CPUs.
    pub fn keep(cpus: &[usize]) -> Self {
        let (stop, group) = (Arc::new(AtomicBool::new(false)), IdleGroup::new());
        if group.is_none() {
            eprintln!(
                "threads of the kernel wait for those that keep CPUs awake: figures of underdeck-tcp will say little"
            );
        }
        let thread = |cpu: &usize| {
            let (stop, place) = (stop.clone(), Place::on(&[*cpu]));
            let threads = group.as_ref().map(|group| group.threads.clone());
            std::thread::spawn(move || {
                let parameters = libc::sched_param { sched_priority: 0 };
                // SAFETY: a structure that outlives the call, of the calling thread.
                let idle = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } == 0;
                if let Some(threads) = threads
                    && let Err(error) = std::fs::write(&threads, rustix::thread::gettid().as_raw_pid().to_string())
                {
                    eprintln!("{}: {error}", threads.display());
                }
                // With any other priority it would take time from those that are measured.
                if idle && place.enter().is_ok() {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            })
        };
        let threads = cpus.iter().map(thread).collect();
        Self { stop, threads, group }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic.
            let _ = thread.join();
        }
        drop(self.group.take());
    }
}
