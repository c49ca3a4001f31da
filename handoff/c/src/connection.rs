#![allow(non_camel_case_types, reason = "the names in C")]

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

use libc::sockaddr_storage;
use underdeck_handoff_tcp::{Frozen, Snapshot, Thawing, freeze, thaw};

use crate::address;
use crate::error::{Failure, call, ud_handoff_error};

/// A connection that was read, and whose socket waits.
pub struct ud_handoff_frozen(Frozen);

/// The state of a connection.
pub struct ud_handoff_snapshot(Snapshot);

/// A restored connection that does not send yet.
pub struct ud_handoff_thawing(Thawing);

fn null(what: &str) -> Failure {
    Failure::argument(&format!("{what} is NULL"))
}

/// # Safety
/// NULL, or from `Box::into_raw` and not consumed yet.
unsafe fn consume<T>(at: *mut T, what: &str) -> Result<Box<T>, Failure> {
    if at.is_null() {
        return Err(null(what));
    }
    // SAFETY: by the contract of this function.
    Ok(unsafe { Box::from_raw(at) })
}

/// # Safety
/// `bytes` is NULL with a length of 0, or readable for `length` bytes.
unsafe fn slice<'a>(bytes: *const u8, length: usize, what: &str) -> Result<&'a [u8], Failure> {
    match (bytes.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        // SAFETY: by the contract of this function.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(bytes, length) }),
    }
}

/// Freezes a connection. `blob` travels with it; NULL and 0 for none.
///
/// Success consumes `fd`: the library owns it. After an error it is the caller's, and the connection goes on.
///
/// # Safety
/// `blob` is readable for `length` bytes, `frozen` writable; `fd` is owned by the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_freeze(
    fd: RawFd,
    blob: *const u8,
    length: usize,
    frozen: *mut *mut ud_handoff_frozen,
) -> ud_handoff_error {
    call(|| {
        if frozen.is_null() || fd < 0 {
            return Err(null("frozen, or fd"));
        }
        // SAFETY: by the contract of this function.
        let blob = unsafe { slice(blob, length, "blob") }?;
        // SAFETY: the caller owns it and gives it to us; after an error it is given back below.
        match freeze(unsafe { OwnedFd::from_raw_fd(fd) }, blob) {
            Ok(done) => {
                // SAFETY: checked above.
                unsafe { frozen.write(Box::into_raw(Box::new(ud_handoff_frozen(done)))) };
                Ok(())
            }
            Err(error) => {
                let (fd, error) = error.into_parts();
                let _ = fd.into_raw_fd();
                Err(error.into())
            }
        }
    })
}

/// The snapshot as bytes for another host. They hold payload and may hold keys: send them encrypted. Free them with
/// ud_handoff_free_bytes.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_encode(
    frozen: *const ud_handoff_frozen,
    bytes: *mut *mut u8,
    length: *mut usize,
) -> ud_handoff_error {
    call(|| {
        // SAFETY: by the contract of this function.
        let frozen = unsafe { frozen.as_ref() }.ok_or_else(|| null("frozen"))?;
        if bytes.is_null() || length.is_null() {
            return Err(null("bytes or length"));
        }
        let encoded = frozen.0.snapshot().encode().into_boxed_slice();
        // SAFETY: checked above.
        unsafe {
            length.write(encoded.len());
            bytes.write(Box::into_raw(encoded).cast());
        }
        Ok(())
    })
}

/// Frees what ud_handoff_encode gave.
///
/// # Safety
/// Both as ud_handoff_encode gave them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_free_bytes(bytes: *mut u8, length: usize) {
    if !bytes.is_null() {
        // SAFETY: made by `into_boxed_slice` with this length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes, length)) });
    }
}

/// Rolls back: the connection goes on here under `*fd`, and sends the first unacknowledged segment again. Consumes `frozen`.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_resume(frozen: *mut ud_handoff_frozen, fd: *mut RawFd) -> ud_handoff_error {
    call(|| {
        if fd.is_null() {
            return Err(null("fd"));
        }
        // SAFETY: by the contract of this function.
        let frozen = unsafe { consume(frozen, "frozen") }?;
        // SAFETY: checked above.
        unsafe { fd.write(frozen.0.resume()?.into_raw_fd()) };
        Ok(())
    })
}

/// Closes the socket without a word to the peer: the connection lives elsewhere. Consumes `frozen`.
///
/// # Safety
/// From ud_handoff_freeze, and not consumed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_release(frozen: *mut ud_handoff_frozen) -> ud_handoff_error {
    // SAFETY: by the contract of this function.
    call(|| unsafe { consume(frozen, "frozen") }.map(|frozen| frozen.0.release()))
}

/// Reads what ud_handoff_encode wrote.
///
/// # Safety
/// `bytes` is readable for `length` bytes, `snapshot` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_decode(
    bytes: *const u8,
    length: usize,
    snapshot: *mut *mut ud_handoff_snapshot,
) -> ud_handoff_error {
    call(|| {
        if snapshot.is_null() {
            return Err(null("snapshot"));
        }
        // SAFETY: by the contract of this function.
        let decoded = Snapshot::decode(unsafe { slice(bytes, length, "bytes") }?)?;
        // SAFETY: checked above.
        unsafe { snapshot.write(Box::into_raw(Box::new(ud_handoff_snapshot(decoded)))) };
        Ok(())
    })
}

/// The addresses that the connection had where it was frozen.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_addresses(
    snapshot: *const ud_handoff_snapshot,
    local: *mut sockaddr_storage,
    peer: *mut sockaddr_storage,
) -> ud_handoff_error {
    call(|| {
        // SAFETY: by the contract of this function.
        let snapshot = unsafe { snapshot.as_ref() }.ok_or_else(|| null("snapshot"))?;
        // SAFETY: by the contract of this function.
        unsafe {
            address::write(snapshot.0.local(), local)?;
            address::write(snapshot.0.peer(), peer)
        }
    })
}

/// The blob that was given to ud_handoff_freeze. It belongs to the snapshot.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_blob(
    snapshot: *const ud_handoff_snapshot,
    blob: *mut *const u8,
    length: *mut usize,
) -> ud_handoff_error {
    call(|| {
        // SAFETY: by the contract of this function.
        let snapshot = unsafe { snapshot.as_ref() }.ok_or_else(|| null("snapshot"))?;
        if blob.is_null() || length.is_null() {
            return Err(null("blob or length"));
        }
        // SAFETY: checked above.
        unsafe {
            blob.write(snapshot.0.blob().as_ptr());
            length.write(snapshot.0.blob().len());
        }
        Ok(())
    })
}

/// Frees a snapshot.
///
/// # Safety
/// NULL, or from ud_handoff_decode.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_free_snapshot(snapshot: *mut ud_handoff_snapshot) {
    // SAFETY: by the contract of this function.
    let _ = unsafe { consume(snapshot, "snapshot") };
}

/// Restores a connection at `local`, an address and port of this host. It does not send yet.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_thaw(
    snapshot: *const ud_handoff_snapshot,
    local: *const sockaddr_storage,
    thawing: *mut *mut ud_handoff_thawing,
) -> ud_handoff_error {
    call(|| {
        // SAFETY: by the contract of this function.
        let snapshot = unsafe { snapshot.as_ref() }.ok_or_else(|| null("snapshot"))?;
        if thawing.is_null() {
            return Err(null("thawing"));
        }
        // SAFETY: by the contract of this function.
        let done = thaw(&snapshot.0, unsafe { address::read(local) }?)?;
        // SAFETY: checked above.
        unsafe { thawing.write(Box::into_raw(Box::new(ud_handoff_thawing(done)))) };
        Ok(())
    })
}

/// Brings a restored connection into the state in which it was, if one side has closed. After this, nothing that depends
/// on the connection can fail. Nothing to do for others. Needs the loopback device, and a source rule or a block.
///
/// UD_HANDOFF_ERROR_STATE if it did not come about: give the connection up then. The object stays the caller's.
///
/// # Safety
/// From ud_handoff_thaw, and not consumed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_half_close(thawing: *mut ud_handoff_thawing) -> ud_handoff_error {
    // SAFETY: by the contract of this function.
    call(|| Ok(unsafe { thawing.as_mut() }.ok_or_else(|| null("thawing"))?.0.half_close()?))
}

/// Lets a restored connection go on under `*fd`, which is in non-blocking mode and closes on exec: sends what was unsent,
/// and the first unacknowledged segment again. Does what ud_handoff_half_close does, if that was not called. Consumes
/// `thawing`.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_finish(thawing: *mut ud_handoff_thawing, fd: *mut RawFd) -> ud_handoff_error {
    call(|| {
        if fd.is_null() {
            return Err(null("fd"));
        }
        // SAFETY: by the contract of this function.
        let thawing = unsafe { consume(thawing, "thawing") }?;
        // SAFETY: checked above.
        unsafe { fd.write(thawing.0.finish()?.into_raw_fd()) };
        Ok(())
    })
}

/// Gives a restored connection up, without a word to the peer. Consumes `thawing`.
///
/// # Safety
/// NULL, or from ud_handoff_thaw and not consumed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_abandon(thawing: *mut ud_handoff_thawing) {
    // SAFETY: by the contract of this function.
    let _ = unsafe { consume(thawing, "thawing") };
}
