//! Where something stands in a configuration.

use std::fmt;
use std::sync::Arc;

/// A place in a file; displays as `file:line:col`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position {
    pub(crate) file: Arc<str>,
    /// From 1.
    pub(crate) line: u32,
    /// In characters, from 1.
    pub(crate) col: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.col)
    }
}
