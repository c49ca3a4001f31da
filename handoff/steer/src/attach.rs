//! The programs at the hooks of an interface: tcx (Linux 6.6), or clsact before it.
//!
//! A tcx link goes with the last descriptor, so nothing is left of a process that dies, unless the link is pinned. A
//! filter of clsact stays. Its owner is alive as long as a socket of the abstract name `underdeck-steer-HANDLE` exists,
//! in the same network namespace as the filter.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use libbpf_sys as sys;

use crate::Error;
use crate::netlink;
use crate::program::{Hook, Program, c_path, call, pin_error};

/// The priority of our filters of clsact.
const PRIORITY: u16 = 0xdec;

/// How often a free handle is looked for.
const HANDLES: u32 = 1024;

/// What kind of hook to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// tcx if the kernel has it, clsact otherwise.
    #[default]
    Auto,
    /// tcx only.
    Tcx,
    /// clsact only.
    Clsact,
}

/// One program at one hook.
#[derive(Debug)]
pub enum Attached {
    Tcx { link: NonNull<sys::bpf_link>, pin: Option<PathBuf> },
    Clsact { interface: u32, hook: Hook, handle: u32 },
}

// SAFETY: a libbpf link has no thread affinity.
unsafe impl Send for Attached {}
// SAFETY: nothing is done with it until it is dropped.
unsafe impl Sync for Attached {}

impl Attached {
    /// The link pinned at `pin` gets the new program, if there is one; packets see either the old or the new.
    pub fn tcx(program: &Program, interface: u32, hook: Hook, pin: Option<&Path>) -> Result<Attached, Error> {
        if let Some(path) = pin
            && let Some(link) = take_over(program, hook, path)?
        {
            return Ok(Attached::Tcx { link, pin: Some(path.to_path_buf()) });
        }
        // SAFETY: the program is loaded; no options.
        let link =
            unsafe { sys::bpf_program__attach_tcx(program.handle(hook), interface.cast_signed(), std::ptr::null()) };
        let link = NonNull::new(link).ok_or_else(|| Error::last("tcx"))?;
        // An error below detaches it again.
        let mut attached = Attached::Tcx { link, pin: None };
        if let (Some(path), Attached::Tcx { pin, .. }) = (pin, &mut attached) {
            let name = c_path(path)?;
            // SAFETY: the link is open, the path a C string.
            if unsafe { sys::bpf_link__pin(link.as_ptr(), name.as_ptr()) } != 0 {
                return Err(pin_error(path));
            }
            *pin = Some(path.to_path_buf());
        }
        Ok(attached)
    }

    pub fn clsact(program: &Program, interface: u32, hook: Hook, handle: u32) -> Result<Attached, Error> {
        let mut at = tc_hook(interface, hook);
        // SAFETY: a valid hook. It exists already if another program uses clsact.
        match call(unsafe { sys::bpf_tc_hook_create(&raw mut at) }) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(Error::call("clsact", error)),
            _ => {}
        }
        let mut options = tc_options(handle);
        // SAFETY: the program is loaded.
        options.prog_fd = unsafe { sys::bpf_program__fd(program.handle(hook)) };
        // SAFETY: valid hook and options.
        call(unsafe { sys::bpf_tc_attach(&raw const at, &raw mut options) })
            .map_err(|source| Error::call("cls_bpf", source))?;
        Ok(Attached::Clsact { interface, hook, handle })
    }

    /// Removes a pin, so that dropping detaches.
    pub fn unpin(&mut self) {
        if let Attached::Tcx { pin, .. } = self
            && let Some(path) = pin.take()
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        match self {
            Attached::Tcx { link, pin } => {
                if pin.is_none() {
                    // Not left to the last close: a child that was just forked may have the descriptor too.
                    // SAFETY: the link is open.
                    unsafe { sys::bpf_link_detach(sys::bpf_link__fd(link.as_ptr())) };
                }
                // SAFETY: opened when this was made, destroyed only here. A pinned link stays attached.
                unsafe { sys::bpf_link__destroy(link.as_ptr()) };
            }
            Attached::Clsact { interface, hook, handle } => {
                detach(*interface, *hook, *handle);
            }
        }
    }
}

fn take_over(program: &Program, hook: Hook, path: &Path) -> Result<Option<NonNull<sys::bpf_link>>, Error> {
    if !path.exists() {
        return Ok(None);
    }
    let name = c_path(path)?;
    // SAFETY: a C string.
    let link = NonNull::new(unsafe { sys::bpf_link__open(name.as_ptr()) }).ok_or_else(|| pin_error(path))?;
    // SAFETY: the link is open, the program loaded.
    if unsafe { sys::bpf_link__update_program(link.as_ptr(), program.handle(hook)) } == 0 {
        return Ok(Some(link));
    }
    // The interface has gone, and the link with it.
    let _ = std::fs::remove_file(path);
    // SAFETY: opened above.
    unsafe { sys::bpf_link__destroy(link.as_ptr()) };
    Ok(None)
}

fn tc_hook(interface: u32, hook: Hook) -> sys::bpf_tc_hook {
    sys::bpf_tc_hook {
        sz: size_of::<sys::bpf_tc_hook>() as sys::size_t,
        ifindex: interface.cast_signed(),
        attach_point: match hook {
            Hook::Ingress => sys::BPF_TC_INGRESS,
            Hook::Egress => sys::BPF_TC_EGRESS,
        },
        ..Default::default()
    }
}

fn tc_options(handle: u32) -> sys::bpf_tc_opts {
    sys::bpf_tc_opts {
        sz: size_of::<sys::bpf_tc_opts>() as sys::size_t,
        handle,
        priority: u32::from(PRIORITY),
        ..Default::default()
    }
}

/// Removes a filter; and the qdisc, if that was its last one.
fn detach(interface: u32, hook: Hook, handle: u32) {
    let mut at = tc_hook(interface, hook);
    let options = tc_options(handle);
    // SAFETY: valid hook and options. It may be gone, with its interface.
    unsafe { sys::bpf_tc_detach(&raw const at, &raw const options) };
    let empty =
        Hook::BOTH.iter().all(|hook| matches!(netlink::filters(interface, parent(*hook)), Ok(f) if f.is_empty()));
    if empty {
        at.attach_point = sys::BPF_TC_INGRESS | sys::BPF_TC_EGRESS;
        // SAFETY: a valid hook; both attach points together mean the qdisc.
        unsafe { sys::bpf_tc_hook_destroy(&raw mut at) };
    }
}

/// TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS or TC_H_MIN_EGRESS).
fn parent(hook: Hook) -> u32 {
    match hook {
        Hook::Ingress => 0xffff_fff2,
        Hook::Egress => 0xffff_fff3,
    }
}

/// The sign of life of an owner of clsact filters.
#[derive(Debug)]
pub struct Owner {
    pub handle: u32,
    _alive: OwnedFd,
}

impl Owner {
    pub fn new() -> Result<Owner, Error> {
        let first = std::process::id().wrapping_mul(HANDLES);
        for handle in (0..HANDLES).map(|n| first.wrapping_add(n).max(1)) {
            if let Some(socket) = claim(handle)? {
                return Ok(Owner { handle, _alive: socket });
            }
        }
        Err(Error::Call { call: "bind", source: io::ErrorKind::AddrInUse.into() })
    }
}

/// The socket of a handle, if nobody has it.
fn claim(handle: u32) -> Result<Option<OwnedFd>, Error> {
    // SAFETY: makes a descriptor that nobody else has.
    let fd = match unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) } {
        // SAFETY: it was just made.
        fd @ 0.. => unsafe { OwnedFd::from_raw_fd(fd) },
        _ => return Err(Error::last("socket")),
    };
    // SAFETY: all zero is an address without a name.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = format!("underdeck-steer-{handle:08x}");
    for (to, byte) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = byte.cast_signed();
    }
    let length = size_of::<libc::sa_family_t>() + 1 + name.len();
    // SAFETY: `address` holds `length` bytes.
    match unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length as libc::socklen_t) } {
        0 => Ok(Some(fd)),
        _ if io::Error::last_os_error().raw_os_error() == Some(libc::EADDRINUSE) => Ok(None),
        _ => Err(Error::last("bind")),
    }
}

/// Removes the clsact filters of processes that are gone. Returns how many there were.
pub fn sweep(interface: u32) -> Result<usize, Error> {
    let mut swept = 0;
    for hook in Hook::BOTH {
        // An interface without clsact has no filters.
        for filter in netlink::filters(interface, parent(hook)).unwrap_or_default() {
            if filter.priority == PRIORITY && filter.kind == "bpf" && claim(filter.handle)?.is_some() {
                detach(interface, hook, filter.handle);
                swept += 1;
            }
        }
    }
    Ok(swept)
}
