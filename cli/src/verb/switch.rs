//! `underdeck off` and `underdeck on`: the file that engines look at while they run.

use std::io::ErrorKind;
use std::path::PathBuf;

use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Switch the engine off at run time, in every process that sees the file
///
/// New messages are copied as if Underdeck were not there; what is already anchored is still delivered. As root this is
/// for the whole machine (/run/underdeck/off); for other users it is for their own programs
/// ($XDG_RUNTIME_DIR/underdeck/off).
#[derive(Debug, clap::Args)]
pub struct OffArgs {}

/// Switch the engine on again: undo `underdeck off`
#[derive(Debug, clap::Args)]
pub struct OnArgs {}

/// Why the switch did not move.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// An ordinary user without a session directory.
    #[error("XDG_RUNTIME_DIR is not set, so there is no place for your switch; set it, or do this as root")]
    NoPlace,
    /// The file cannot be made or removed.
    #[error("{}: {error}", path.display())]
    File {
        /// The switch.
        path: PathBuf,
        /// What the kernel says.
        error: std::io::Error,
    },
}

impl SwitchError {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::NoPlace => Exit::Missing,
            Self::File { error, .. } if error.kind() == ErrorKind::PermissionDenied => Exit::Missing,
            Self::File { .. } => Exit::Internal,
        }
    }
}

/// Where the switch of this user is.
pub fn place(env: &Env<'_>) -> Result<PathBuf, SwitchError> {
    let base = match (env.uid, env.var("XDG_RUNTIME_DIR")) {
        (0, _) => env.run.clone(),
        (_, Some(own)) => PathBuf::from(own),
        (_, None) => return Err(SwitchError::NoPlace),
    };
    Ok(base.join("underdeck/off"))
}

/// Makes the file.
pub fn off(_: &OffArgs, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let path = place(env)?;
    let wrong = |error| SwitchError::File { path: path.clone(), error };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(wrong)?;
    }
    std::fs::File::create(&path).map_err(wrong)?;
    env.say(&format!("off: {} is there; engines copy from their next message on", path.display()));
    Ok(Exit::Ok)
}

/// Removes the file.
pub fn on(_: &OnArgs, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let path = place(env)?;
    match std::fs::remove_file(&path) {
        Ok(()) => env.say(&format!("on: {} is gone", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            env.say(&format!("on already: there is no {}", path.display()));
        }
        Err(error) => return Err(SwitchError::File { path, error }.into()),
    }
    Ok(Exit::Ok)
}
