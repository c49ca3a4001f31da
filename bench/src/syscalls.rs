//! System calls of a subject per MiB of payload, counted by `strace -c` in a pass of its own: it slows its subject down,
//! so nothing else is measured in that pass, and what depends on timing (how much one call finds to move) differs a
//! little from the undisturbed run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use underdeck_lab::load::{Load, Source};
use underdeck_lab::process::{Process, signal_pid};
use underdeck_lab::{LabError, wait};

use crate::subject::Subject;

const ATTACHED: Duration = Duration::from_secs(5);

/// Calls by name, per MiB of payload.
pub type PerMib = BTreeMap<String, f64>;

/// Whether `strace` is there and may trace.
pub fn available() -> bool {
    Command::new("strace").args(["-c", "-o", "/dev/null", "true"]).output().is_ok_and(|it| it.status.success())
}

/// Puts `load` on the subject under strace.
pub fn count(subject: &Subject, load: &Load, source: &Source) -> Result<PerMib, LabError> {
    let failed = |what: &str, error| LabError::Io { what: what.to_owned(), error };
    let dir = tempfile::tempdir().map_err(|error| failed("create a temporary directory", error))?;
    let summary = dir.path().join("summary");
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-U", "name,calls", "-o"]).arg(&summary);
    let pids = subject.workers();
    for pid in &pids {
        command.arg("-p").arg(pid.to_string());
    }
    let mut process = Process::spawn("strace", dir.path(), command)?;
    let stderr = dir.path().join("strace.stderr");
    let attached = || {
        let text = std::fs::read_to_string(&stderr).unwrap_or_default();
        (text.matches(" attached").count() >= pids.len() || process.exited().is_some()).then_some(())
    };
    wait::until("strace attaches", ATTACHED, attached)?;
    let measured = load.run(source, |_| ())?;
    signal_pid(process.pid(), Signal::INT)?;
    wait::until("strace ends", ATTACHED, || process.exited())?;
    let text = read(&summary)?;
    let mib = measured.total_bytes as f64 / f64::from(1 << 20);
    Ok(parse(&text).into_iter().map(|(name, calls)| (name, calls as f64 / mib.max(1e-9))).collect())
}

fn read(path: &Path) -> Result<String, LabError> {
    std::fs::read_to_string(path).map_err(|error| LabError::Io { what: format!("read {}", path.display()), error })
}

/// Lines of a name and a number, between two rules; the total after the second.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, calls) = line.trim().split_once(char::is_whitespace)?;
        Some((name.to_owned(), calls.trim().parse().ok()?)).filter(|(name, _)| name != "total")
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read() {
        let text = "syscall              calls\n---------------- ---------\nsplice                 120\nepoll_wait              30\n\
                    ---------------- ---------\ntotal                  150\n";
        let seen = parse(text);
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [("epoll_wait".to_owned(), 30), ("splice".to_owned(), 120)]);
    }
}
