//! The seam between `run` and the audit of the program's configuration.

use std::ffi::OsString;

/// What the audit says about a command line before it is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Value of UNDERDECK_LEAVE_OUT, when some listeners or routes must be left alone.
    pub leave_out: Option<String>,
    /// What to tell the user, a line each.
    pub messages: Vec<String>,
    /// The configuration cannot be served safely at all.
    pub refused: bool,
}

/// Audits the configuration that `argv` would use.
pub fn check(_argv: &[OsString]) -> Verdict {
    Verdict::default()
}
