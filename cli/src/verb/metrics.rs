//! `underdeck metrics`: the counters for Prometheus, read from shared memory when it asks.

mod collect;
mod handoff;

use std::net::SocketAddr;
use std::path::PathBuf;

use prometheus_client::registry::Registry;
use tiny_http::{Header, Method, Response, Server};

use crate::env::Env;
use crate::exit::{Exit, Failure};

pub use collect::Engines;
pub use handoff::Servers;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serve the counters to Prometheus (OpenMetrics) at /metrics
///
/// The proxies do no extra work for it: their shared memory is read when somebody asks. It shows the processes that the
/// user who runs it may look at; run it as root to see all. Counters of processes that have ended stay in the sums.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to listen; the default is reachable from this machine only
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9273")]
    listen: SocketAddr,
    /// Print them once to stdout and end
    #[arg(long, conflicts_with = "listen")]
    once: bool,
    /// Serve the counters of this handoff server too: the `status` of its configuration (again for each one)
    #[arg(long = "handoff", value_name = "SOCKET")]
    handoff: Vec<PathBuf>,
}

/// Why the metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The address is in use, or needs a privilege.
    #[error("cannot listen on {listen}: {error}; choose another address with --listen")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// What the kernel says.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The listening socket broke.
    #[error("cannot take another connection: {0}")]
    Accept(std::io::Error),
    /// The encoder failed.
    #[error("the metrics cannot be encoded: {0}")]
    Encode(#[from] std::fmt::Error),
}

impl MetricsError {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Listen { .. } => Exit::Missing,
            Self::Accept(_) | Self::Encode(_) => Exit::Internal,
        }
    }
}

/// The registry that holds the engines' counters, and those of the handoff servers at these sockets.
pub fn registry(proc: PathBuf, handoff: Vec<PathBuf>) -> Registry {
    let mut registry = Registry::with_prefix("underdeck");
    registry.sub_registry_with_prefix("anchor").register_collector(Box::new(Engines::new(proc)));
    registry.sub_registry_with_prefix("handoff").register_collector(Box::new(Servers::new(handoff)));
    registry
}

fn encode(registry: &Registry) -> Result<String, MetricsError> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(text)
}

/// Prints once, or serves until it is killed.
pub fn metrics(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let registry = registry(env.proc.clone(), args.handoff.clone());
    if args.once {
        let text = encode(&registry)?;
        env.out.write_all(text.as_bytes())?;
        return Ok(Exit::Ok);
    }
    let server = Server::http(args.listen).map_err(|error| MetricsError::Listen { listen: args.listen, error })?;
    env.say(&format!("underdeck: metrics at http://{}/metrics", server.server_addr()));
    loop {
        let request = server.recv().map_err(MetricsError::Accept)?;
        let path = request.url().split('?').next().unwrap_or_default();
        let response = match (request.method(), path) {
            (Method::Get | Method::Head, "/metrics") => {
                let header = Header::from_bytes("Content-Type", CONTENT_TYPE).expect("a constant that is valid");
                Response::from_string(encode(&registry)?).with_header(header)
            }
            (Method::Get | Method::Head, _) => Response::from_string("see /metrics\n").with_status_code(404),
            _ => Response::from_string("GET only\n").with_status_code(405),
        };
        // A client that left does not matter.
        let _ = request.respond(response);
    }
}
