//! The policies that people already have, in one form.
//!
//! ```text
//! files ──> read ──> Policy (the intermediate form) ──> place ──> kernel or envoy, rule by rule, with reasons
//!                       │
//!                       ├──> evaluate: what Envoy would do with one request (the oracle)
//!                       └──> envoy: the configuration of the slow path
//! ```
//!
//! The semantics of the form are Envoy's: the first route that matches wins, names of headers have no case, values
//! have, a query is no part of the path, hosts are matched without case. Each part knows where it was written.

pub mod check;
pub mod envoy;
pub mod evaluate;
pub mod form;
pub mod read;
pub mod regexes;
