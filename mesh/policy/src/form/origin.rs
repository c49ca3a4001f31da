//! Where something was written.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// A place in a file; displays (and serialises) as `file:line:col`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// As it was given to the reader.
    pub file: Arc<str>,
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub col: u32,
}

impl Origin {
    /// The start of a file.
    pub fn start_of(file: &str) -> Self {
        Self { file: file.into(), line: 1, col: 1 }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.col)
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
