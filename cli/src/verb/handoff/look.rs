//! `underdeck handoff status` and `stat`: what a running server says of itself.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use underdeck_handoff_serve::Report;

use crate::env::Env;
use crate::exit::{Exit, Failure};
use crate::verb::handoff::{HandoffError, show};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the server answers
#[derive(Debug, clap::Args)]
pub struct Place {
    /// The `status` of the server's configuration [default: /run/underdeck/handoff.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON (schema 1)
    #[arg(long)]
    json: bool,
}

/// Say where the connections are, and which backends live
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    place: Place,
}

/// Show the counters: handoffs, why some did not happen, and the time of each step
#[derive(Debug, clap::Args)]
pub struct StatArgs {
    #[command(flatten)]
    place: Place,
}

/// State.
pub fn status(args: &StatusArgs, env: &mut Env<'_>) -> Result<Exit, Failure> {
    look(&args.place, show::status, env)
}

/// Counters.
pub fn stat(args: &StatArgs, env: &mut Env<'_>) -> Result<Exit, Failure> {
    look(&args.place, show::stat, env)
}

fn look(place: &Place, show: fn(&Report) -> String, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let path = place.socket.clone().unwrap_or_else(|| env.run.join("underdeck/handoff.sock"));
    let text = ask(&path)?;
    let wrong = |error| HandoffError::Answer { path: path.clone(), error };
    if place.json {
        // As the server says it: a newer one may say more.
        let document: Value = serde_json::from_str(&text).map_err(wrong)?;
        serde_json::to_writer_pretty(&mut env.out, &document)?;
        writeln!(env.out)?;
    } else {
        let report: Report = serde_json::from_str(&text).map_err(wrong)?;
        env.out.write_all(show(&report).as_bytes())?;
    }
    Ok(Exit::Ok)
}

/// What the server at a socket says.
///
/// # Errors
/// If none answers, or with something else.
pub fn report(path: &Path) -> Result<Report, HandoffError> {
    serde_json::from_str(&ask(path)?).map_err(|error| HandoffError::Answer { path: path.to_owned(), error })
}

fn ask(path: &Path) -> Result<String, HandoffError> {
    let mut text = String::new();
    let asked = UnixStream::connect(path).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read_to_string(&mut text)
    });
    asked.map_err(|error| HandoffError::Ask { path: path.to_owned(), error })?;
    Ok(text)
}
