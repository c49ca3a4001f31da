//! What can go wrong with a fixture.

use std::path::PathBuf;
use std::time::Duration;

/// A fixture could not do its work. Differences between twins are results, not errors.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A program that the fixtures need is not installed.
    #[error("{name} was not found at {path}: run lab/setup.sh, or name another binary in {variable}")]
    MissingTool {
        /// The program.
        name: &'static str,
        /// Where it was expected.
        path: PathBuf,
        /// The environment variable that overrides the place.
        variable: &'static str,
    },
    /// The preload library was not built.
    #[error(
        "{0} does not exist: run `cargo build --release -p underdeck-anchor`, or name the library in UNDERDECK_LIB"
    )]
    MissingLibrary(PathBuf),
    /// A program did not open its port in time, or ended at once.
    #[error("{name} was not ready within {within:?}; its standard error ends with:\n{stderr}")]
    NotReady {
        /// The program.
        name: String,
        /// How long was waited.
        within: Duration,
        /// The end of what it wrote.
        stderr: String,
    },
    /// A program of the lab failed.
    #[error("{command} ended with {status}; its output ends with:\n{output}")]
    Failed {
        /// The command.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it wrote.
        output: String,
    },
    /// Something was still there after a fixture had been stopped.
    #[error("{name} left something behind: {what}")]
    Leftover {
        /// The fixture.
        name: String,
        /// What was found.
        what: String,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {within:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long was waited.
        within: Duration,
    },
    /// The system refused something.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        error: std::io::Error,
    },
    /// What came over the wire is not HTTP/1.
    #[error("{what} at byte {at} of the message")]
    NotHttp {
        /// What is wrong.
        what: &'static str,
        /// Where.
        at: u64,
    },
    /// TLS could not be set up or failed.
    #[error("TLS: {0}")]
    Tls(String),
}

/// Adds to a system error what was being done.
pub(crate) trait While<T> {
    /// Turns the error into [`LabError::Io`] with `what`.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<std::io::Error>> While<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|error| LabError::Io { what: what(), error: error.into() })
    }
}
