//! Everything outside the program: streams, environment, paths, the clock and the one call that ends us (`exec`).
//! Tests hand in another one.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// A program about to replace this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The file.
    pub program: PathBuf,
    /// Its arguments; the first is its name as the user typed it.
    pub argv: Vec<OsString>,
    /// Its whole environment.
    pub vars: BTreeMap<OsString, OsString>,
}

/// The outside world.
pub struct Env<'a> {
    /// Data.
    pub out: &'a mut dyn Write,
    /// Messages.
    pub err: &'a mut dyn Write,
    /// Whether stdout is a terminal.
    pub out_is_terminal: bool,
    /// Whether stderr is a terminal.
    pub err_is_terminal: bool,
    /// Environment variables.
    pub vars: BTreeMap<OsString, OsString>,
    /// The working directory.
    pub directory: PathBuf,
    /// Where procfs is mounted: `/proc`.
    pub proc: PathBuf,
    /// Where configuration lives: `/etc`.
    pub etc: PathBuf,
    /// Where run-time state lives: `/run`.
    pub run: PathBuf,
    /// This executable; the library is looked for next to it.
    pub executable: PathBuf,
    /// The user that this process acts as.
    pub uid: u32,
    /// Replaces this process; returns only when that failed.
    pub exec: &'a mut dyn FnMut(&Launch) -> io::Error,
    /// Loads a library into some harmless program and says what the dynamic linker complained of.
    pub try_preload: &'a dyn Fn(&Path) -> Result<(), String>,
    /// Waits and says how long that was; None: stop, the user has closed stdin.
    pub pause: &'a mut dyn FnMut(Duration) -> Option<Duration>,
}

impl Env<'_> {
    /// A variable that is set and not empty.
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.vars.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// A line for people.
    pub fn say(&mut self, line: &str) {
        // When stderr is gone there is nobody left to tell.
        let _ = writeln!(self.err, "{line}");
    }

    /// Whether to colour what goes to stdout (or stderr).
    pub fn color(&self, stderr: bool) -> bool {
        let terminal = if stderr { self.err_is_terminal } else { self.out_is_terminal };
        terminal && self.var("NO_COLOR").is_none() && self.var("TERM").is_none_or(|term| term != "dumb")
    }

    /// Whether the terminal's locale takes more than ASCII.
    pub fn utf8(&self) -> bool {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| self.var(name));
        locale.is_some_and(|value| {
            let value = value.to_string_lossy().to_ascii_lowercase();
            value.ends_with("utf-8") || value.ends_with("utf8")
        })
    }
}

/// Runs `work` in the real world.
pub fn with_real<T>(work: impl FnOnce(&mut Env<'_>) -> T) -> T {
    let (out, err) = (io::stdout(), io::stderr());
    let mut env = Env {
        out_is_terminal: out.is_terminal(),
        err_is_terminal: err.is_terminal(),
        out: &mut out.lock(),
        err: &mut err.lock(),
        vars: std::env::vars_os().collect(),
        directory: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
        proc: PathBuf::from("/proc"),
        etc: PathBuf::from("/etc"),
        run: PathBuf::from("/run"),
        executable: std::env::current_exe().unwrap_or_default(),
        uid: rustix::process::geteuid().as_raw(),
        exec: &mut exec,
        try_preload: &try_preload,
        pause: &mut pause,
    };
    let result = work(&mut env);
    // What cannot be written now could not be reported either.
    let _ = env.out.flush();
    result
}

fn exec(launch: &Launch) -> io::Error {
    let mut command = Command::new(&launch.program);
    if let Some((name, args)) = launch.argv.split_first() {
        command.arg0(name).args(args);
    }
    command.env_clear().envs(&launch.vars).exec()
}

/// Sleeps, but wakes up when stdin closes.
fn pause(duration: Duration) -> Option<Duration> {
    let stdin = io::stdin();
    let start = Instant::now();
    loop {
        let left = duration.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Some(start.elapsed());
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => match rustix::io::read(&stdin, &mut [0; 256]) {
                Ok(0) => return None,
                Ok(_) => {}
                // Not readable by us (a background job, a closed descriptor).
                Err(_) => std::thread::sleep(left),
            },
            Err(_) => std::thread::sleep(left),
        }
    }
}

fn try_preload(library: &Path) -> Result<(), String> {
    let output = Command::new("/bin/true").env("LD_PRELOAD", library).env("UNDERDECK", "off").output();
    let output = output.map_err(|error| format!("/bin/true: {error}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    match (output.status.success(), complaint.trim()) {
        (true, "") => Ok(()),
        (_, "") => Err(format!("/bin/true with it ends with {}", output.status)),
        (_, complaint) => Err(complaint.to_owned()),
    }
}
