//! `underdeck mesh run --config FILE`: the node agent.

use std::net::SocketAddr;
use std::path::PathBuf;

use underdeck_mesh_dataplane::run as serve;

use super::MeshError;
use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Take over the connections of a control group and enforce policies on them
///
/// Requests that the kernel decides go straight to their endpoints; Envoy, which is run as a child, gets the rest. The
/// policies are read again on SIGHUP and when their files change; what cannot come into force leaves the old ones.
/// SIGTERM ends it. However it ends, nothing stays in the kernel, unless `fail: closed` asks for it. Needs root, clang-19 and Envoy.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to take over, and where the policies are; docs/mesh-run.md says what stands in it
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs until SIGTERM.
pub(super) fn run(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let ready = |addresses: &[SocketAddr]| {
        let all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        env.say(&format!("connections are taken over, and come to {}", all.join(" and ")));
    };
    serve(&args.config, ready).map_err(MeshError::from)?;
    Ok(Exit::Ok)
}
