//! `underdeck mesh`: policies for Layer 7, in the kernel where they can be. One file per subcommand.

mod check;
mod compile;
mod explain;
mod release;
mod run;
mod status;

use std::path::PathBuf;

use clap::Subcommand;
use underdeck_mesh_compiler::{BuildError, TrialError};
use underdeck_mesh_dataplane::status::StatusError;
use underdeck_mesh_dataplane::{AgentError, ConfigError, EnvoyError, KernelError};
use underdeck_mesh_policy::evaluate::ParseError;
use underdeck_mesh_policy::form::{Listener, Policy};
use underdeck_mesh_policy::read::LoadError;

use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Enforce policies, say which of them the kernel enforces and what they do to a request
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Check(check::Args),
    Compile(compile::Args),
    Explain(explain::Args),
    /// Print the requests that the running agent has seen, by rule and reason
    Stat(status::Args),
    /// Print what is in force, and which ways requests go
    Status(status::Args),
    /// Print the agent's counters for Prometheus (OpenMetrics), once
    Metrics(status::Args),
    Run(run::Args),
    Release(release::Args),
}

/// Why nothing could be said.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// A file cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The request makes no sense.
    #[error("--request: {0}")]
    Request(#[from] ParseError),
    /// No policy has a listener.
    #[error("there are no routes in {}", .0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NoRoutes(Vec<PathBuf>),
    /// No such listener.
    #[error("there is no listener {name}; there are: {}", .known.join(", "))]
    NoListener {
        /// As given.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// A file cannot be written.
    #[error("{path}: {source}", path = .path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no object.
    #[error("{listener}: {source}")]
    Build {
        /// Of which listener.
        listener: String,
        /// Why.
        source: BuildError,
    },
    /// The kernel has nothing to measure.
    #[error("{listener}: {source}{}", if .source.is_privilege() { "; --stats loads the program: run it as root" } else { "" })]
    Trial {
        /// Of which listener.
        listener: String,
        /// Why.
        source: TrialError,
    },
    /// The agent does not run.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The agent does not answer.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// The guards of the kernel cannot be seen or taken away.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The guard is that of a running agent.
    #[error("{}: an agent is running; end it first", .0.display())]
    Served(PathBuf),
    /// No such reason.
    #[error("there is no reason {0}; `underdeck mesh check --explain list` lists them")]
    NoReason(String),
}

impl MeshError {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        use std::io::ErrorKind::{NotFound, PermissionDenied};
        match self {
            Self::Load(LoadError::Read { source, .. }) => match source.kind() {
                NotFound => Exit::Nothing,
                PermissionDenied => Exit::Missing,
                _ => Exit::Bad,
            },
            Self::Agent(AgentError::Config(ConfigError::Read { source, .. })) if source.kind() == NotFound => {
                Exit::Nothing
            }
            Self::Agent(AgentError::Config(_)) => Exit::Usage,
            Self::Agent(AgentError::Kernel(_) | AgentError::Envoy(EnvoyError::Start { .. })) => Exit::Missing,
            Self::Agent(_) => Exit::Bad,
            Self::Status(StatusError::Ask { .. }) => Exit::Nothing,
            Self::Status(StatusError::Answer(_)) | Self::Served(_) => Exit::Bad,
            Self::Kernel(_) => Exit::Missing,
            Self::Request(_) => Exit::Usage,
            Self::Write { .. } => Exit::Bad,
            Self::Build { source: BuildError::Clang { .. }, .. } => Exit::Missing,
            Self::Build { .. } => Exit::Internal,
            Self::Trial { source, .. } if source.is_privilege() => Exit::Missing,
            Self::Trial { .. } => Exit::Internal,
            Self::Load(LoadError::Empty(_)) | Self::NoRoutes(_) | Self::NoListener { .. } | Self::NoReason(_) => {
                Exit::Nothing
            }
        }
    }
}

/// The listener with this name, or all of them.
fn listeners<'a>(policy: &'a Policy, name: Option<&str>, paths: &[PathBuf]) -> Result<Vec<&'a Listener>, MeshError> {
    let is_meant = |listener: &&Listener| name.is_none_or(|name| *name == listener.name);
    let listeners: Vec<_> = policy.listeners.iter().filter(is_meant).collect();
    if !listeners.is_empty() {
        return Ok(listeners);
    }
    let known: Vec<_> = policy.listeners.iter().map(|listener| listener.name.clone()).collect();
    Err(match name {
        Some(name) if !known.is_empty() => MeshError::NoListener { name: name.to_owned(), known },
        _ => MeshError::NoRoutes(paths.to_owned()),
    })
}

/// Does what the subcommand says.
pub fn mesh(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    match &args.verb {
        Verb::Check(args) => check::check(args, env),
        Verb::Compile(args) => compile::compile(args, env),
        Verb::Explain(args) => explain::explain(args, env),
        Verb::Stat(args) => status::stat(args, env),
        Verb::Status(args) => status::status(args, env),
        Verb::Metrics(args) => status::metrics(args, env),
        Verb::Run(args) => run::run(args, env),
        Verb::Release(args) => release::release(args, env),
    }
}
