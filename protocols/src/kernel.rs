//! Shows an object to the kernel's verifier, and runs it there.

use std::ffi::{CStr, c_void};
use std::os::raw::c_char;
use std::ptr::NonNull;

use libbpf_sys as sys;

use crate::abi::ud_cut;
use crate::object::{self, ObjectError};

/// Bytes for the verifier's log. It keeps the end if there is more.
const LOG_BYTES: usize = 1 << 20;

/// An object that the kernel's verifier accepted, loaded as `BPF_PROG_TYPE_SYSCALL`.
#[derive(Debug)]
pub struct Loaded {
    object: NonNull<sys::bpf_object>,
    program: i32,
}

/// Why the kernel did not take an object.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// It is no protocol program, so it was not shown to the kernel.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// This process may not load programs.
    #[error("loading eBPF needs CAP_BPF (or CAP_SYS_ADMIN): run as root")]
    Privilege,
    /// libbpf could not make sense of the file.
    #[error("libbpf cannot open the object: {0}")]
    Open(std::io::Error),
    /// The verifier refused it.
    #[error("the kernel's verifier refuses it: {summary}")]
    Refused {
        /// The line of the log that matters, with the source line before it.
        summary: String,
        /// All that the verifier said.
        log: String,
    },
    /// It could be loaded, but not run.
    #[error("BPF_PROG_TEST_RUN: {0}")]
    Run(std::io::Error),
}

impl Loaded {
    /// Loads `elf`.
    ///
    /// # Errors
    /// If it is no protocol program, this process lacks CAP_BPF, or the verifier refuses it.
    pub fn load(elf: &[u8]) -> Result<Loaded, KernelError> {
        object::read(elf)?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = sys::bpf_object_open_opts {
            sz: size_of::<sys::bpf_object_open_opts>() as sys::size_t,
            object_name: c"underdeck".as_ptr(),
            kernel_log_buf: log.as_mut_ptr().cast::<c_char>(),
            kernel_log_size: LOG_BYTES as sys::size_t,
            ..Default::default()
        };
        // SAFETY: sets a callback that does nothing; libbpf would print to stderr otherwise.
        unsafe { sys::libbpf_set_print(None) };
        // SAFETY: `elf` and `options` outlive the call; libbpf copies what it keeps, except the log buffer, which outlives
        // the load below, the only other call that writes to it.
        let object = unsafe {
            sys::bpf_object__open_mem(elf.as_ptr().cast::<c_void>(), elf.len() as sys::size_t, &raw mut options)
        };
        let object = NonNull::new(object).ok_or_else(|| KernelError::Open(std::io::Error::last_os_error()))?;
        let mut loaded = Loaded { object, program: -1 };
        // SAFETY: the object is open and owned by `loaded`.
        let result = unsafe { sys::bpf_object__load(object.as_ptr()) };
        if result != 0 {
            return Err(refusal(-result, &log));
        }
        // SAFETY: the object is loaded; its first program lives as long as it.
        loaded.program = unsafe {
            let program = sys::bpf_object__next_program(object.as_ptr(), std::ptr::null_mut());
            if program.is_null() { -1 } else { sys::bpf_program__fd(program) }
        };
        if loaded.program < 0 {
            return Err(ObjectError::NoSection("syscall").into());
        }
        Ok(loaded)
    }

    /// One cut in the kernel.
    pub(crate) fn run(&self, cut: &mut ud_cut) -> Result<(), KernelError> {
        let mut options = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
            ctx_in: std::ptr::from_mut(cut).cast::<c_void>(),
            ctx_size_in: size_of::<ud_cut>() as u32,
            ..Default::default()
        };
        // SAFETY: the descriptor is open; the kernel reads and writes the `ctx_size_in` bytes at `ctx_in`.
        match unsafe { sys::bpf_prog_test_run_opts(self.program, &raw mut options) } {
            0 => Ok(()),
            _ => Err(KernelError::Run(std::io::Error::last_os_error())),
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: opened in `load`, closed only here.
        unsafe { sys::bpf_object__close(self.object.as_ptr()) };
    }
}

fn refusal(errno: i32, log: &[u8]) -> KernelError {
    let log = CStr::from_bytes_until_nul(log).map(|log| log.to_string_lossy().into_owned()).unwrap_or_default();
    if log.is_empty() && matches!(errno, libc::EPERM | libc::EACCES) {
        return KernelError::Privilege;
    }
    let summary = summary(&log).unwrap_or_else(|| std::io::Error::from_raw_os_error(errno).to_string());
    KernelError::Refused { summary, log }
}

/// The last complaint of a verifier log, and the source line that it is about.
fn summary(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().collect();
    let is_noise = |line: &str| {
        line.is_empty()
            || ["processed ", "--", "verification time", "stack depth"].iter().any(|noise| line.starts_with(noise))
            || line.chars().next().is_some_and(|c| c.is_ascii_digit())
            || line.starts_with("; ")
            || line.starts_with("mark_precise")
            || line.starts_with("from ")
            || line.contains("frame0: R")
    };
    let at = lines.iter().rposition(|line| !is_noise(line))?;
    let complaint = lines[at].trim();
    Some(match lines[..at].iter().rev().find_map(|line| line.strip_prefix("; ")) {
        Some(source) => format!("{complaint} (at: {})", source.trim()),
        None => complaint.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_matters() {
        let log = "0: R1=ctx() R10=fp0\n; ud_u64 *left = &c->state[c->direction & 1]; @ lenprefix.bpf.c:12\n\
                   0: (61) r3 = *(u32 *)(r1 +260)\n5: (79) r3 = *(u64 *)(r2 +280)\n\
                   variable ctx access var_off=(0x0; 0x8) disallowed\nprocessed 6 insns (limit 1000000)\n";
        assert_eq!(
            summary(log).unwrap(),
            "variable ctx access var_off=(0x0; 0x8) disallowed (at: ud_u64 *left = &c->state[c->direction & 1]; @ lenprefix.bpf.c:12)"
        );
        assert_eq!(summary(""), None);
    }
}
