//! OpenSSL and zlib, where they are dynamically linked: payload is put back before they look at it.

use core::ffi::c_void;

use libc::{c_int, c_long, iovec, size_t, ssize_t};
use underdeck_stats::Reason;

use super::{next, quietly};
use crate::cell::Cell;
use crate::mark::Sighting;
use crate::tls::{self, Prepared};
use crate::{anchor, engine, exits, table};

/// An opaque `SSL *`.
type Ssl = c_void;

thread_local! {
    /// The library is at work for this thread. Of its own functions it may call some by their public names, which are ours:
    /// what they read and write was seen already.
    static WITHIN: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

/// Runs a function of the library that is made of others that are hooked.
fn within<T>(call: impl FnOnce() -> T) -> T {
    let before = WITHIN.replace(true);
    let result = call();
    WITHIN.set(before);
    result
}

/// Beginning of zlib's `z_stream` (zlib.h): all that is needed of it.
#[repr(C)]
pub struct ZStream {
    next_in: *mut u8,
    avail_in: libc::c_uint,
}

/// The descriptor below; none where the application has a transport of its own (HAProxy).
fn descriptor(ssl: *mut Ssl) -> Option<c_int> {
    let fd = next!(SSL_get_wfd(ssl => *mut Ssl) -> c_int, -1);
    (fd >= 0).then_some(fd)
}

/// The connection below, while the engine runs.
fn connection(ssl: *mut Ssl) -> Option<(c_int, &'static Cell)> {
    engine::running()?;
    let fd = descriptor(ssl)?;
    Some((fd, table::socket(fd)?))
}

/// Writes `size` bytes by way of `write`, which is the library's own function: (address, size) -> bytes, or not more than
/// zero for an error, which `SSL_get_error` explains.
fn write_by(ssl: *mut Ssl, buffer: *const c_void, size: usize, write: impl Fn(*const c_void, usize) -> isize) -> isize {
    if WITHIN.get() {
        return write(buffer, size);
    }
    let Some((fd, cell)) = connection(ssl) else {
        return if quietly(false, || is_free(buffer, size)) { write(buffer, size) } else { refused(ssl, buffer) };
    };
    if size == 0 || buffer.is_null() {
        return write(buffer, size);
    }
    let prepared =
        quietly(None, || cell.with(fd, |socket| tls::prepare(engine::running()?, socket, buffer, size)).flatten());
    let result = match prepared {
        None => return -1,
        Some(Prepared::AsItIs(0)) => 0,
        Some(Prepared::AsItIs(size)) => write(buffer, size),
        Some(Prepared::Joined(bytes)) => {
            accept_moving_buffer(ssl);
            write(bytes.as_ptr().cast(), bytes.len())
        }
        Some(Prepared::Nothing) => return size.cast_signed(),
    };
    quietly(result, || {
        cell.with(fd, |socket| tls::wrote(engine::running()?, socket, buffer, size, result)).flatten().unwrap_or(result)
    })
}

/// Whether no placeholder stands in what leaves by a transport of the application's own. Bodies that were anchored before the
/// process did its first TLS handshake can get there; where such an application cuts them, nobody can tell.
fn is_free(buffer: *const c_void, size: usize) -> bool {
    /// Fewer bytes may look like the beginning of a mark by chance.
    const TELLING: usize = 4;
    let Some(engine) = engine::running().filter(|_| anchor::any_open() && size > 0 && !buffer.is_null()) else {
        return true;
    };
    // SAFETY: the application handed these bytes in to be read.
    let bytes = unsafe { core::slice::from_raw_parts(buffer.cast::<u8>(), size) };
    let free = match engine.magic.find(bytes) {
        Sighting::Nothing => true,
        Sighting::Begun(at) => size - at < TELLING,
        Sighting::Mark(..) => false,
    };
    if !free {
        engine.stats.reset();
        eprintln!("underdeck: a TLS connection failed: a placeholder on a connection that is not followed");
    }
    free
}

/// Has the library itself fail, so that `SSL_get_error` tells the application that the connection is over.
fn refused(ssl: *mut Ssl, buffer: *const c_void) -> isize {
    const BAD_LENGTH: c_int = -1;
    next!(SSL_write(ssl => *mut Ssl, buffer => *const c_void, BAD_LENGTH => c_int) -> c_int, -1) as isize
}

/// A write that is tried again may come with its bytes at another address.
fn accept_moving_buffer(ssl: *mut Ssl) {
    const SSL_CTRL_MODE: c_int = 33;
    const SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER: c_long = 2;
    let null = core::ptr::null_mut::<c_void>();
    next!(SSL_ctrl(ssl => *mut Ssl, SSL_CTRL_MODE => c_int, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER => c_long, null => *mut c_void) -> c_long, 0);
}

/// What was read is followed, so that the answer can be framed.
fn read_through(ssl: *mut Ssl, buffer: *const c_void, size: usize) {
    if size > 0
        && !WITHIN.get()
        && let Some((fd, cell)) = connection(ssl)
    {
        quietly((), || {
            cell.with(fd, |socket| {
                if let Some(engine) = engine::running() {
                    tls::read(engine, socket, buffer, size);
                }
            });
        });
    }
}

fn write_plain(ssl: *mut Ssl, buffer: *const c_void, size: usize) -> isize {
    let size = c_int::try_from(size).unwrap_or(c_int::MAX);
    next!(SSL_write(ssl => *mut Ssl, buffer => *const c_void, size => c_int) -> c_int, -1) as isize
}

/// # Safety
/// As SSL_write(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_write(ssl: *mut Ssl, buffer: *const c_void, size: c_int) -> c_int {
    write_by(ssl, buffer, usize::try_from(size).unwrap_or(0), |buffer, size| write_plain(ssl, buffer, size)) as c_int
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
    let n = write_by(ssl, buffer, size, |buffer, size| {
        let mut n = 0usize;
        let at = &raw mut n;
        let ok = next!(SSL_write_ex(ssl => *mut Ssl, buffer => *const c_void, size => size_t, at => *mut size_t) -> c_int, 0);
        if ok == 1 { n.cast_signed() } else { 0 }
    });
    told(n, written)
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
    let n = write_by(ssl, buffer, size, |buffer, size| {
        let mut n = 0usize;
        let at = &raw mut n;
        let ok = within(
            || next!(SSL_write_early_data(ssl => *mut Ssl, buffer => *const c_void, size => size_t, at => *mut size_t) -> c_int, 0),
        );
        if ok == 1 { n.cast_signed() } else { 0 }
    });
    told(n, written)
}

/// The answer of the functions that tell the number of bytes apart from success.
fn told(n: isize, written: *mut size_t) -> c_int {
    // SAFETY: where the caller wants the number.
    if let (Ok(n @ 1..), Some(written)) = (usize::try_from(n), unsafe { written.as_mut() }) {
        *written = n;
        return 1;
    }
    0
}

/// # Safety
/// As SSL_read(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_read(ssl: *mut Ssl, buffer: *mut c_void, size: c_int) -> c_int {
    let n = next!(SSL_read(ssl => *mut Ssl, buffer => *mut c_void, size => c_int) -> c_int, -1);
    read_through(ssl, buffer, usize::try_from(n).unwrap_or(0));
    n
}

/// # Safety
/// As SSL_read_ex(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_read_ex(ssl: *mut Ssl, buffer: *mut c_void, size: size_t, read: *mut size_t) -> c_int {
    let ok =
        next!(SSL_read_ex(ssl => *mut Ssl, buffer => *mut c_void, size => size_t, read => *mut size_t) -> c_int, 0);
    // SAFETY: where the library has just put the number.
    if let (1, Some(n)) = (ok, unsafe { read.as_ref() }) {
        read_through(ssl, buffer, *n);
    }
    ok
}

/// # Safety
/// As SSL_read_early_data(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_read_early_data(
    ssl: *mut Ssl,
    buffer: *mut c_void,
    size: size_t,
    read: *mut size_t,
) -> c_int {
    let result = within(
        || next!(SSL_read_early_data(ssl => *mut Ssl, buffer => *mut c_void, size => size_t, read => *mut size_t) -> c_int, 0),
    );
    // SSL_READ_EARLY_DATA_SUCCESS
    // SAFETY: where the library has just put the number.
    if let (1, Some(n)) = (result, unsafe { read.as_ref() }) {
        read_through(ssl, buffer, *n);
    }
    result
}

/// # Safety
/// As SSL_shutdown(3): nothing may be held back any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_shutdown(ssl: *mut Ssl) -> c_int {
    if let Some((fd, cell)) = connection(ssl)
        && let Some(owed) =
            quietly(None, || cell.with(fd, |socket| tls::take_owed(engine::running()?, socket)).flatten())
    {
        accept_moving_buffer(ssl);
        write_plain(ssl, owed.as_ptr().cast(), owed.len());
    }
    next!(SSL_shutdown(ssl => *mut Ssl) -> c_int, -1)
}

/// # Safety
/// As SSL_do_handshake(3). An application with a transport of its own cuts and joins what it sends where the engine
/// cannot follow: it gets copies from the first TLS connection on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_do_handshake(ssl: *mut Ssl) -> c_int {
    if descriptor(ssl).is_none() {
        engine::never();
    } else if let Some((fd, cell)) = connection(ssl) {
        quietly((), || {
            cell.with(fd, tls::begin);
        });
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

/// # Safety
/// As deflate of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflate(stream: *mut ZStream, flush: c_int) -> c_int {
    const Z_STREAM_ERROR: c_int = -2;
    // SAFETY: the caller's promise.
    if let Some(input) = unsafe { stream.as_ref() }
        && !put_back(input.next_in.cast(), input.avail_in as usize)
    {
        return Z_STREAM_ERROR;
    }
    next!(deflate(stream => *mut ZStream, flush => c_int) -> c_int, Z_STREAM_ERROR)
}

/// False: a placeholder cannot be resolved, the bytes must not be looked at.
fn put_back(buffer: *const c_void, size: usize) -> bool {
    if !anchor::any_open() || buffer.is_null() {
        return true;
    }
    let Some(engine) = engine::running() else { return true };
    let iov = [iovec { iov_base: buffer.cast_mut(), iov_len: size }];
    quietly(false, || exits::materialise(engine, None, &iov, Reason::ExitDeflate).is_ok()) || {
        engine.stats.reset();
        false
    }
}
