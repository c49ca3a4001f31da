//! The C interface of `handoff/tcp` and `handoff/steer`. The manual is `abi/underdeck_handoff.h`, which is generated from
//! this crate.

mod address;
mod connection;
mod error;
mod steering;

pub use connection::*;
pub use error::*;
pub use steering::*;
