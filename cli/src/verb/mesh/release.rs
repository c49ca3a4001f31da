//! `underdeck mesh release`: what failed closed is opened.

use std::path::PathBuf;

use underdeck_mesh_dataplane::guard;

use super::MeshError;
use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Let connections through that are refused because no agent runs
///
/// An agent with `fail: closed` leaves two programs attached to its control group, which refuse connections to its
/// services until another agent runs. This takes them away; connections then go where they are meant to go, past the
/// policies. The guard of a running agent stays. Needs root.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this control group; all of them if not given
    #[arg(long, value_name = "FOLDER")]
    cgroup: Option<PathBuf>,
}

/// Takes guards away, and prints whose.
pub(super) fn release(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let mut found = guard::find().map_err(MeshError::from)?;
    if let Some(cgroup) = &args.cgroup {
        let cgroup = cgroup.canonicalize().unwrap_or_else(|_| cgroup.clone());
        found.retain(|guard| guard.cgroup == cgroup);
    }
    let (served, left): (Vec<_>, Vec<_>) = found.into_iter().partition(|guard| guard.is_served);
    for guard in &left {
        guard::release(&guard.cgroup).map_err(MeshError::from)?;
        writeln!(env.out, "{}: {} services are open", guard.cgroup.display(), guard.services.len())?;
    }
    match served.first() {
        Some(guard) if left.is_empty() => Err(MeshError::Served(guard.cgroup.clone()).into()),
        None if left.is_empty() => {
            env.say("nothing is refused");
            Ok(Exit::Nothing)
        }
        _ => Ok(Exit::Ok),
    }
}
