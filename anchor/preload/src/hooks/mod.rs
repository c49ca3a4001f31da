//! The border: the functions that the application calls instead of libc's. Each looks up the descriptor and calls either
//! the engine or the function it stands in for.
//!
//! What is not here needs nothing: `tee(2)` copies from one pipe of the application to another, and what the application puts
//! into a pipe (`write`, `vmsplice`) holds payload by then, never a placeholder.

mod exits;
mod idle;
mod lifecycle;
mod receive;
mod send;
mod wait;

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{c_int, c_void, msghdr, ssize_t};
use syscalls::Errno;

use crate::cell::Cell;
use crate::engine::{self, Engine};
use crate::socket::Socket;
use crate::{egress, sys, table};

/// The next definition of a function after ours, found when it is first needed.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address; null when no other library has it.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is zero-terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the function that a hook stands in for; evaluates to `$missing` if there is none.
macro_rules! next {
    ($name:ident ( $($argument:expr => $type:ty),* ) -> $result:ty, $missing:expr) => {{
        static NEXT: crate::hooks::Next =
            crate::hooks::Next::new(match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without zero bytes"),
            });
        let address = NEXT.address();
        if address.is_null() {
            $missing
        } else {
            // SAFETY: the symbol of that name has this signature in every libc, OpenSSL and zlib that we hook.
            let function = unsafe { core::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn($($type),*) -> $result>(address) };
            // SAFETY: the arguments are the application's own.
            unsafe { function($($argument),*) }
        }
    }};
}
pub(crate) use next;

/// `errno` set, -1.
pub(crate) fn fail(error: Errno) -> ssize_t {
    // SAFETY: libc's errno of this thread.
    unsafe { *libc::__errno_location() = error.into_raw() };
    -1
}

/// Runs an operation of the engine on a connection. None: the connection is not ours any more, the kernel may have the call.
///
/// A panic ends the connection instead of the process: what the interrupted operation had moved is unknown.
pub(crate) fn on(
    cell: &'static Cell,
    fd: c_int,
    operation: impl FnOnce(&'static Engine, &mut Socket) -> sys::Result<usize>,
) -> Option<ssize_t> {
    let engine = engine::running()?;
    let result = catch_unwind(AssertUnwindSafe(|| cell.with(fd, |socket| operation(engine, socket))));
    match result {
        Ok(None) => None,
        // It was closed where the engine does not see it (fclose), and its number stands for something else by now.
        Ok(Some(Err(Errno::ENOTSOCK | Errno::EBADF))) => {
            quietly(true, || crate::lifecycle::closing(fd));
            None
        }
        Ok(Some(Ok(n))) => Some(n.cast_signed()),
        Ok(Some(Err(error))) => Some(fail(error)),
        Err(_) => {
            panicked(engine);
            engine.stats.reset();
            sys::reset(fd);
            Some(fail(Errno::ECONNRESET))
        }
    }
}

/// The application is about to move bytes to `fd` that the engine does not see. An answer: it cannot yet.
pub(crate) fn before_unseen(fd: c_int) -> Option<ssize_t> {
    let cell = table::socket(fd)?;
    if !cell.with(fd, |socket| socket.owed.is_some() || socket.batch.is_some())? {
        return None;
    }
    on(cell, fd, egress::send_owed).filter(|result| *result < 0)
}

/// Calls `each` for every descriptor that a message carries (`SCM_RIGHTS`).
pub(crate) fn descriptors(header: &msghdr, each: impl Fn(c_int)) {
    if header.msg_control.is_null() || header.msg_controllen == 0 {
        return;
    }
    // SAFETY: the macros of cmsg(3) over the application's own header, as the kernel walks it.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: as above.
    while let Some(entry) = unsafe { control.as_ref() } {
        if entry.cmsg_level == libc::SOL_SOCKET && entry.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: as above; CMSG_LEN(0) is the length of the header alone.
            let (data, head) = unsafe { (libc::CMSG_DATA(entry).cast::<c_int>(), libc::CMSG_LEN(0) as usize) };
            for at in 0..entry.cmsg_len.saturating_sub(head) / size_of::<c_int>() {
                // SAFETY: within the entry.
                each(unsafe { data.add(at).read_unaligned() });
            }
        }
        // SAFETY: as above.
        control = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
}

/// Runs something that must not fail for the application; a panic is counted and forgotten.
pub(crate) fn quietly<T>(otherwise: T, operation: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|_| {
        if let Some(engine) = engine::running() {
            panicked(engine);
        }
        otherwise
    })
}

fn panicked(engine: &Engine) {
    engine.stats.panicked();
    engine.retire();
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use syscalls::{Sysno, syscall};

    #[test]
    fn a_number_that_was_closed_unseen_is_read_as_what_it_is_now() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let mut stream = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
        assert!(crate::table::socket(stream.as_raw_fd()).is_some(), "it is followed");
        let (read, mut write) = std::io::pipe().expect("a pipe");
        write.write_all(b"pipe").expect("room");
        // As libc does within fclose(3) and open(2): not by way of the hooks.
        // SAFETY: no pointers.
        unsafe { syscall!(Sysno::dup3, read.as_raw_fd(), stream.as_raw_fd(), 0) }.expect("replaced");
        let mut bytes = [0; 8];
        // SAFETY: the buffer is as long as is said.
        let n = unsafe { super::receive::read(stream.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
        assert_eq!((n, &bytes[..4]), (4, &b"pipe"[..]));
        assert!(crate::table::socket(stream.as_raw_fd()).is_none());
        write.write_all(b"more").expect("room");
        assert_eq!(stream.read(&mut bytes).ok().map(|_| ()), None, "recv(2) on a pipe is the kernel's error");
    }

    #[test]
    fn a_read_that_waits_does_not_keep_other_threads_from_the_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let stream = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
        let (mut peer, _) = listener.accept().expect("accepted");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut bytes = [0; 8];
                (&stream).read(&mut bytes).map(|n| bytes[..n].to_vec()).ok()
            });
            // The answer comes only when the other thread has asked for it.
            (&stream).write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
            let mut request = [0; 18];
            peer.read_exact(&mut request).expect("received");
            peer.write_all(b"HTTP/").expect("answered");
            assert_eq!(waiting.join().expect("no panic").as_deref(), Some(&b"HTTP/"[..]));
        });
    }

    /// In a process of its own: a panic ends the engine.
    fn panics() {
        let pair = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
            let near = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
            (near, listener.accept().expect("accepted").0)
        };
        let ((broken, mut peer), (mut other, mut far)) = (pair(), pair());
        let fd = broken.as_raw_fd();
        let cell = crate::table::socket(fd).expect("it is followed");
        assert_eq!(super::on(cell, fd, |_, _| panic!("a fault")), Some(-1));
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ECONNRESET));
        assert!(peer.read(&mut [0; 1]).is_err(), "no orderly end: nobody knows what was moved");
        let engine = crate::engine::running().expect("it runs");
        assert!(!engine.is_on(), "nothing is anchored any more");
        // Others go on.
        far.write_all(b"bytes").expect("sent");
        let mut bytes = [0; 5];
        other.read_exact(&mut bytes).expect("received");
        assert_eq!(&bytes, b"bytes");
    }

    #[test]
    fn a_panic_ends_its_connection_and_the_engine_but_nothing_else() {
        crate::testing::alone("hooks::tests::a_panic_ends_its_connection_and_the_engine_but_nothing_else", panics);
    }
}
