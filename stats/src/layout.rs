//! What build.rs made of the header.

/// As readers see it: plain words.
#[cfg(feature = "reader")]
#[allow(
    missing_docs,
    non_camel_case_types,
    dead_code,
    reason = "generated; documented in abi/underdeck_stats.h and named as there"
)]
pub mod plain {
    include!(concat!(env!("OUT_DIR"), "/plain.rs"));
}

/// As writers see it: the same words as atomics, with the same compile-time checks of every offset.
#[allow(
    missing_docs,
    non_camel_case_types,
    dead_code,
    reason = "generated; documented in abi/underdeck_stats.h and named as there"
)]
pub mod atomic {
    use core::sync::atomic::AtomicU64;
    include!(concat!(env!("OUT_DIR"), "/atomic.rs"));
}

include!(concat!(env!("OUT_DIR"), "/reasons.rs"));

/// Who opened the connection that payload was received on; the number is `enum ud_role`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// The process accepted it: payload of requests (uploads).
    Accepted = 0,
    /// The process connected it: payload of responses.
    Connected = 1,
}

impl Role {
    /// Both roles, in the order of their slot.
    pub const ALL: [Self; 2] = [Self::Accepted, Self::Connected];

    /// The word for command line, metrics and docs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Connected => "connected",
        }
    }
}

/// Bytes of a block: one page, as the header asserts.
pub const BLOCK_BYTES: usize = 4096;
const _: () = assert!(size_of::<atomic::ud_stats>() <= BLOCK_BYTES);
