//! Counters in shared memory: the engine in a proxy writes them ([`Block`]), `stat`, `metrics` and tests read them
//! ([`Snapshot`]).
//!
//! The layout and the list of reasons are those of `abi/underdeck_stats.h`; nothing is typed twice.

mod layout;
#[cfg(feature = "reader")]
mod reader;
mod writer;

pub use layout::{Reason, Role};
#[cfg(feature = "reader")]
pub use reader::{Found, ReadError, RoleSnapshot, Snapshot, find_all, find_all_in};
pub use writer::{Block, CreateError, Created, Gauge, RoleCounters};
