//! `underdeck bench`: becomes `underdeck-bench`, which brings its own proxies, load and plots, and so is no part of this
//! program.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::env::{Env, Launch};
use crate::exit::{Exit, Failure};

/// The program's file name.
const PROGRAM: &str = "underdeck-bench";

/// Measure proxies plain and under Underdeck, side by side, on this machine
///
/// `underdeck bench anchor --quick` looks at each axis within 4 minutes; `underdeck bench anchor --help` lists what can
/// be chosen. It starts its own backends, proxies and clients, in network namespaces of its own when it may.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The engine to measure (`anchor`), and options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_names = ["ENGINE", "OPTIONS"])]
    arguments: Vec<OsString>,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The program is not there.
    #[error("{} is not there; build it (cargo build --release -p underdeck-bench)", path.display())]
    NotThere {
        /// Where it should be: next to this program.
        path: PathBuf,
    },
    /// `execve` failed.
    #[error("{}: {error}", path.display())]
    Exec {
        /// The program.
        path: PathBuf,
        /// The kernel's answer.
        error: std::io::Error,
    },
}

impl BenchError {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::NotThere { .. } => Exit::Nothing,
            Self::Exec { .. } => Exit::CannotExecute,
        }
    }
}

/// Returns only when the program was not started.
pub fn bench(args: Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let path = env.executable.with_file_name(PROGRAM);
    if !path.is_file() {
        return Err(BenchError::NotThere { path }.into());
    }
    let argv = std::iter::once(PROGRAM.into()).chain(args.arguments).collect();
    let error = (env.exec)(&Launch { program: path.clone(), argv, vars: env.vars.clone() });
    Err(BenchError::Exec { path, error }.into())
}
