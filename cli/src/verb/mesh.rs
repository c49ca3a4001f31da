//! `underdeck mesh`: policies for Layer 7, in the kernel where they can be. One file per subcommand.

mod check;
mod explain;

use std::path::PathBuf;

use clap::Subcommand;
use underdeck_mesh_policy::evaluate::ParseError;
use underdeck_mesh_policy::read::LoadError;

use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Say which policies the kernel enforces, and what they do to a request
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Check(check::Args),
    Explain(explain::Args),
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
            Self::Request(_) => Exit::Usage,
            Self::Load(LoadError::Empty(_)) | Self::NoRoutes(_) | Self::NoListener { .. } | Self::NoReason(_) => {
                Exit::Nothing
            }
        }
    }
}

/// Does what the subcommand says.
pub fn mesh(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    match &args.verb {
        Verb::Check(args) => check::check(args, env),
        Verb::Explain(args) => explain::explain(args, env),
    }
}
