//! Side by side: the same nginx plain and under Underdeck, measured in interleaved pairs.
//!
//! Clients and backend share one CPU, the proxy has another to itself. What is compared is the proxy's CPU time, not
//! the wall clock: on a small machine the clients are the limit.

pub mod measure;
pub mod report;
pub mod verify;
