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
executes! {
    /// # Safety
    /// As execvpe(3).
    execvpe(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char)
}
executes! {
    /// # Safety
    /// As fexecve(3).
    fexecve(file: c_int, arguments: *const *const c_char, environment: *const *const c_char)
}
executes! {
    /// # Safety
    /// As execveat(2).
    execveat(directory: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int)
}

/// Functions whose arguments are a list. Rust cannot define those, so the call goes on as it came.
#[cfg(target_arch = "x86_64")]
mod lists {
    use libc::{c_int, c_void};
    use syscalls::Errno;

    use crate::hooks::{Next, fail};

    macro_rules! executes_list {
        ($(#[$doc:meta])* $name:ident, $before:ident) => {
            /// Where to go on.
            extern "C" fn $before() -> *const c_void {
                static NEXT: Next = match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => Next::new(name),
                    Err(_) => panic!("a name without zero bytes"),
                };
                super::ends();
                let next = NEXT.address();
                if next.is_null() { missing as *const c_void } else { next }
            }

            $(#[$doc])*
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> c_int {
                // All that may hold arguments (System V ABI, section 3.2.3) is kept; what is on the stack stays where it is.
                core::arch::naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "call {before}",
                    "mov r11, rax",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    before = sym $before,
                )
            }
        };
    }

    extern "C" fn missing() -> c_int {
        fail(Errno::ENOSYS) as c_int
    }

    executes_list! {
        /// # Safety
        /// As execl(3).
        execl, before_execl
    }
    executes_list! {
        /// # Safety
        /// As execlp(3).
        execlp, before_execlp
    }
    executes_list! {
        /// # Safety
        /// As execle(3).
        execle, before_execle
    }
}
