//! `underdeck handoff`: the reference server that hands connections over. One file per subcommand.

mod keys;
mod look;
mod serve;
mod show;

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use clap::Subcommand;
use underdeck_handoff_serve::{ConfigError, ServeError};

use crate::env::Env;
use crate::exit::{Exit, Failure};

pub use look::report;

/// Run a balancer or backend that hands live connections over, and look at it
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(serve::Args),
    Keys(keys::Args),
    Status(look::StatusArgs),
    Stat(look::StatArgs),
}

/// Why it did not happen.
#[derive(Debug, thiserror::Error)]
pub enum HandoffError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server did not start.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A certificate file cannot be written.
    #[error("{}: {error}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// There are certificates already.
    #[error(
        "{} is there already. Certificates of two authorities do not fit together: take a new folder, and replace the \
         files of all hosts",
        .0.display()
    )]
    Keys(PathBuf),
    /// The certificates could not be made.
    #[error("the certificates cannot be made: {0}")]
    Make(#[from] underdeck_handoff_control::keys::KeysError),
    /// No server answers.
    #[error("{}: {error}. Name the `status` of a server's configuration with --socket", path.display())]
    Ask {
        /// The socket.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// What answers is no server of this release.
    #[error("{}: what answers is no handoff server of this release: {error}", path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// What was expected.
        error: serde_json::Error,
    },
}

impl HandoffError {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Config(ConfigError::Read { source, .. }) => of(source),
            Self::Config(ConfigError::Bad { .. }) | Self::Keys(_) | Self::Answer { .. } => Exit::Bad,
            Self::Serve(error) if error.is_missing() => Exit::Missing,
            Self::Serve(_) => Exit::Bad,
            Self::Write { error, .. } | Self::Ask { error, .. } => of(error),
            Self::Make(_) => Exit::Bad,
        }
    }
}

fn of(error: &io::Error) -> Exit {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Exit::Nothing,
        ErrorKind::PermissionDenied => Exit::Missing,
        _ => Exit::Bad,
    }
}

/// Does what the subcommand says.
pub fn handoff(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    match &args.verb {
        Verb::Serve(args) => serve::serve(args, env),
        Verb::Keys(args) => keys::keys(args, env),
        Verb::Status(args) => look::status(args, env),
        Verb::Stat(args) => look::stat(args, env),
    }
}
