//! The programs and their map, loaded into the kernel.

use std::ffi::{CStr, CString, c_void};
use std::io;
use std::os::raw::c_char;
use std::path::Path;
use std::ptr::NonNull;

use libbpf_sys as sys;

use crate::Error;
use crate::abi::{ud_flow, ud_rule};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));

/// Bytes for the verifier's log.
const LOG_BYTES: usize = 64 << 10;

const LOAD_ATTEMPTS: u32 = 5;

/// Which of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Ingress,
    Egress,
}

impl Hook {
    pub const BOTH: [Hook; 2] = [Hook::Ingress, Hook::Egress];

    fn program(self) -> &'static CStr {
        match self {
            Hook::Ingress => c"ud_ingress",
            Hook::Egress => c"ud_egress",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Hook::Ingress => "ingress",
            Hook::Egress => "egress",
        }
    }
}

/// The loaded object.
#[derive(Debug)]
pub struct Program {
    object: NonNull<sys::bpf_object>,
    map: i32,
    capacity: u32,
}

// SAFETY: libbpf objects have no thread affinity, and after loading only their descriptors are used.
unsafe impl Send for Program {}
// SAFETY: as above; the map's system calls may be made at the same time.
unsafe impl Sync for Program {}

impl Program {
    /// Loads the programs with a map for `capacity` rules, or with the map that is pinned at `pinned`.
    pub fn load(capacity: u32, pinned: Option<&Path>) -> Result<Program, Error> {
        let mut attempts = 1;
        loop {
            match Program::load_once(capacity, pinned) {
                // The verifier gives up when a signal arrives.
                Err(Error::Refused { source, .. })
                    if attempts < LOAD_ATTEMPTS
                        && matches!(source.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) =>
                {
                    attempts += 1;
                }
                result => return result,
            }
        }
    }

    fn load_once(capacity: u32, pinned: Option<&Path>) -> Result<Program, Error> {
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = sys::bpf_object_open_opts {
            sz: size_of::<sys::bpf_object_open_opts>() as sys::size_t,
            object_name: c"underdeck_steer".as_ptr(),
            kernel_log_buf: log.as_mut_ptr().cast::<c_char>(),
            kernel_log_size: LOG_BYTES as sys::size_t,
            ..Default::default()
        };
        // SAFETY: sets a callback that does nothing; libbpf would print to stderr otherwise.
        unsafe { sys::libbpf_set_print(None) };
        // SAFETY: bytes and options outlive the call; the log outlives the load below, the last call that writes to it.
        let object = unsafe {
            sys::bpf_object__open_mem(OBJECT.as_ptr().cast::<c_void>(), OBJECT.len() as sys::size_t, &raw mut options)
        };
        let object = NonNull::new(object).ok_or_else(|| Error::last("bpf_object__open"))?;
        let mut program = Program { object, map: -1, capacity };
        // SAFETY: the object is open, the name is a C string.
        let map = unsafe { sys::bpf_object__find_map_by_name(object.as_ptr(), c"ud_rules".as_ptr()) };
        match pinned {
            Some(path) => program.reuse(map, path)?,
            // SAFETY: the map belongs to the object, which is not loaded yet.
            None => check("max_entries", unsafe { sys::bpf_map__set_max_entries(map, capacity) })?,
        }
        // SAFETY: the object is open.
        let result = unsafe { sys::bpf_object__load(object.as_ptr()) };
        if result != 0 {
            return Err(refusal(io::Error::from_raw_os_error(-result), &log));
        }
        // SAFETY: the map belongs to the loaded object.
        program.map = unsafe { sys::bpf_map__fd(map) };
        Ok(program)
    }

    fn reuse(&mut self, map: *mut sys::bpf_map, path: &Path) -> Result<(), Error> {
        let name = c_path(path)?;
        // SAFETY: the path is a C string.
        let fd = unsafe { sys::bpf_obj_get(name.as_ptr()) };
        if fd < 0 {
            return Err(pin_error(path));
        }
        // SAFETY: the map belongs to an object that is not loaded yet; libbpf duplicates the descriptor.
        let result = unsafe { sys::bpf_map__reuse_fd(map, fd) };
        // SAFETY: opened above.
        unsafe { libc::close(fd) };
        check("bpf_map__reuse_fd", result)?;
        // SAFETY: the map belongs to the object.
        self.capacity = unsafe { sys::bpf_map__max_entries(map) };
        Ok(())
    }

    /// Rules that there can be.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    pub fn pin_map(&self, path: &Path) -> Result<(), Error> {
        let name = c_path(path)?;
        // SAFETY: the descriptor is open, the path a C string.
        if unsafe { sys::bpf_obj_pin(self.map, name.as_ptr()) } != 0 {
            return Err(pin_error(path));
        }
        Ok(())
    }

    pub fn handle(&self, hook: Hook) -> *mut sys::bpf_program {
        // SAFETY: the object is loaded and has both programs.
        unsafe { sys::bpf_object__find_program_by_name(self.object.as_ptr(), hook.program().as_ptr()) }
    }

    /// Sets a rule. `flags` is one of `BPF_ANY` and `BPF_NOEXIST`.
    pub fn set(&self, key: &ud_flow, rule: &ud_rule, flags: u32) -> io::Result<()> {
        let (key, rule) = (std::ptr::from_ref(key).cast(), std::ptr::from_ref(rule).cast());
        // SAFETY: key and value have the sizes of the map's.
        call(unsafe { sys::bpf_map_update_elem(self.map, key, rule, u64::from(flags)) })
    }

    pub fn get(&self, key: &ud_flow) -> Option<ud_rule> {
        let mut rule = ud_rule::default();
        let (key, to) = (std::ptr::from_ref(key).cast(), (&raw mut rule).cast());
        // SAFETY: key and value have the sizes of the map's.
        (unsafe { sys::bpf_map_lookup_elem(self.map, key, to) } == 0).then_some(rule)
    }

    /// Removes a rule. False if there was none.
    pub fn remove(&self, key: &ud_flow) -> io::Result<bool> {
        // SAFETY: the key has the size of the map's.
        match call(unsafe { sys::bpf_map_delete_elem(self.map, std::ptr::from_ref(key).cast()) }) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn keys(&self) -> Vec<ud_flow> {
        let mut keys = Vec::new();
        let mut key = ud_flow::default();
        let mut previous: *const c_void = std::ptr::null();
        // Rules that come and go meanwhile may restart the walk; the map bounds it.
        while keys.len() < 2 * self.capacity as usize {
            // SAFETY: both keys have the size of the map's; the kernel writes the next one.
            if unsafe { sys::bpf_map_get_next_key(self.map, previous, (&raw mut key).cast()) } != 0 {
                break;
            }
            keys.push(key);
            previous = std::ptr::from_ref(&keys[keys.len() - 1]).cast();
        }
        keys.sort_unstable_by_key(|key| (key.hook, key.source, key.source_port, key.destination, key.destination_port));
        keys.dedup_by_key(|key| (key.hook, key.source, key.source_port, key.destination, key.destination_port));
        keys
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: opened in `load`, closed only here.
        unsafe { sys::bpf_object__close(self.object.as_ptr()) };
    }
}

/// libbpf's result as an error.
pub fn call(result: i32) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

fn check(what: &'static str, result: i32) -> Result<(), Error> {
    call(result).map_err(|source| Error::call(what, source))
}

pub fn c_path(path: &Path) -> Result<CString, Error> {
    use std::os::unix::ffi::OsStrExt as _;
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| Error::Pin { path: path.display().to_string(), source: error.into() })
}

pub fn pin_error(path: &Path) -> Error {
    Error::Pin { path: path.display().to_string(), source: io::Error::last_os_error() }
}

fn refusal(source: io::Error, log: &[u8]) -> Error {
    let log = CStr::from_bytes_until_nul(log).map(|log| log.to_string_lossy().into_owned()).unwrap_or_default();
    if log.is_empty() && matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
        return Error::Privilege;
    }
    let end = log.lines().rev().take(5).collect::<Vec<_>>();
    Error::Refused { source, log: end.into_iter().rev().collect::<Vec<_>>().join(" | ") }
}
