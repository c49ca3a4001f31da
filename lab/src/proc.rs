//! What `/proc` says of processes: who belongs to whom, CPU time, descriptors.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Nanoseconds of one clock tick: USER_HZ is 100 in the ABI of every Linux architecture that the lab runs on.
const TICK: Duration = Duration::from_millis(10);

/// All processes of a process group, zombies left out, in ascending order.
pub fn of_group(group: u32) -> Vec<u32> {
    let mut found: Vec<u32> = all().filter(|pid| stat(*pid).is_some_and(|s| s.group == group && !s.zombie)).collect();
    found.sort_unstable();
    found
}

/// The living children of a process, in ascending order.
pub fn children(parent: u32) -> Vec<u32> {
    let mut found: Vec<u32> = all().filter(|pid| stat(*pid).is_some_and(|s| s.parent == parent && !s.zombie)).collect();
    found.sort_unstable();
    found
}

/// Whether the process exists and is not a zombie.
pub fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|s| !s.zombie)
}

/// Whether the process's first thread sleeps in the kernel and can be woken by a signal.
pub fn sleeps(pid: u32) -> bool {
    stat(pid).is_some_and(|s| s.sleeps)
}

fn all() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

struct Stat {
    parent: u32,
    group: u32,
    zombie: bool,
    sleeps: bool,
    user: Duration,
    user_and_system: Duration,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything, parentheses too.
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let user = fields.get(11)?.parse::<u32>().ok()?;
    let ticks = user + fields.get(12)?.parse::<u32>().ok()?;
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        sleeps: *fields.first()? == "S",
        user: TICK * user,
        user_and_system: TICK * ticks,
    })
}

/// CPU time that all threads of a process have used, user and system.
///
/// `schedstat` counts nanoseconds; where the kernel lacks it, `utime + stime` of `stat` in ticks.
pub fn cpu(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let precise: Option<u64> = tasks
        .map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_ascii_whitespace().next()?.parse::<u64>().ok()
        })
        .sum();
    match precise {
        Some(ns) if ns > 0 => Duration::from_nanos(ns),
        _ => stat(pid).map_or(Duration::ZERO, |s| s.user_and_system),
    }
}

/// The kernel's threads that handle softirqs of these CPUs when there are too many for an interrupt (`ksoftirqd/N`). None where
/// the kernel's threads are not to be seen, in a container for instance.
pub fn softirq_threads(cpus: &[usize]) -> Vec<u32> {
    let wanted: Vec<String> = cpus.iter().map(|cpu| format!("ksoftirqd/{cpu}")).collect();
    // All of them are children of kthreadd.
    let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    children(2).into_iter().filter(|pid| wanted.iter().any(|it| it == name(pid).trim_end())).collect()
}

/// How long the busiest thread of a process ran, and how long it was ready and waited for a CPU.
///
/// Both together, over the time that went by, say whether the thread could have done more: 1 is saturated. (Of a thread
/// that waits, somebody else has the CPU: it is still the limit.) Of `threads` it is the one with the largest growth
/// that counts, so all of them are given, by thread id. Empty where the kernel has no `schedstat`.
pub fn ready(pid: u32) -> BTreeMap<u32, Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let read = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let both = text.split_ascii_whitespace().take(2).map(|ns| ns.parse::<u64>().ok()).sum::<Option<u64>>()?;
        Some((task.file_name().to_str()?.parse().ok()?, Duration::from_nanos(both)))
    };
    tasks.filter_map(read).collect()
}

/// Voluntary and involuntary context switches of all threads of a process.
pub fn switches(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |text: String| -> u64 {
        let lines = text.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        lines.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
    };
    tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok()).map(of).sum()
}

/// User and system CPU time of a process, in clock ticks of 10 ms.
pub fn user_and_system(pid: u32) -> (Duration, Duration) {
    stat(pid).map_or_else(Default::default, |s| (s.user, s.user_and_system - s.user))
}

/// What CPUs did since the machine started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Everything, idle time too.
    pub all: u64,
    /// Handling softirqs: network traffic, mostly.
    pub softirq: u64,
}

/// The time of some CPUs; of all if none are given.
pub fn cpu_time(cpus: &[usize]) -> CpuTime {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let mut sum = CpuTime::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next().and_then(|name| name.strip_prefix("cpu")).and_then(|number| number.parse().ok());
        if cpu.is_some_and(|cpu| cpus.is_empty() || cpus.contains(&cpu)) {
            // user nice system idle iowait irq softirq steal; what follows is part of user already.
            let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
            sum.all += ticks.iter().sum::<u64>();
            sum.softirq += ticks.get(6).copied().unwrap_or(0);
        }
    }
    sum
}

/// Descriptors of a process, counted by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Sockets of any family.
    pub sockets: usize,
    /// Ends of pipes.
    pub pipes: usize,
    /// memfds and other deleted files in memory, by name.
    pub memfds: BTreeMap<String, usize>,
    /// Files on disk that were deleted (temp files).
    pub deleted: usize,
    /// Everything else.
    pub others: usize,
}

/// Counts the descriptors of a process. An empty census if it is gone.
pub fn census(pid: u32) -> Census {
    let mut census = Census::default();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy();
        if target.starts_with("socket:") {
            census.sockets += 1;
        } else if target.starts_with("pipe:") {
            census.pipes += 1;
        } else if let Some(name) = target.strip_prefix("/memfd:") {
            *census.memfds.entry(name.trim_end_matches(" (deleted)").to_owned()).or_default() += 1;
        } else if target.ends_with(" (deleted)") {
            census.deleted += 1;
        } else {
            census.others += 1;
        }
    }
    census
}

/// Whether a file is mapped into a process: tells if the preload library is really in it.
pub fn maps(pid: u32, file: &Path) -> bool {
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else { return false };
    std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(name))
}

/// Resident memory of a process in bytes (`VmRSS`).
pub fn resident(pid: u32) -> u64 {
    status_bytes(pid, "VmRSS:")
}

/// The most memory of a process that was resident at once, in bytes (`VmHWM`), since [`reset_peak`].
pub fn resident_peak(pid: u32) -> u64 {
    status_bytes(pid, "VmHWM:")
}

/// Begins a new peak of resident memory. Where the kernel does not let us, the peak is that of the process's life.
pub fn reset_peak(pid: u32) {
    let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

fn status_bytes(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_cpus_adds_up() {
        let (one, all) = (cpu_time(&[0]), cpu_time(&[]));
        assert!(one.all > 0 && one.softirq <= one.all && one.all <= all.all);
        assert_eq!(cpu_time(&[99_999]), CpuTime::default());
    }

    #[test]
    fn the_thread_for_softirqs_is_found_where_the_kernels_threads_are_seen() {
        let names = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if names(2).trim_end() != "kthreadd" {
            eprintln!("SKIPPED: no threads of the kernel in this PID namespace");
            return;
        }
        let found: Vec<String> = softirq_threads(&[0]).into_iter().map(names).collect();
        assert_eq!(found, ["ksoftirqd/0\n"]);
        assert!(softirq_threads(&[99_999]).is_empty());
    }

    #[test]
    fn this_process_is_seen() {
        let me = std::process::id();
        assert!(alive(me));
        assert!(resident(me) > 0 && resident_peak(me) >= resident(me));
        assert!(switches(me) > 0 && ready(me).contains_key(&me));
        let before = census(me);
        let pipe = std::io::pipe();
        assert!(pipe.is_ok());
        assert!(census(me).pipes >= before.pipes + 2 || before.pipes > 0);
        let start = cpu(me);
        let mut x = 0u64;
        while cpu(me) < start + Duration::from_millis(20) {
            x = x.wrapping_add(1);
        }
        assert!(x > 0);
    }
}
