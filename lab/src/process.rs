//! A program of the lab as a guard: whatever happens to the test, nothing of it is left running.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::While;
use crate::{LabError, proc, wait};

/// How long a program may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(15);

/// A child in a process group of its own. Dropping it kills the group.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stderr: PathBuf,
}

type Order = (Command, Sender<std::io::Result<Child>>);

/// The parent-death signal is sent when the *thread* that forked ends, so one thread that never ends does all forks.
fn spawner() -> Sender<Order> {
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let sender = SPAWNER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in inbox {
                // The asker may have given up: then nobody would own the child, and dropping it here is right.
                if let Err(unsent) = reply.send(command.spawn())
                    && let Ok(mut child) = unsent.0
                {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        });
        Mutex::new(orders)
    });
    sender.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
}

impl Process {
    /// Starts `command` in its own process group, standard error to `dir/NAME.stderr`, standard output to
    /// `dir/NAME.stdout`, and tells the kernel to end it should this process die without cleaning up.
    pub fn spawn(name: &str, dir: &Path, mut command: Command) -> Result<Self, LabError> {
        let stderr = dir.join(format!("{name}.stderr"));
        let stdout = dir.join(format!("{name}.stdout"));
        let open = |path: &Path| File::create(path).doing(|| format!("create {}", path.display()));
        command.stdin(Stdio::null()).stdout(open(&stdout)?).stderr(open(&stderr)?).process_group(0);
        // SAFETY: prctl is async-signal-safe and the closure touches no memory of the parent.
        unsafe {
            command
                .pre_exec(|| rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(Into::into));
        }
        let (reply, answer) = channel();
        let what = || format!("start {name}");
        let gone = |_| std::io::Error::other("the spawning thread is gone");
        spawner().send((command, reply)).map_err(|_| gone(())).doing(what)?;
        let child = answer.recv().map_err(|_| gone(())).doing(what)?.doing(what)?;
        Ok(Self { name: name.to_owned(), child, stderr })
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The first process, which leads the group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Every living process of the group.
    pub fn pids(&self) -> Vec<u32> {
        proc::of_group(self.pid())
    }

    /// CPU time of every living process of the group.
    pub fn cpu(&self) -> Duration {
        self.pids().into_iter().map(proc::cpu).sum()
    }

    /// The end of its standard error.
    pub fn stderr_tail(&self) -> String {
        let text = std::fs::read(&self.stderr).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(4000)..]).into_owned()
    }

    /// Its exit status, if the first process has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal to the first process.
    pub fn signal(&self, signal: Signal) -> Result<(), LabError> {
        signal_pid(self.pid(), signal)
    }

    /// The processes of the group whose parent is not in it: usually the first one; after it was replaced, its heirs.
    pub fn roots(&self) -> Vec<u32> {
        let pids = self.pids();
        let inner: Vec<u32> = pids.iter().flat_map(|pid| proc::children(*pid)).collect();
        pids.into_iter().filter(|pid| !inner.contains(pid)).collect()
    }

    /// Ends the group: SIGTERM to its roots, after a grace period SIGKILL to what is left.
    pub fn stop(mut self) -> Result<(), LabError> {
        for pid in self.roots() {
            // It may have ended by itself; the wait below says.
            let _ = signal_pid(pid, Signal::TERM);
        }
        let group = self.pid();
        let ended = wait::until(format!("{} ends after SIGTERM", self.name), GRACE, || {
            let done = matches!(self.child.try_wait(), Ok(Some(_)));
            (done && proc::of_group(group).is_empty()).then_some(())
        });
        if ended.is_err() {
            let left = proc::of_group(group);
            self.kill();
            let what = format!("processes {left:?} ignored SIGTERM for {GRACE:?}\n{}", self.stderr_tail());
            return Err(LabError::Leftover { name: self.name.clone(), what });
        }
        Ok(())
    }

    fn kill(&mut self) {
        for pid in self.pids() {
            // It may have ended in between.
            let _ = signal_pid(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let group = self.child.id();
        let _ = wait::until("the group is gone", GRACE, || proc::of_group(group).is_empty().then_some(()));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to one process.
pub fn signal_pid(pid: u32, signal: Signal) -> Result<(), LabError> {
    let target = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let what = || format!("signal {signal:?} to process {pid}");
    let target = target.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound)).doing(what)?;
    rustix::process::kill_process(target, signal).doing(what)
}

/// Lets whatever `command` becomes open only so many descriptors.
pub fn limit_descriptors(command: &mut Command, descriptors: u64) {
    let limit = Rlimit { current: Some(descriptors), maximum: Some(descriptors) };
    // SAFETY: setrlimit is async-signal-safe, and the closure owns the limit.
    unsafe {
        command.pre_exec(move || setrlimit(Resource::Nofile, limit).map_err(Into::into));
    }
}

/// Pins whatever `command` becomes, and its children, to the given CPUs. None given: wherever the kernel likes.
pub fn pin(command: &mut Command, cpus: &[usize]) {
    if cpus.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu);
    }
    // SAFETY: sched_setaffinity is async-signal-safe, and the closure owns the set, which lives on its stack.
    unsafe {
        command.pre_exec(move || sched_setaffinity(None, &set).map_err(Into::into));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Process) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        let process = Process::spawn("shell", dir.path(), command).expect("sh starts");
        (dir, process)
    }

    #[test]
    fn grandchildren_are_seen_and_killed() {
        let (_dir, process) = shell("sleep 100 & sleep 100 & wait");
        let within = Duration::from_secs(20);
        let pids = wait::until("three processes", within, || Some(process.pids()).filter(|p| p.len() == 3));
        let pids = pids.expect("three processes");
        drop(process);
        assert!(pids.iter().all(|pid| !proc::alive(*pid)));
    }

    #[test]
    fn one_that_ignores_the_signal_is_reported_and_killed() {
        let (dir, process) = shell("trap '' TERM; echo up >&2; while :; do sleep 0.05; done");
        let pid = process.pid();
        let up = || (!std::fs::read(dir.path().join("shell.stderr")).unwrap_or_default().is_empty()).then_some(());
        wait::until("the trap is set", Duration::from_secs(20), up).expect("the trap is set");
        assert!(matches!(process.stop(), Err(LabError::Leftover { .. })));
        assert!(!proc::alive(pid));
    }
}
