//! A block is written by one process and read by another, as in real life. Each test forks a child that counts and then
//! waits on a pipe until the parent has looked.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use underdeck_stats::{Block, Created, Gauge, ReadError, Reason, Role, Snapshot, find_all};

/// A forked child that has run `work` and then sleeps in a read until it is dropped.
struct Child {
    pid: u32,
    hold: Option<std::fs::File>,
}

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(code: i32) -> !;
    fn pipe(fds: *mut RawFd) -> i32;
    fn dlsym(handle: *const std::ffi::c_void, name: *const std::ffi::c_char) -> *const std::ffi::c_void;
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
    fn that(work: impl FnOnce()) -> Self {
        let (mut ready, mut say_ready) = two_ends();
        let (mut held, hold) = two_ends();
        // SAFETY: the child makes system calls and touches only its own copy of memory before it exits.
        let pid = unsafe { fork() };
        if pid == 0 {
            drop(hold);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
            let _ = say_ready.write_all(&[u8::from(done)]);
            let _ = held.read(&mut [0]);
            // SAFETY: ends the child without the test harness's exit handlers.
            unsafe { _exit(0) };
        }
        let mut byte = [0];
        ready.read_exact(&mut byte).expect("the child says that it is ready");
        assert_eq!(byte, [1], "the child panicked");
        Self { pid: u32::try_from(pid).expect("fork works"), hold: Some(hold) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A byte, not only the end of the pipe: a child forked by another test may hold its writing end too.
        if let Some(mut hold) = self.hold.take() {
            let _ = hold.write_all(&[1]);
        }
        // SAFETY: waits for our own child.
        unsafe { waitpid(self.pid as i32, std::ptr::null_mut(), 0) };
    }
}

fn count(block: &Block, n: u64) {
    block.set_protocol(b"http1");
    block.set_enabled(true);
    let role = block.role(Role::Connected);
    Block::add(&role.messages, n);
    Block::add(&role.messages_anchored, n);
    Block::add(&role.bytes_anchored, 1000 * n);
    block.copied(Role::Connected, Reason::HeadOfBody, 10 * n);
    block.materialised(Role::Accepted, Reason::ExitTls, 7 * n);
    block.up(Gauge::BytesHeld, 100);
    block.up(Gauge::BytesHeld, 50);
    block.down(Gauge::BytesHeld, 120);
}

#[test]
fn another_process_reads_what_was_counted() {
    let child = Child::that(|| count(Block::create().expect("a block").block, 3));
    let seen = Snapshot::of_pid(child.pid).expect("the child has a block");
    assert_eq!((seen.pid, seen.protocol.as_str(), seen.enabled), (child.pid, "http1", true));
    let role = seen.role(Role::Connected);
    assert_eq!((role.messages, role.bytes_anchored, role.bytes_copied), (3, 3000, 30));
    assert_eq!(role.copied_by_reason[Reason::HeadOfBody as usize], 30);
    assert_eq!(seen.role(Role::Accepted).materialised_by_reason[Reason::ExitTls as usize], 21);
    assert_eq!((seen.bytes_held, seen.bytes_held_max), (30, 150));
    assert!(seen.started_realtime_ns > 1_600_000_000_000_000_000, "a time after 2020");
    assert!(find_all().expect("/proc is there").snapshots.iter().any(|found| found.pid == child.pid));
}

#[test]
fn nothing_is_left_after_the_process() {
    let child = Child::that(|| {
        Block::create().expect("a block");
    });
    let pid = child.pid;
    Snapshot::of_pid(pid).expect("while it lives");
    drop(child);
    assert!(matches!(Snapshot::of_pid(pid), Err(ReadError::NoProcess(_))));
}

#[test]
fn a_process_without_the_engine_has_no_block() {
    let child = Child::that(|| {});
    assert!(matches!(Snapshot::of_pid(child.pid), Err(ReadError::NoBlock(_))));
}

#[test]
fn a_forked_child_counts_for_itself() {
    let parent = Child::that(|| {
        let Created { block, fd } = Block::create().expect("a block");
        count(block, 1);
        // A grandchild that counts five more, in its own block; its pid travels in the parent's counters.
        let grandchild = Child::that(|| {
            let same = block.renew_after_fork(fd).expect("a block of its own");
            assert_eq!(same, fd, "the descriptor keeps its number");
            count(block, 5);
        });
        Block::add(&block.role(Role::Connected).connections, grandchild.pid.into());
        std::mem::forget(grandchild); // it lives until its end of the pipe closes with the parent
    });
    let of_parent = Snapshot::of_pid(parent.pid).expect("the parent's block");
    let grandchild = u32::try_from(of_parent.role(Role::Connected).connections).expect("a pid");
    let of_child = Snapshot::of_pid(grandchild).expect("the grandchild's block");
    assert_eq!(of_parent.role(Role::Connected).messages, 1);
    assert_eq!(of_child.role(Role::Connected).messages, 5);
    assert_eq!((of_child.protocol.as_str(), of_child.enabled), ("http1", true));
    assert_ne!(of_parent.inode, of_child.inode);
    let total = Snapshot::sum([&of_parent, &of_child]);
    assert_eq!(total.role(Role::Connected).bytes_anchored, 6000);
    assert_eq!(total.role(Role::Connected).copied_by_reason[Reason::HeadOfBody as usize], 60);
}

#[test]
fn a_child_that_was_not_renewed_is_not_counted_twice() {
    let parent = Child::that(|| {
        let Created { block, .. } = Block::create().expect("a block");
        let grandchild = Child::that(|| {});
        Block::add(&block.role(Role::Connected).connections, grandchild.pid.into());
        std::mem::forget(grandchild);
    });
    let of_parent = Snapshot::of_pid(parent.pid).expect("the parent's block");
    let grandchild = u32::try_from(of_parent.role(Role::Connected).connections).expect("a pid");
    let found = find_all().expect("/proc is there");
    assert_eq!(found.snapshots.iter().filter(|one| [parent.pid, grandchild].contains(&one.pid)).count(), 1);
}

#[test]
fn renewal_spares_a_descriptor_that_is_no_longer_ours() {
    let child = Child::that(|| {
        let Created { block, .. } = Block::create().expect("a block");
        let other = std::fs::File::open("/dev/null").expect("a file");
        let now = block.renew_after_fork(other.as_raw_fd()).expect("a block");
        assert_ne!(now, other.as_raw_fd());
        assert!(other.metadata().is_ok_and(|data| data.len() == 0), "still /dev/null");
    });
    drop(child);
}

#[test]
fn the_descriptor_is_high_and_close_on_exec() {
    let child = Child::that(|| {
        let Created { fd, .. } = Block::create().expect("a block");
        assert!(fd >= 256, "{fd} is out of the way");
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("the descriptor is open");
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags");
        let flags = u32::from_str_radix(flags.trim(), 8).expect("octal");
        assert_ne!(flags & 0o2_000_000, 0, "O_CLOEXEC");
    });
    drop(child);
}

#[test]
fn gauges_do_not_go_below_zero() {
    let child = Child::that(|| {
        let Created { block, .. } = Block::create().expect("a block");
        assert_eq!(block.up(Gauge::PipesOpen, 2), 2);
        block.down(Gauge::PipesOpen, 5);
        assert_eq!(block.level(Gauge::PipesOpen), 0);
    });
    assert_eq!(Snapshot::of_pid(child.pid).expect("a block").pipes_open_max, 2);
}

#[test]
fn json_names_reasons_and_roles_in_the_headers_order() {
    let json = serde_json::to_string(&Snapshot::default()).expect("plain data");
    let place = |what: &str| json.find(&format!("\"{what}\"")).unwrap_or_else(|| panic!("{what} missing in {json}"));
    assert!(place("accepted") < place("connected"));
    let places: Vec<_> = Reason::ALL.iter().map(|reason| place(reason.name())).collect();
    assert!(places.is_sorted());
    assert_eq!(Reason::ALL.len(), 22);
    assert_eq!(Reason::NoPipe.text(), "no pipe could be made: descriptors or fs.pipe-user-pages-soft are used up");
}

#[test]
fn share_anchored_takes_off_what_was_materialised() {
    let mut role = underdeck_stats::RoleSnapshot::default();
    assert_eq!(role.share_anchored(), None);
    (role.bytes_anchored, role.bytes_copied, role.bytes_materialised) = (900, 100, 400);
    assert_eq!(role.share_anchored(), Some(0.5));
}

#[test]
fn names_and_numbers_of_strangers_do_no_harm() {
    let child = Child::that(|| {
        std::fs::write("/proc/self/comm", "a\x1b[2Jb").expect("one's own name");
        let block = Block::create().expect("a block").block;
        block.set_protocol(b"\x07bell");
        Block::add(&block.role(Role::Connected).bytes_anchored, u64::MAX);
        Block::add(&block.role(Role::Connected).bytes_copied, u64::MAX);
    });
    let seen = Snapshot::of_pid(child.pid).expect("a block");
    assert_eq!((seen.comm.as_str(), seen.protocol.as_str()), ("a?[2Jb", "?bell"));
    assert_eq!(Snapshot::sum([&seen, &seen]).role(Role::Connected).bytes_anchored, u64::MAX);
    assert!(seen.role(Role::Connected).share_anchored().is_some());
}

/// Inside the preload library these symbols are hooked; a call of them from the writer would come back to it.
#[test]
fn the_writer_makes_its_system_calls_itself() {
    let place = std::env::temp_dir().join(format!("underdeck-stats-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("ours");
    let hooked =
        ["close", "memfd_create", "ftruncate", "ftruncate64", "dup3", "mmap", "mmap64", "fcntl", "fcntl64", "pread64"];
    // The test harness may call them until the trap is armed.
    let mut source =
        "#define _GNU_SOURCE\n#include <dlfcn.h>\nstatic int armed; void arm(int on) { armed = on; }\n".to_owned();
    for name in hooked {
        source += &format!(
            "long {name}(long a, long b, long c, long d, long e, long f) {{ if (armed) __builtin_trap();
               return ((long (*)(long, long, long, long, long, long))dlsym(RTLD_NEXT, \"{name}\"))(a, b, c, d, e, f); }}\n"
        );
    }
    std::fs::write(place.join("trap.c"), source).expect("ours");
    let compile = "gcc -w -fno-builtin -shared -fPIC -o trap.so trap.c";
    let compiled = std::process::Command::new("sh").args(["-c", compile]).current_dir(&place).status().expect("sh");
    if !compiled.success() {
        println!("gcc is not installed: left out");
        return;
    }
    let mut again = std::process::Command::new(std::env::current_exe().expect("this test"));
    again.env("LD_PRELOAD", place.join("trap.so")).env(ONLY_WRITE, "1");
    let status = again.args(["--exact", "only_write", "--nocapture", "--test-threads=1"]).status().expect("starts");
    std::fs::remove_dir_all(&place).expect("ours");
    assert!(status.success(), "{status}");
}

const ONLY_WRITE: &str = "UNDERDECK_TEST_ONLY_WRITE";

/// The part of the test above that runs with the traps.
#[test]
fn only_write() {
    if std::env::var_os(ONLY_WRITE).is_none() {
        return;
    }
    // SAFETY: the library that the test above preloads has a function of this name and type.
    let arm: extern "C" fn(i32) = unsafe {
        let arm = dlsym(std::ptr::null(), c"arm".as_ptr());
        assert!(!arm.is_null(), "the traps are loaded");
        std::mem::transmute(arm)
    };
    arm(1);
    let created = Block::create();
    let renewed = created.map(|Created { block, fd }| {
        count(block, 1);
        (block.renew_after_fork(fd), fd)
    });
    arm(0);
    let (renewed, fd) = renewed.expect("a block");
    assert_eq!(renewed, Ok(fd));
}
