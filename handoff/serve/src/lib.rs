//! The reference HTTP/1.1 server: a balancer that hands connections over, and the backends that answer them.
//!
//! One thread per connection. `config` is read, `balancer` takes a client's request and hands the connection over
//! (`away`) or relays the answer, `backend` takes it and answers, and either side gives it back. `http` and `objects`
//! are the little of HTTP that this needs, `peers` are the control connections, `reset` ends a client's connection
//! whose owner is gone, `metrics` counts.

mod away;
mod backend;
mod balancer;
pub mod config;
mod http;
mod metrics;
pub mod objects;
mod peers;
mod reset;

use std::io;

pub use config::{Config, ConfigError};
pub use metrics::{BackendReport, Connections, Handoffs, Report, Rules, STEPS, TimesReport};

/// Why a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] underdeck_handoff_control::tls::TlsError),
    /// Steering.
    #[error(transparent)]
    Steer(#[from] underdeck_handoff_steer::Error),
    /// An address cannot be listened at.
    #[error("{what} {at}: {source}")]
    Listen {
        /// Which key of the configuration.
        what: &'static str,
        /// Its value.
        at: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl ServeError {
    /// A privilege or a kernel feature is missing.
    pub fn is_missing(&self) -> bool {
        use underdeck_handoff_steer::Error::{NoHook, Privilege, Refused};
        match self {
            ServeError::Steer(error) => matches!(error, Privilege | NoHook(_) | Refused { .. }),
            ServeError::Listen { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            ServeError::Tls(_) => false,
        }
    }
}

/// Runs a balancer until the process ends. `ready` is called when clients can come.
///
/// # Errors
/// Only at the start.
pub fn balancer(config: Config, ready: impl FnOnce()) -> Result<(), ServeError> {
    balancer::run(config, ready)
}

/// Runs a backend until the process ends. `ready` is called when balancers can come.
///
/// # Errors
/// Only at the start.
pub fn backend(config: Config, ready: impl FnOnce()) -> Result<(), ServeError> {
    backend::run(config, ready)
}
