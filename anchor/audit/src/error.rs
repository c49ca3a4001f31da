//! What can keep a configuration from being checked.

use std::path::PathBuf;

use crate::position::Position;

/// Why a configuration could not be checked. Nothing is known about its payload then: do not run it anchored.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A configuration file could not be read.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that the configuration includes could not be read.
    #[error("{at}: cannot read the included file {}: {source}", path.display())]
    Include {
        /// Where the include stands (`file:line:col`).
        at: String,
        /// The file that it names.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Includes nest deeper than any sane configuration: most likely a file includes itself.
    #[error("{at}: includes nest deeper than {limit} files; does a file include itself?")]
    IncludeDepth {
        /// Where the include stands (`file:line:col`).
        at: String,
        /// How deep includes may nest.
        limit: usize,
    },
    /// The text is not well-formed.
    #[error("{file}:{line}:{col}: {what}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, from 1.
        line: u32,
        /// Column in characters, from 1.
        col: u32,
        /// What is wrong and what was expected.
        what: String,
    },
    /// Neither the name nor the text say which proxy the configuration is for.
    #[error("{}: cannot tell which proxy this configures; say --kind nginx, haproxy or envoy", path.display())]
    UnknownKind {
        /// The file.
        path: PathBuf,
    },
    /// No file was named, or a directory holds no configuration file.
    #[error("{}no configuration file to read", path.as_ref().map(|p| format!("{}: ", p.display())).unwrap_or_default())]
    NothingToRead {
        /// The directory, if one was named.
        path: Option<PathBuf>,
    },
}

impl AuditError {
    pub(crate) fn syntax(at: &Position, what: impl Into<String>) -> Self {
        Self::Syntax { file: at.file.to_string(), line: at.line, col: at.col, what: what.into() }
    }
}
