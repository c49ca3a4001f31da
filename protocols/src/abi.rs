//! The contract of `abi/underdeck_protocol.h`, mirrored by bindgen, and its two enums in Rust's clothes.

/// What bindgen made of the header. Field by field the documentation is there.
#[allow(missing_docs, non_camel_case_types, reason = "generated from the C header, which documents every item")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/underdeck_protocol.rs"));
}

pub use generated::{UD_PROTOCOL_VERSION, UD_STATE_WORDS, UD_WINDOW, ud_cut};
pub(crate) use generated::{ud_direction, ud_role, ud_verdict};

/// Bytes of the stream that a program sees at once.
pub const WINDOW: usize = UD_WINDOW as usize;
/// `span` of an opaque verdict that lasts to the end of the stream (`UD_UNTIL_CLOSE`).
pub const UNTIL_CLOSE: u64 = u64::MAX;
/// `then` behind the end of a message (`UD_BETWEEN`).
pub(crate) const BETWEEN: u64 = u64::MAX - 1;

/// Direction of a stream, seen from the process that holds the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Direction {
    /// Bytes that the process receives.
    Rx = ud_direction::UD_RX,
    /// Bytes that the process sends.
    Tx = ud_direction::UD_TX,
}

/// Who opened the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    /// Accepted: RX carries requests, TX responses.
    Server = ud_role::UD_SERVER,
    /// Connected: TX carries requests, RX responses.
    Client = ud_role::UD_CLIENT,
}
