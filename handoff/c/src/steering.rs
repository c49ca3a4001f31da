#![allow(non_camel_case_types, reason = "the names in C")]

use std::ffi::{CStr, c_char};
use std::path::PathBuf;

use libc::sockaddr_storage;
use underdeck_handoff_steer::{Flow, Options, Steer, Target};

use crate::address;
use crate::error::{Failure, call, ud_handoff_error};

/// Programs at the hooks of some interfaces.
pub struct ud_handoff_steer(Steer);

/// Attaches to an interface of the calling thread's network namespace, with room for `capacity` flows. `pin` is NULL, or
/// a folder in a BPF file system in which the rules outlive the process.
///
/// # Safety
/// The names are C strings; `steer` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_attach(
    interface: *const c_char,
    capacity: u32,
    pin: *const c_char,
    steer: *mut *mut ud_handoff_steer,
) -> ud_handoff_error {
    call(|| {
        if steer.is_null() {
            return Err(Failure::argument("steer is NULL"));
        }
        // SAFETY: by the contract of this function.
        let (interface, pin) = unsafe { (text(interface)?, text(pin)?) };
        let interface = interface.ok_or_else(|| Failure::argument("interface is NULL"))?;
        let options = Options { capacity, pin: pin.map(PathBuf::from), ..Options::default() };
        let attached = Steer::attach(&[interface], &options)?;
        // SAFETY: checked above.
        unsafe { steer.write(Box::into_raw(Box::new(ud_handoff_steer(attached)))) };
        Ok(())
    })
}

/// Takes everything back, and frees `steer`. With `keep` other than 0, pinned rules stay.
///
/// # Safety
/// NULL, or from ud_handoff_attach and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_detach(steer: *mut ud_handoff_steer, keep: i32) {
    call(|| {
        if !steer.is_null() {
            // SAFETY: by the contract of this function.
            let steer = unsafe { Box::from_raw(steer) };
            if keep == 0 {
                steer.0.detach();
            }
        }
        Ok(())
    });
}

/// Silences a flow in both directions, except for packets to the peer that have a source rule.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_block(
    steer: *const ud_handoff_steer,
    local: *const sockaddr_storage,
    peer: *const sockaddr_storage,
) -> ud_handoff_error {
    // SAFETY: by the contract of this function.
    unsafe { with(steer, local, peer, |steer, flow| Ok(steer.block(flow)?)) }
}

/// Sends the peer's packets to `target` instead, in place of a block.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_redirect(
    steer: *const ud_handoff_steer,
    local: *const sockaddr_storage,
    peer: *const sockaddr_storage,
    target: *const sockaddr_storage,
) -> ud_handoff_error {
    // SAFETY: by the contract of this function.
    unsafe {
        with(steer, local, peer, |steer, flow| {
            let target = Target::resolve(address::read(target)?)?;
            Ok(steer.redirect(flow, &target)?)
        })
    }
}

/// Gives packets to the peer the source `source`: the address and port that the peer knows.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_rewrite_source(
    steer: *const ud_handoff_steer,
    local: *const sockaddr_storage,
    peer: *const sockaddr_storage,
    source: *const sockaddr_storage,
) -> ud_handoff_error {
    // SAFETY: by the contract of this function.
    unsafe { with(steer, local, peer, |steer, flow| Ok(steer.rewrite_source(flow, address::read(source)?)?)) }
}

/// Ends a block or a redirection. Nothing happens if there is none.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_unblock(
    steer: *const ud_handoff_steer,
    local: *const sockaddr_storage,
    peer: *const sockaddr_storage,
) -> ud_handoff_error {
    // SAFETY: by the contract of this function.
    unsafe { with(steer, local, peer, |steer, flow| Ok(steer.remove_ingress(flow).map(drop)?)) }
}

/// Ends ud_handoff_rewrite_source. Nothing happens if there is no such rule.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ud_handoff_keep_source(
    steer: *const ud_handoff_steer,
    local: *const sockaddr_storage,
    peer: *const sockaddr_storage,
) -> ud_handoff_error {
    // SAFETY: by the contract of this function.
    unsafe { with(steer, local, peer, |steer, flow| Ok(steer.remove_source(flow).map(drop)?)) }
}

/// # Safety
/// All pointers are NULL or valid.
unsafe fn with(
    steer: *const ud_handoff_steer,
    local: *const sockaddr_storage,
    peer: *const sockaddr_storage,
    work: impl FnOnce(&Steer, &Flow) -> Result<(), Failure>,
) -> ud_handoff_error {
    call(|| {
        // SAFETY: by the contract of this function.
        let steer = unsafe { steer.as_ref() }.ok_or_else(|| Failure::argument("steer is NULL"))?;
        // SAFETY: by the contract of this function.
        let flow = unsafe { Flow { local: address::read(local)?, peer: address::read(peer)? } };
        work(&steer.0, &flow)
    })
}

/// # Safety
/// NULL, or a C string.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by the contract of this function.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::argument("a name is not UTF-8"))
}
