use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use underdeck_handoff_steer as steer;
use underdeck_handoff_tcp as tcp;

/// Why a call failed.
#[allow(non_camel_case_types, reason = "the name in C")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum ud_handoff_error {
    /// It did not fail.
    Ok = 0,
    /// A pointer is NULL, a name is no UTF-8, or an address is neither IPv4 nor IPv6.
    Argument = 1,
    /// A capability is missing.
    Privilege = 2,
    /// The descriptor is no TCP socket, or the connection is in a state that cannot be handed over.
    State = 3,
    /// The connection kept changing while it was read: block its packets first.
    Moving = 4,
    /// The address and port are taken towards this peer: try another port.
    AddressInUse = 5,
    /// The address is not this host's, or there is no route.
    Address = 6,
    /// The bytes are no snapshot, or one of a newer version.
    Snapshot = 7,
    /// Kernel TLS is missing, or a record is under way.
    Ktls = 8,
    /// There is no room for another flow.
    Full = 9,
    /// A system call failed, or the kernel lacks something.
    System = 10,
    /// A fault of this library. The object that was passed must not be used again.
    Internal = 11,
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// What the last call that failed on this thread has to say. Valid until the next call on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn ud_handoff_message() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}

/// A failure with its message.
pub(crate) struct Failure(ud_handoff_error, String);

impl Failure {
    pub fn argument(message: &str) -> Failure {
        Failure(ud_handoff_error::Argument, message.to_owned())
    }
}

impl From<tcp::Error> for Failure {
    fn from(error: tcp::Error) -> Failure {
        use tcp::Error::*;
        let code = match error {
            Privilege => ud_handoff_error::Privilege,
            NotTcp | State(_) | Urgent | HalfClose { .. } => ud_handoff_error::State,
            Moving(_) => ud_handoff_error::Moving,
            Ktls(_) => ud_handoff_error::Ktls,
            AddressInUse { .. } => ud_handoff_error::AddressInUse,
            NotLocal(_) | NoRoute { .. } | Family { .. } => ud_handoff_error::Address,
            _ => ud_handoff_error::System,
        };
        Failure(code, error.to_string())
    }
}

impl From<tcp::DecodeError> for Failure {
    fn from(error: tcp::DecodeError) -> Failure {
        Failure(ud_handoff_error::Snapshot, error.to_string())
    }
}

impl From<steer::Error> for Failure {
    fn from(error: steer::Error) -> Failure {
        use steer::Error::*;
        let code = match error {
            Privilege => ud_handoff_error::Privilege,
            Full { .. } => ud_handoff_error::Full,
            Exists(_) => ud_handoff_error::AddressInUse,
            Family(..) | LocalTarget(_) | NoRoute { .. } | NoInterface(_) => ud_handoff_error::Address,
            _ => ud_handoff_error::System,
        };
        Failure(code, error.to_string())
    }
}

/// Runs a call; neither an error nor a panic crosses into C.
pub(crate) fn call(work: impl FnOnce() -> Result<(), Failure>) -> ud_handoff_error {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return ud_handoff_error::Ok,
        Ok(Err(failure)) => failure,
        Err(_) => Failure(ud_handoff_error::Internal, "a fault of the library".to_owned()),
    };
    let message = CString::new(failure.1.replace('\0', " ")).unwrap_or_default();
    MESSAGE.set(message);
    failure.0
}
