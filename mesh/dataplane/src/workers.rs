//! The priority of the kernel's threads that put what comes by TCP into the sockets of applications (`sk_psock_backlog`).
//! They belong to a queue that all of the kernel shares, so nobody changes it unless the configuration says so.

use std::collections::BTreeSet;
use std::io;

/// All kernel threads are children of this one.
const KTHREADD: &str = "/proc/2/task/2/children";

/// The threads whose priority was changed. It is put back when this is dropped.
#[derive(Default)]
pub(crate) struct Workers {
    changed: BTreeSet<u32>,
    nice: i32,
}

impl Workers {
    /// Gives them a nice value; 0: the kernel's own. The kernel makes new threads and ends old ones: call it again and
    /// again.
    pub(crate) fn keep(&mut self, nice: i32) -> io::Result<()> {
        if nice != self.nice {
            self.put_back();
            self.nice = nice;
        }
        if nice == 0 {
            return Ok(());
        }
        let all = workers()?;
        self.changed.retain(|pid| all.contains(pid));
        for pid in all {
            if self.changed.insert(pid) {
                set(pid, nice)?;
            }
        }
        Ok(())
    }

    fn put_back(&mut self) {
        let all = workers().unwrap_or_default();
        for pid in std::mem::take(&mut self.changed).intersection(&all) {
            // It may have ended meanwhile.
            let _ = set(*pid, 0);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.put_back();
    }
}

fn set(pid: u32, nice: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, pid, nice) };
    let error = io::Error::last_os_error();
    if result == 0 || error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) }
}

/// Those that are bound to a CPU and have no other priority by themselves.
fn workers() -> io::Result<BTreeSet<u32>> {
    let text = std::fs::read_to_string(KTHREADD)?;
    let pids = text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    let is_worker = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| is_bound(&name));
    Ok(pids.filter(is_worker).collect())
}

/// `kworker/CPU:NUMBER`, and maybe what it did last. Not `kworker/0:1H`, `kworker/u8:2`, `kworker/R-name`.
fn is_bound(name: &str) -> bool {
    let Some((cpu, rest)) = name.trim_end().strip_prefix("kworker/").and_then(|name| name.split_once(':')) else {
        return false;
    };
    let number = rest.split(['-', '+']).next().unwrap_or_default();
    [cpu, number].iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::is_bound;

    #[test]
    fn only_workers_of_the_common_queue_are_meant() {
        for name in ["kworker/0:1\n", "kworker/12:34-events\n", "kworker/1:0+events"] {
            assert!(is_bound(name), "{name}");
        }
        for name in
            ["kworker/0:1H-kblockd", "kworker/u8:2", "kworker/u8:2-events_unbound", "kworker/R-mld", "ksoftirqd/0", ""]
        {
            assert!(!is_bound(name), "{name}");
        }
    }
}
