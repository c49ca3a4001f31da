//! socket, accept, connect, dup, fcntl, close, shutdown.

use libc::{c_int, c_long, c_uint, sockaddr, socklen_t};
use syscalls::Errno;

use super::{fail, next, quietly};
use crate::lifecycle;
use crate::table::{self, Entry};

fn fail_int(error: Errno) -> c_int {
    fail(error) as c_int
}

/// # Safety
/// As socket(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = next!(socket(domain => c_int, kind => c_int, protocol => c_int) -> c_int, fail_int(Errno::ENOSYS));
    lifecycle::made(fd, domain, kind);
    fd
}

/// # Safety
/// As socketpair(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int {
    let result = next!(socketpair(domain => c_int, kind => c_int, protocol => c_int, ends => *mut c_int) -> c_int, fail_int(Errno::ENOSYS));
    if result == 0 {
        // SAFETY: the kernel has just put two descriptors there.
        let ends = unsafe { [ends.read(), ends.add(1).read()] };
        quietly((), || ends.into_iter().for_each(lifecycle::came));
    }
    result
}

/// # Safety
/// As connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let result =
        next!(connect(fd => c_int, address => *const sockaddr, length => socklen_t) -> c_int, fail_int(Errno::ENOSYS));
    // SAFETY: libc's errno of this thread.
    let error = unsafe { *libc::__errno_location() };
    if result == 0 || error == libc::EINPROGRESS {
        // SAFETY: the kernel took the address.
        quietly((), || unsafe { lifecycle::connected(fd, address, length) });
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = error };
    }
    result
}

/// # Safety
/// As accept(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(listener: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let fd = next!(accept(listener => c_int, address => *mut sockaddr, length => *mut socklen_t) -> c_int, fail_int(Errno::ENOSYS));
    if fd >= 0 {
        quietly((), || lifecycle::accepted(fd, listener));
    }
    fd
}

/// # Safety
/// As accept4(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    listener: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let fd = next!(accept4(listener => c_int, address => *mut sockaddr, length => *mut socklen_t, flags => c_int) -> c_int, fail_int(Errno::ENOSYS));
    if fd >= 0 {
        quietly((), || lifecycle::accepted(fd, listener));
    }
    fd
}

/// # Safety
/// As shutdown(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if how != libc::SHUT_RD {
        quietly((), || lifecycle::shutting_down(fd));
    }
    next!(shutdown(fd => c_int, how => c_int) -> c_int, fail_int(Errno::ENOSYS))
}

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if !quietly(true, || lifecycle::closing(fd)) {
        return fail_int(Errno::EBADF);
    }
    next!(close(fd => c_int) -> c_int, fail_int(Errno::ENOSYS))
}

/// # Safety
/// As close_range(2): the engine's own descriptors stay open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let close = |from: c_uint, to: c_uint| next!(close_range(from => c_uint, to => c_uint, flags => c_int) -> c_int, fail_int(Errno::ENOSYS));
    if flags != 0 {
        return close(first, last);
    }
    let mut from = first;
    for fd in first..=last.min(table::highest()) {
        if matches!(table::entry(fd.cast_signed()), Entry::Ours) {
            if from < fd && close(from, fd - 1) < 0 {
                return -1;
            }
            from = fd + 1;
        } else {
            quietly(true, || lifecycle::closing(fd.cast_signed()));
        }
    }
    if from <= last { close(from, last) } else { 0 }
}

/// # Safety
/// As closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: as close_range(2).
    unsafe { close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0) };
}

/// # Safety
/// As dup(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(from: c_int) -> c_int {
    if matches!(table::entry(from), Entry::Ours) {
        return fail_int(Errno::EBADF);
    }
    duplicated(from, next!(dup(from => c_int) -> c_int, fail_int(Errno::ENOSYS)))
}

/// # Safety
/// As dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if !before_replacing(from, to) {
        return fail_int(Errno::EBADF);
    }
    let fd = next!(dup2(from => c_int, to => c_int) -> c_int, fail_int(Errno::ENOSYS));
    if from == to { fd } else { duplicated(from, fd) }
}

/// # Safety
/// As dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if !before_replacing(from, to) {
        return fail_int(Errno::EBADF);
    }
    duplicated(from, next!(dup3(from => c_int, to => c_int, flags => c_int) -> c_int, fail_int(Errno::ENOSYS)))
}

/// The descriptor at `to` is about to be closed, unless `from` is not open.
fn before_replacing(from: c_int, to: c_int) -> bool {
    if from == to {
        return true;
    }
    let ours = matches!(table::entry(from), Entry::Ours) || matches!(table::entry(to), Entry::Ours);
    !ours && quietly(true, || lifecycle::closing(to))
}

fn duplicated(from: c_int, fd: c_int) -> c_int {
    if fd >= 0 {
        quietly((), || lifecycle::duplicated(from, fd));
    }
    fd
}

/// # Safety
/// As fcntl(2). The third argument is a word or absent; an absent one is passed on as whatever the register holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let result = next!(fcntl(fd => c_int, command => c_int, argument => c_long) -> c_int, fail_int(Errno::ENOSYS));
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { duplicated(fd, result) } else { result }
}

/// # Safety
/// As fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let result = next!(fcntl64(fd => c_int, command => c_int, argument => c_long) -> c_int, fail_int(Errno::ENOSYS));
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { duplicated(fd, result) } else { result }
}

/// # Safety
/// As unshare(2): threads with descriptor tables of their own cannot be told apart here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_FILES != 0 {
        crate::engine::never();
    }
    next!(unshare(flags => c_int) -> c_int, fail_int(Errno::ENOSYS))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::process::Command;

    use super::*;
    use crate::testing;

    fn is_open(fd: c_int) -> bool {
        std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok()
    }

    /// Closes everything above standard error by `how`, in a process of its own.
    fn closing(how: &str) {
        let (near, far, _) = testing::ahead(Some(testing::set()));
        let fds = [near.into_raw_fd(), far.into_raw_fd()];
        assert!(fds.iter().all(|fd| table::socket(*fd).is_some() && is_open(*fd)));
        let own = || (0..=table::highest().cast_signed()).filter(|fd| matches!(table::entry(*fd), Entry::Ours));
        let before: Vec<c_int> = own().collect();
        assert!(before.len() > 2, "counters and a pipe");
        // SAFETY: nothing in this thread uses what is closed.
        unsafe {
            match how {
                "closefrom" => closefrom(3),
                _ => assert_eq!(close_range(3, c_uint::MAX, 0), 0),
            }
        }
        for fd in fds {
            assert!(table::socket(fd).is_none() && !is_open(fd), "{how}: {fd} is still known");
        }
        let held: Vec<c_int> = own().collect();
        assert!(!held.is_empty() && held.iter().all(|fd| is_open(*fd)), "{how}: {before:?}, {held:?}");
        let (near, _far, got) = testing::ahead(Some(testing::set()));
        assert!(testing::copied(&near, 100) == testing::body(got, 100), "{how}");
    }

    #[test]
    fn a_range_is_closed_without_what_is_the_engines_own() {
        if let Ok(how) = std::env::var("UNDERDECK_TEST_CLOSES_BY") {
            return closing(&how);
        }
        for how in ["closefrom", "close_range"] {
            let name = "hooks::lifecycle::tests::a_range_is_closed_without_what_is_the_engines_own";
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", name, "--nocapture"]).env("UNDERDECK_TEST_CLOSES_BY", how);
            let output = command.output().expect("it starts");
            assert!(output.status.success(), "{how}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    #[test]
    fn a_range_that_is_to_be_closed_at_exec_stays_open() {
        testing::alone("hooks::lifecycle::tests::a_range_that_is_to_be_closed_at_exec_stays_open", || {
            let (near, _far, got) = testing::ahead(Some(testing::set()));
            let fd = near.as_raw_fd().cast_unsigned();
            // SAFETY: no pointers.
            assert_eq!(unsafe { close_range(fd, fd, libc::CLOSE_RANGE_CLOEXEC as c_int) }, 0);
            assert!(testing::copied(&near, 100) == testing::body(got, 100));
        });
    }
}
