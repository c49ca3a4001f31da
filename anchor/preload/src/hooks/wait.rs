//! epoll_wait: readiness is the kernel's own word; the engine only lets batches leave before, and clears up meanwhile.

use libc::{c_int, c_void, epoll_event};

use super::{fail, next, quietly};
use crate::{anchor, batch, engine};

/// How long a wait may be while accepted payload could not leave, ms.
const RETRY_MS: c_int = 2;
/// How long a wait may be before the engine looks again for payload that nobody sends, ms.
const SLICE_MS: c_int = 1000;

/// Waits by way of `wait(ms)`, in slices while there is something that may have to be done meanwhile.
fn wait_by(timeout: c_int, wait: impl Fn(c_int) -> c_int) -> c_int {
    let Some(engine) = engine::running() else { return wait(timeout) };
    let mut left = timeout;
    loop {
        let slice = match quietly(true, || batch::before_events(left != 0)) {
            false => RETRY_MS,
            true if anchor::any_detached() => SLICE_MS,
            true => return wait(left),
        };
        if (0..=slice).contains(&left) {
            return wait(left);
        }
        let events = wait(slice);
        quietly((), || anchor::reap(engine));
        if events != 0 {
            return events;
        }
        if left > 0 {
            left -= slice;
        }
    }
}

/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(fd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    wait_by(
        timeout,
        |timeout| next!(epoll_wait(fd => c_int, events => *mut epoll_event, most => c_int, timeout => c_int) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int),
    )
}

/// # Safety
/// As epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const c_void,
) -> c_int {
    wait_by(
        timeout,
        |timeout| next!(epoll_pwait(fd => c_int, events => *mut epoll_event, most => c_int, timeout => c_int, mask => *const c_void) -> c_int, fail(syscalls::Errno::ENOSYS) as c_int),
    )
}
