//! `underdeck doctor`: what this machine and this user lack, what that costs, how to repair it.

mod look;

use serde::Serialize;

use crate::env::Env;
use crate::exit::{Exit, Failure};

const SCHEMA: u32 = 1;

/// Say what this machine lacks for anchoring, what that costs and how to repair it
///
/// Ends with 1 when something must be repaired (×); things that only cost speed (‼) do not count. Run it as the user
/// that the proxy runs as: limits differ.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON (schema 1)
    #[arg(long)]
    json: bool,
}

/// Why doctor could not look at all.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// procfs is not there.
    #[error("{} cannot be read ({error}); mount procfs", path.display())]
    NoProc {
        /// Where it should be.
        path: std::path::PathBuf,
        /// What the kernel says.
        error: std::io::Error,
    },
}

impl DoctorError {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        Exit::Missing
    }
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It works, but something is lost.
    Warn,
    /// It does not work.
    Bad,
}

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable: scripts may look for it.
    pub id: &'static str,
    /// How much it matters.
    pub status: Status,
    /// What is there.
    pub found: String,
    /// What is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<String>,
}

impl Finding {
    fn ok(id: &'static str, found: impl Into<String>) -> Self {
        Self { id, status: Status::Ok, found: found.into(), cost: None, repair: None }
    }

    fn warn(id: &'static str, found: impl Into<String>, cost: &str, repair: &str) -> Self {
        let (cost, repair) = (Some(cost.to_owned()), Some(repair.to_owned()));
        Self { id, status: Status::Warn, found: found.into(), cost, repair }
    }

    fn bad(id: &'static str, found: impl Into<String>, cost: &str, repair: &str) -> Self {
        Self { status: Status::Bad, ..Self::warn(id, found, cost, repair) }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    ok: bool,
    findings: &'a [Finding],
}

/// Looks and prints.
pub fn doctor(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let findings = look::all(env)?;
    let ok = findings.iter().all(|finding| finding.status != Status::Bad);
    if args.json {
        serde_json::to_writer_pretty(&mut env.out, &Document { schema: SCHEMA, ok, findings: &findings })?;
        writeln!(env.out)?;
    } else {
        print(&findings, env)?;
    }
    Ok(if ok { Exit::Ok } else { Exit::Bad })
}

fn print(findings: &[Finding], env: &mut Env<'_>) -> Result<(), Failure> {
    let (color, utf8) = (env.color(false), env.utf8());
    let mut category = "";
    for finding in findings {
        let (own, _) = finding.id.split_once('.').unwrap_or((finding.id, ""));
        if own != category {
            let gap = if category.is_empty() { "" } else { "\n" };
            writeln!(env.out, "{gap}{own}")?;
            category = own;
        }
        let (sign, ascii, paint) = match finding.status {
            Status::Ok => ("√", "ok", "\x1b[32m"),
            Status::Warn => ("‼", "!!", "\x1b[33m"),
            Status::Bad => ("×", "xx", "\x1b[31m"),
        };
        let sign = if utf8 { sign } else { ascii };
        let sign = if color { format!("{paint}{sign}\x1b[0m") } else { sign.to_owned() };
        writeln!(env.out, "  {sign} {}: {}", finding.id, finding.found)?;
        for (word, text) in [("costs", &finding.cost), ("repair", &finding.repair)] {
            if let Some(text) = text {
                writeln!(env.out, "      {word}: {text}")?;
            }
        }
    }
    Ok(())
}
