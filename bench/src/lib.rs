//! Side by side: a proxy plain and under Underdeck, and what else could move the bytes, measured in interleaved runs.
//!
//! The proxy has one CPU to itself, clients and backend share another. What is compared is the proxy's CPU time while
//! it is saturated: an idle proxy reads what has just arrived while it is still in the cache, which a busy one cannot.

pub mod measure;
pub mod report;
pub mod run;
pub mod size;
pub mod subject;
pub mod verify;
