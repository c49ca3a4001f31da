//! One file per verb.

pub mod bench;
pub mod check;
pub mod completions;
pub mod doctor;
pub mod handoff;
pub mod man;
pub mod mesh;
pub mod metrics;
pub mod protocol;
pub mod run;
pub mod stat;
pub mod switch;
