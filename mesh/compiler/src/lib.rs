//! From one set of policies to one specialised eBPF program.
//!
//! ```text
//! Policy ──> source (C, readable) ──clang──> object ──> the kernel's verifier
//!              names -> text -> matching -> access -> route -> edit
//! ```
//!
//! The program looks only for header names that the policies mention, compares words instead of strings, runs regular
//! expressions as automata and knows the weights of clusters as numbers. What it cannot be certain of is Envoy's; the
//! decisions agree with [`underdeck_mesh_policy::evaluate`], which agrees with Envoy.

pub mod abi;
mod access;
mod automaton;
mod edit;
mod fit;
mod host;
mod matching;
mod names;
mod object;
mod route;
mod sample;
mod source;
mod surplus;
mod text;
mod trial;

pub use fit::{FitError, Fitted, fit};
pub use object::{BuildError, Cache, Object, build, include_files};
pub use sample::{Timing, samples, time};
pub use source::{Action, Node, Program, ROUTES_MAX, generate, generate_within};
pub use surplus::{Surplus, SurplusReason};
pub use trial::{Trial, TrialError, Tried, verified_instructions};
