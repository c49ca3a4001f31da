//! How the process ends.

use std::io;

use crate::verb::{bench, check, doctor, handoff, mesh, metrics, protocol, run, stat, switch};

/// Exit codes of every verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// What was asked about is bad: a finding, a refused program.
    Bad = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// Nothing there: no process, no library, no file.
    Nothing = 3,
    /// A privilege or a kernel feature is missing.
    Missing = 4,
    /// The program's own fault, or an error of the machine.
    Internal = 70,
    /// `run`: the program is there but cannot be executed (as a shell says it).
    CannotExecute = 126,
    /// `run`: the program was not found (as a shell says it).
    NotFound = 127,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a verb could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// `run` did not start the program.
    #[error(transparent)]
    Run(#[from] run::RunError),
    /// `check` could not read the configuration.
    #[error(transparent)]
    Check(#[from] check::CheckError),
    /// A protocol program is not good.
    #[error(transparent)]
    Protocol(#[from] protocol::ProtocolError),
    /// `stat` has nothing to show.
    #[error(transparent)]
    Stat(#[from] stat::StatError),
    /// `metrics` cannot serve.
    #[error(transparent)]
    Metrics(#[from] metrics::MetricsError),
    /// `mesh` has nothing to say.
    #[error(transparent)]
    Mesh(#[from] mesh::MeshError),
    /// `handoff` did not do it.
    #[error(transparent)]
    Handoff(#[from] handoff::HandoffError),
    /// `doctor` could not look.
    #[error(transparent)]
    Doctor(#[from] doctor::DoctorError),
    /// `bench` could not begin.
    #[error(transparent)]
    Bench(#[from] bench::BenchError),
    /// `off` or `on` did not happen.
    #[error(transparent)]
    Switch(#[from] switch::SwitchError),
    /// Output could not be written.
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
    /// Output could not be put into words for machines.
    #[error("the output cannot be encoded: {0}")]
    Json(#[from] serde_json::Error),
}

impl Failure {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Run(error) => error.exit(),
            Self::Check(error) => error.exit(),
            Self::Protocol(error) => error.exit(),
            Self::Stat(error) => error.exit(),
            Self::Metrics(error) => error.exit(),
            Self::Mesh(error) => error.exit(),
            Self::Handoff(error) => error.exit(),
            Self::Doctor(error) => error.exit(),
            Self::Bench(error) => error.exit(),
            Self::Switch(error) => error.exit(),
            _ if self.is_broken_pipe() => Exit::Ok,
            Self::Output(_) | Self::Json(_) => Exit::Internal,
        }
    }

    /// The reader of stdout went away (`| head`): it has what it wanted.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Json(error) => error.io_error_kind() == Some(io::ErrorKind::BrokenPipe),
            _ => false,
        }
    }
}
