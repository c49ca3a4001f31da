//! A control group of version 2 as a guard: what runs in it ends with it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::error::While;
use crate::process::signal_pid;
use crate::{LabError, proc, wait};

/// For processes that were killed to be gone.
const GRACE: Duration = Duration::from_secs(5);

/// A control group. Dropping it kills what is in it, and removes it.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

/// Where control groups of version 2 are mounted.
fn root() -> Result<PathBuf, LabError> {
    let mounts = fs::read_to_string("/proc/mounts").doing(|| "read /proc/mounts".to_owned())?;
    let mount =
        mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words.get(2) == Some(&"cgroup2"));
    let none = || std::io::Error::new(std::io::ErrorKind::NotFound, "control groups of version 2 are not mounted");
    let mount = mount.and_then(|words| words.get(1).copied()).ok_or_else(none);
    mount.map(PathBuf::from).doing(|| "find control groups".to_owned())
}

/// A run that was killed could not remove its groups, but what ran in them has ended with it.
fn remove_stale(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ours = name.to_str().and_then(|name| name.strip_prefix("ud-")?.rsplit('-').nth(1)?.parse().ok());
        if ours.is_some_and(|pid: u32| !proc::alive(pid)) {
            // Only if it is empty.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Group {
    /// Makes one. The name holds this process's number, so that several runs do not collide.
    pub fn new(name: &str) -> Result<Self, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = root()?;
        remove_stale(&root);
        let path = root.join(format!("ud-{name}-{}-{number}", std::process::id()));
        fs::create_dir(&path).doing(|| format!("make the control group {}", path.display()))?;
        Ok(Self { path })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets whatever `command` becomes run in it.
    pub fn apply(&self, command: &mut Command) -> Result<(), LabError> {
        let procs = self.path.join("cgroup.procs");
        let what = || format!("enter {}", procs.display());
        let path = std::ffi::CString::new(procs.as_os_str().as_bytes()).doing(what)?;
        // SAFETY: open, write and close are async-signal-safe, and the closure owns the path.
        unsafe {
            command.pre_exec(move || {
                let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                let written = libc::write(file, c"0".as_ptr().cast(), 1);
                let error = std::io::Error::last_os_error();
                libc::close(file);
                if written == 1 { Ok(()) } else { Err(error) }
            });
        }
        Ok(())
    }

    /// Processes in it.
    pub fn pids(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn clear(&self) -> Result<(), LabError> {
        let what = format!("{} is empty and gone", self.path.display());
        wait::until(what, GRACE, || {
            for pid in self.pids() {
                // It may have ended in between.
                let _ = signal_pid(pid, Signal::KILL);
            }
            fs::remove_dir(&self.path).ok()
        })
    }

    /// Kills what is in it and removes it.
    pub fn remove(self) -> Result<(), LabError> {
        self.clear()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.path.exists() {
            // There is nobody to tell.
            let _ = self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_it_goes_with_it() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: control groups need root");
        }
        let group = Group::new("test").expect("root makes control groups");
        let (path, mut command) = (group.path().to_owned(), Command::new("sleep"));
        command.arg("100");
        group.apply(&mut command).expect("a path");
        let mut child = command.spawn().expect("sleep starts");
        assert_eq!(group.pids(), [child.id()]);
        // Nobody reaps the child while the group waits for it.
        let reaper = std::thread::spawn(move || child.wait());
        group.remove().expect("removed");
        assert!(!path.exists() && reaper.join().expect("no panic").is_ok_and(|status| !status.success()));
    }
}
