//! Side by side: a proxy plain and under Underdeck, and what else could move the bytes, measured in interleaved runs.
//!
//! The proxy has one CPU to itself, clients and backend share another. What is compared is the proxy's CPU time while
//! it is saturated: an idle proxy reads what has just arrived while it is still in the cache, which a busy one cannot.

//!
//! [`measure`], [`report`], [`verify`]: the demo. [`scenario`] -> [`stage`] -> [`anchor`] -> [`result`] -> [`table`],
//! [`plot`], [`bars`]: the bench. Both: [`subject`], [`run`].

pub mod anchor;
pub mod bars;
pub mod demo;
pub mod figure;
pub mod handoff;
pub mod machine;
pub mod measure;
pub mod mesh;
pub mod plot;
pub mod report;
pub mod result;
pub mod run;
pub mod scenario;
pub mod size;
pub mod stage;
pub mod subject;
pub mod syscalls;
pub mod table;
pub mod verify;
