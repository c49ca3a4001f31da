//! `underdeck handoff serve`: becomes a balancer or a backend.

use std::path::PathBuf;

use underdeck_handoff_serve::{Config, backend, balancer};

use crate::env::Env;
use crate::exit::{Exit, Failure};
use crate::verb::handoff::HandoffError;

/// Run a balancer, or a backend, in the foreground
///
/// Prints `ready` to stdout when it takes connections. Needs root (CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and, to bind port
/// 80, CAP_NET_BIND_SERVICE). docs/handoff.md describes the configuration file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What this process is
    #[arg(long)]
    role: Role,
    /// The configuration (TOML)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Role {
    /// Takes clients' connections and hands them to backends
    Balancer,
    /// Answers on connections that it is handed
    Backend,
}

/// Returns only when the server could not start.
pub fn serve(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let config = Config::load(&args.config).map_err(HandoffError::from)?;
    let ready = || {
        // Without a reader it serves as well.
        let _ = writeln!(env.out, "ready").and_then(|()| env.out.flush());
    };
    let ended = match args.role {
        Role::Balancer => balancer(config, ready),
        Role::Backend => backend(config, ready),
    };
    ended.map_err(HandoffError::from)?;
    Ok(Exit::Ok)
}
