//! `underdeck stat [PID]`: the counters of running engines.

mod show;

use std::time::Duration;

use serde::Serialize;
use underdeck_stats::{ReadError, Snapshot, find_all_in};

use crate::env::Env;
use crate::exit::{Exit, Failure};

const SCHEMA: u32 = 1;
const INTERVAL: Duration = Duration::from_secs(1);

/// Show what the engines in running processes did
///
/// Without PID: a table of every process that has the engine. With PID: all counters of one process, by role of the
/// connection that payload was received on (accepted: requests, connected: responses), and why bytes were copied.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One process only
    pid: Option<u32>,
    /// Show it again every second, with rates, until Ctrl-C or the end of stdin
    #[arg(long)]
    watch: bool,
    /// Print JSON (schema 1); with --watch one document per line
    #[arg(long)]
    json: bool,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum StatError {
    /// The process cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// No engine runs.
    #[error("no process has the engine in it; start one with `underdeck run -- PROGRAM`")]
    None,
    /// None that this user may see.
    #[error(
        "no process that you may look at has the engine in it ({0} processes belong to others: run this as root to see them)"
    )]
    NoneForYou(usize),
    /// All engines that run are of another version.
    #[error("processes {0:?} have an engine of another version: restart them, or use its own `underdeck`")]
    OtherVersion(Vec<u32>),
}

impl StatError {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::None | Self::NoneForYou(_) | Self::Read(ReadError::NoProcess(_) | ReadError::NoBlock(_)) => {
                Exit::Nothing
            }
            Self::Read(ReadError::Denied(_)) => Exit::Missing,
            Self::Read(ReadError::Version { .. }) | Self::OtherVersion(_) => Exit::Bad,
            Self::Read(ReadError::Io { .. }) => Exit::Internal,
        }
    }
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    processes: &'a [Snapshot],
    total: Snapshot,
}

/// The last look, for rates.
struct Before {
    snapshots: Vec<Snapshot>,
    elapsed: Duration,
}

impl Before {
    fn of(&self, now: &Snapshot) -> Option<&Snapshot> {
        self.snapshots.iter().find(|old| old.inode == now.inode)
    }

    fn per_second(&self, now: u64, old: u64) -> u64 {
        (now.saturating_sub(old) as f64 / self.elapsed.as_secs_f64()).round() as u64
    }
}

/// Reads and prints, once or again and again.
pub fn stat(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let mut before: Option<Before> = None;
    loop {
        let now = match read(args.pid, env) {
            Ok(now) => now,
            // What was watched has ended.
            Err(error) if before.is_some() && error.exit() == Exit::Nothing => {
                env.say(&format!("underdeck: {error}"));
                return Ok(Exit::Ok);
            }
            Err(error) => return Err(error.into()),
        };
        print(args, &now, before.as_ref(), env)?;
        if !args.watch {
            return Ok(Exit::Ok);
        }
        let Some(elapsed) = (env.pause)(INTERVAL) else { return Ok(Exit::Ok) };
        before = Some(Before { snapshots: now, elapsed });
    }
}

fn read(pid: Option<u32>, env: &Env<'_>) -> Result<Vec<Snapshot>, StatError> {
    if let Some(pid) = pid {
        return Ok(vec![Snapshot::of_pid_in(&env.proc, pid)?]);
    }
    let found = find_all_in(&env.proc)?;
    if !found.snapshots.is_empty() {
        return Ok(found.snapshots);
    }
    Err(match found {
        found if !found.other_version.is_empty() => StatError::OtherVersion(found.other_version),
        found if found.denied > 0 => StatError::NoneForYou(found.denied),
        _ => StatError::None,
    })
}

fn print(args: &Args, now: &[Snapshot], before: Option<&Before>, env: &mut Env<'_>) -> Result<(), Failure> {
    if args.json {
        let document = Document { schema: SCHEMA, processes: now, total: Snapshot::sum(now) };
        if args.watch {
            serde_json::to_writer(&mut env.out, &document)?;
        } else {
            serde_json::to_writer_pretty(&mut env.out, &document)?;
        }
        writeln!(env.out)?;
        return Ok(env.out.flush()?);
    }
    if args.watch && env.out_is_terminal {
        // Home, and clear to the end of the screen: the old numbers are overwritten in place.
        write!(env.out, "\x1b[H\x1b[J")?;
    } else if before.is_some() {
        writeln!(env.out)?;
    }
    let text = match (args.pid, now) {
        (Some(_), [one]) => show::process(one, before),
        _ => show::table(now, before),
    };
    env.out.write_all(text.as_bytes())?;
    Ok(env.out.flush()?)
}
