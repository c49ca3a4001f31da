//! OpenSSL and zlib, where they are dynamically linked: payload is put back before they look at it.

use core::ffi::c_void;

use libc::{c_int, iovec, size_t, ssize_t};
use underdeck_stats::Reason;

use super::{next, quietly};
use crate::{anchor, engine, exits};

/// An opaque `SSL *`.
type Ssl = c_void;

/// Beginning of zlib's `z_stream` (zlib.h): all that is needed of it.
#[repr(C)]
pub struct ZStream {
    next_in: *mut u8,
    avail_in: libc::c_uint,
}

/// False: a placeholder cannot be resolved, the bytes must not leave.
fn put_back(exit: Option<usize>, buffer: *const c_void, size: usize, why: Reason) -> bool {
    if !anchor::any_open() || buffer.is_null() {
        return true;
    }
    let Some(engine) = engine::running() else { return true };
    let iov = [iovec { iov_base: buffer.cast_mut(), iov_len: size }];
    quietly(false, || exits::materialise(engine, exit, &iov, why).is_ok()) || {
        engine.stats.reset();
        false
    }
}

/// The descriptor below, which names the exit; none where the application has a transport of its own (HAProxy).
fn descriptor(ssl: *mut Ssl) -> Option<usize> {
    let fd = next!(SSL_get_wfd(ssl => *mut Ssl) -> c_int, -1);
    usize::try_from(fd).ok()
}

/// # Safety
/// As SSL_write(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_write(ssl: *mut Ssl, buffer: *const c_void, size: c_int) -> c_int {
    if !put_back(exit_of(ssl), buffer, usize::try_from(size).unwrap_or(0), Reason::ExitTls) {
        return -1;
    }
    next!(SSL_write(ssl => *mut Ssl, buffer => *const c_void, size => c_int) -> c_int, -1)
}

/// # Safety
/// As SSL_write_ex(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_write_ex(
    ssl: *mut Ssl,
    buffer: *const c_void,
    size: size_t,
    written: *mut size_t,
) -> c_int {
    if !put_back(exit_of(ssl), buffer, size, Reason::ExitTls) {
        return 0;
    }
    next!(SSL_write_ex(ssl => *mut Ssl, buffer => *const c_void, size => size_t, written => *mut size_t) -> c_int, 0)
}

/// # Safety
/// As SSL_write_early_data(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_write_early_data(
    ssl: *mut Ssl,
    buffer: *const c_void,
    size: size_t,
    written: *mut size_t,
) -> c_int {
    if !put_back(exit_of(ssl), buffer, size, Reason::ExitTls) {
        return 0;
    }
    next!(SSL_write_early_data(ssl => *mut Ssl, buffer => *const c_void, size => size_t, written => *mut size_t) -> c_int, 0)
}

/// # Safety
/// As SSL_do_handshake(3). An application with a transport of its own cuts and joins what it sends where the engine
/// cannot follow: it gets copies from the first TLS connection on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_do_handshake(ssl: *mut Ssl) -> c_int {
    if descriptor(ssl).is_none() {
        engine::never();
    }
    next!(SSL_do_handshake(ssl => *mut Ssl) -> c_int, -1)
}

/// # Safety
/// As SSL_sendfile(3): the file holds payload, never placeholders.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_sendfile(
    ssl: *mut Ssl,
    fd: c_int,
    offset: libc::off_t,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    next!(SSL_sendfile(ssl => *mut Ssl, fd => c_int, offset => libc::off_t, size => size_t, flags => c_int) -> ssize_t, -1)
}

/// The name of the exit; needed only while there are placeholders.
fn exit_of(ssl: *mut Ssl) -> Option<usize> {
    if anchor::any_open() { descriptor(ssl) } else { None }
}

/// # Safety
/// As deflate of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflate(stream: *mut ZStream, flush: c_int) -> c_int {
    const Z_STREAM_ERROR: c_int = -2;
    // SAFETY: the caller's promise.
    if let Some(input) = unsafe { stream.as_ref() }
        && !put_back(None, input.next_in.cast(), input.avail_in as usize, Reason::ExitDeflate)
    {
        return Z_STREAM_ERROR;
    }
    next!(deflate(stream => *mut ZStream, flush => c_int) -> c_int, Z_STREAM_ERROR)
}
