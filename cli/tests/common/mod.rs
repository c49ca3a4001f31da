//! A world in memory for the command line, and children that have counters.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::path::{Path, PathBuf};

use underdeck_cli::env::{Env, Launch};
use underdeck_cli::exit::Exit;
use underdeck_stats::{Block, Gauge, Reason, Role};

/// What the outside looks like to a verb.
pub struct World {
    pub vars: BTreeMap<OsString, OsString>,
    pub proc: PathBuf,
    pub etc: PathBuf,
    pub run: PathBuf,
    pub executable: PathBuf,
    pub uid: u32,
    pub terminal: bool,
    pub preload: Result<(), String>,
    /// How often `--watch` may pause before stdin closes.
    pub pauses: u32,
    /// Runs in each pause.
    pub meanwhile: Box<dyn FnMut()>,
}

/// What a verb did.
#[derive(Debug)]
pub struct Done {
    pub exit: Exit,
    pub out: String,
    pub err: String,
    pub launches: Vec<Launch>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            vars: [("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")]
                .map(|(name, value)| (name.into(), value.into()))
                .into(),
            proc: "/proc".into(),
            etc: "/etc".into(),
            run: "/run".into(),
            executable: "/nowhere/bin/underdeck".into(),
            uid: 0,
            terminal: false,
            preload: Ok(()),
            pauses: 0,
            meanwhile: Box::new(|| {}),
        }
    }
}

impl World {
    pub fn var(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.vars.insert(name.into(), value.into());
        self
    }

    /// Runs `underdeck ARGS` in this process.
    pub fn underdeck(&mut self, args: &[&str]) -> Done {
        let (mut out, mut err, mut launches) = (Vec::new(), Vec::new(), Vec::new());
        let (mut pauses, preload) = (self.pauses, self.preload.clone());
        let meanwhile = &mut self.meanwhile;
        let mut env = Env {
            out: &mut out,
            err: &mut err,
            out_is_terminal: self.terminal,
            err_is_terminal: self.terminal,
            vars: self.vars.clone(),
            directory: "/".into(),
            proc: self.proc.clone(),
            etc: self.etc.clone(),
            run: self.run.clone(),
            executable: self.executable.clone(),
            uid: self.uid,
            exec: &mut |launch| {
                launches.push(launch.clone());
                std::io::ErrorKind::Other.into()
            },
            try_preload: &|_| preload.clone(),
            pause: &mut |_| {
                meanwhile();
                pauses = pauses.saturating_sub(1);
                (pauses > 0).then_some(std::time::Duration::from_secs(1))
            },
        };
        let args = std::iter::once("underdeck").chain(args.iter().copied()).map(OsString::from);
        let exit = underdeck_cli::run(args, &mut env);
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        Done { exit, out: text(out), err: text(err), launches }
    }
}

/// Any library that the dynamic linker loads without a complaint: the C library of this process.
pub fn some_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is there");
    let libc = maps.lines().find_map(|line| line.split_whitespace().last().filter(|path| path.ends_with("/libc.so.6")));
    libc.expect("tests run on glibc").into()
}

/// Whether a tool that a test needs is installed; says so when it is not.
pub fn installed(tool: &str) -> bool {
    let there = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(tool).is_file()));
    if !there {
        println!("{tool} is not installed: this part is left out");
    }
    there
}

/// Runs a tool and insists that it works.
pub fn sh(script: &str, directory: &Path) {
    let status = std::process::Command::new("sh").args(["-ec", script]).current_dir(directory).status().expect("sh");
    assert!(status.success(), "{script}: {status}");
}

/// The command, where every user can run it. Another process makes the copy: a child that some other test forks while
/// this one had the file open for writing would make it "busy".
pub fn copy_of_the_command(directory: &Path) -> PathBuf {
    sh(&format!("chmod 755 . && cp '{}' underdeck", env!("CARGO_BIN_EXE_underdeck")), directory);
    directory.join("underdeck")
}

/// A forked child that has run `work` and then sleeps in a read until it is dropped.
pub struct Child {
    pub pid: u32,
    go_on: std::fs::File,
    ready: std::fs::File,
}

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(code: i32) -> !;
    fn pipe(fds: *mut RawFd) -> i32;
}

fn two_ends() -> (std::fs::File, std::fs::File) {
    let mut fds = [0; 2];
    // SAFETY: `fds` has room for two descriptors; both are owned by the files from here on.
    unsafe {
        assert_eq!(pipe(fds.as_mut_ptr()), 0);
        (std::fs::File::from_raw_fd(fds[0]), std::fs::File::from_raw_fd(fds[1]))
    }
}

impl Child {
    /// A process with counters, under this name; counts once now, and once more for each [`Child::again`].
    pub fn counting(name: &'static str) -> Self {
        let (mut ready, mut say_ready) = two_ends();
        let (mut orders, go_on) = two_ends();
        // SAFETY: the child makes system calls and touches only its own copy of memory before it exits.
        let pid = unsafe { fork() };
        if pid == 0 {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                std::fs::write("/proc/self/comm", name).expect("one's own name");
                let block = Block::create().expect("a block").block;
                let mut order = [1];
                while order == [1] {
                    count(block);
                    say_ready.write_all(&[1]).expect("the parent listens");
                    orders.read_exact(&mut order).expect("an order");
                }
            }));
            // SAFETY: ends the child without the test harness's exit handlers.
            unsafe { _exit(done.is_err().into()) };
        }
        drop((say_ready, orders));
        ready.read_exact(&mut [0]).expect("the child says that it has counted");
        Self { pid: u32::try_from(pid).expect("fork works"), go_on, ready }
    }

    pub fn again(&mut self) {
        self.go_on.write_all(&[1]).expect("the child listens");
        self.ready.read_exact(&mut [0]).expect("the child says that it has counted");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.go_on.write_all(&[0]);
        // SAFETY: waits for our own child.
        unsafe { waitpid(self.pid as i32, std::ptr::null_mut(), 0) };
    }
}

/// One response of 1 MiB, of which all but the first 4096 bytes are anchored; an upload of 100 bytes; TLS on the exit.
fn count(block: &Block) {
    block.set_protocol(b"http1");
    block.set_enabled(true);
    let (requests, responses) = (block.role(Role::Accepted), block.role(Role::Connected));
    for counter in [&requests.messages, &requests.messages_copied, &responses.messages, &responses.messages_anchored] {
        Block::add(counter, 1);
    }
    Block::add(&responses.connections, 2);
    Block::add(&responses.bytes_anchored, (1 << 20) - 4096);
    Block::add(&responses.bytes_forwarded, (1 << 20) - 4096 - 1000);
    block.copied(Role::Connected, Reason::HeadOfBody, 4096);
    block.copied(Role::Accepted, Reason::BelowMinBody, 100);
    block.materialised(Role::Connected, Reason::ExitTls, 1000);
    block.up(Gauge::PipesOpen, 1);
    block.up(Gauge::BytesHeld, 65536);
    block.down(Gauge::BytesHeld, 65536);
}
