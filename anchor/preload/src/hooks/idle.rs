//! Ways to wait for something else than descriptors, and to end: what was accepted for sending leaves before.

use libc::{c_char, c_int, c_uint, c_void, clockid_t, pid_t, pthread_t, sigset_t, timespec, useconds_t};
use syscalls::Errno;

use super::{fail, next};
use crate::{batch, lifecycle};

macro_rules! waits {
    ($(#[$doc:meta])* $name:ident ( $($argument:ident : $type:ty),* ) -> $result:ty) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            batch::before_waiting();
            next!($name($($argument => $type),*) -> $result, fail(Errno::ENOSYS) as $result)
        }
    };
}

waits! {
    /// # Safety
    /// As nanosleep(2).
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int
}
waits! {
    /// # Safety
    /// As clock_nanosleep(2).
    clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int
}
waits! {
    /// # Safety
    /// As usleep(3).
    usleep(time: useconds_t) -> c_int
}
waits! {
    /// # Safety
    /// As sleep(3).
    sleep(time: c_uint) -> c_uint
}
waits! {
    /// # Safety
    /// As pause(2).
    pause() -> c_int
}
waits! {
    /// # Safety
    /// As pthread_join(3).
    pthread_join(thread: pthread_t, result: *mut *mut c_void) -> c_int
}
waits! {
    /// # Safety
    /// As sigsuspend(2).
    sigsuspend(mask: *const sigset_t) -> c_int
}

/// # Safety
/// As waitpid(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t {
    // Who only asks may be a signal handler, as that of nginx for SIGCHLD.
    if options & libc::WNOHANG == 0 {
        batch::before_waiting();
    }
    next!(waitpid(process => pid_t, status => *mut c_int, options => c_int) -> pid_t, fail(Errno::ENOSYS) as pid_t)
}

/// The child of vfork has no say in what its parent sends.
fn ends() {
    if !lifecycle::is_vforked() {
        batch::before_waiting();
    }
}

macro_rules! ends {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(code: c_int) -> ! {
            ends();
            next!($name(code => c_int) -> c_int, -1);
            // SAFETY: no libc is without it; if one were, the process would have to end all the same.
            unsafe { libc::abort() }
        }
    };
}

ends! {
    /// # Safety
    /// As _exit(2). exit(3) needs no help: the thread's own variables end with it.
    _exit
}
ends! {
    /// # Safety
    /// As _Exit(3).
    _Exit
}

macro_rules! executes {
    ($(#[$doc:meta])* $name:ident ( $($argument:ident : $type:ty),* )) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            ends();
            next!($name($($argument => $type),*) -> c_int, fail(Errno::ENOSYS) as c_int)
        }
    };
}

executes! {
    /// # Safety
    /// As execve(2).
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char)
}
executes! {
    /// # Safety
    /// As execv(3).
    execv(path: *const c_char, arguments: *const *const c_char)
}
executes! {
    /// # Safety
    /// As execvp(3).
    execvp(path: *const c_char, arguments: *const *const c_char)
}
