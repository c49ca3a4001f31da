//! What the agent says of itself to `mesh status`, as JSON over its socket.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use underdeck_mesh_compiler::abi;

use crate::agent::Agent;
use crate::config::Fail;

/// Names of the reasons of `abi/underdeck_mesh.h`, by their numbers.
pub const REASONS: [&str; abi::UD_REASONS as usize] = [
    "policy",
    "long",
    "syntax",
    "target",
    "path",
    "framing",
    "connection",
    "duplicate",
    "crowded",
    "busy",
    "scratch",
    "socket",
];

/// Everything that the agent counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Of this structure: 1.
    pub schema: u32,
    /// Which policies are in force: 1 for the first ones.
    pub generation: u32,
    /// The last thing that went wrong, such as policies that did not come into force.
    pub trouble: Option<String>,
    /// What becomes of new connections when no agent runs.
    pub fail: Fail,
    /// Connections of applications.
    pub connections: u64,
    /// Requests by path.
    pub requests: Requests,
    /// Responses to requests that the kernel sent on.
    pub responses: Responses,
    /// Requests that the kernel decided, by the rule and what it does, since these policies are in force.
    pub rules: Vec<Rule>,
    /// Endpoints, and connections to them that the kernel uses.
    pub upstreams: Vec<Upstream>,
}

/// Requests by path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Decided and sent on by the kernel.
    pub kernel: u64,
    /// Decided by the kernel, sent on by the agent.
    pub agent: u64,
    /// Decided by the kernel, answered by the agent.
    pub answered: u64,
    /// Decided by Envoy.
    pub envoy: u64,
    /// Those of Envoy, by reason.
    pub envoy_by_reason: BTreeMap<String, u64>,
    /// Of those of the agent: there was no idle connection to the endpoint.
    pub empty_pool: u64,
}

/// Responses to requests that the kernel sent on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Responses {
    /// Moved by the kernel.
    pub kernel: u64,
    /// Moved by the agent: long, chunked, or edited.
    pub agent: u64,
}

/// Requests of one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its name and what it does.
    pub name: String,
    /// Where it is written.
    pub origin: Option<String>,
    /// How many.
    pub requests: u64,
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    /// Its address.
    pub address: SocketAddr,
    /// Connections, idle or not.
    pub connections: usize,
}

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// Nobody answers.
    #[error("{path}: {source}; is `underdeck mesh run` running?", path = .path.display())]
    Ask {
        /// The socket.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The answer makes no sense: another version.
    #[error("the agent's answer: {0}")]
    Answer(#[from] serde_json::Error),
}

/// Asks the agent behind a socket.
///
/// # Errors
///
/// See [`StatusError`].
pub fn ask(path: &Path) -> Result<Status, StatusError> {
    let mut text = String::new();
    let asked = std::os::unix::net::UnixStream::connect(path).and_then(|mut stream| stream.read_to_string(&mut text));
    asked.map_err(|source| StatusError::Ask { path: path.to_owned(), source })?;
    Ok(serde_json::from_str(&text)?)
}

pub(crate) async fn answer(agent: Rc<Agent>, mut stream: UnixStream) {
    let text = serde_json::to_string(&of(&agent)).unwrap_or_default();
    let _ = stream.write_all(text.as_bytes()).await;
}

fn of(agent: &Agent) -> Status {
    let counters = agent.kernel.counters();
    let current = agent.current();
    let mut by_reason: BTreeMap<String, u64> =
        REASONS.iter().zip(counters.envoy).map(|(name, count)| ((*name).to_owned(), count)).collect();
    let (envoy, foreign) = (agent.raw.get(), agent.foreign.get());
    // What the kernel did not even look at.
    let known: u64 = counters.envoy.iter().sum();
    by_reason.insert("socket".into(), foreign);
    by_reason.insert("busy".into(), envoy.saturating_sub(known + foreign));
    by_reason.retain(|_, count| *count > 0);
    let rule = |(index, action): (u32, &underdeck_mesh_compiler::Action)| Rule {
        name: action.name.clone(),
        origin: action.origin.as_ref().map(ToString::to_string),
        requests: current.program.count(index),
    };
    let upstreams = agent.upstreams.counts().into_iter();
    Status {
        schema: 1,
        generation: current.number,
        trouble: agent.trouble.borrow().clone(),
        fail: agent.config().fail,
        connections: agent.clients.borrow().len() as u64,
        requests: Requests {
            kernel: counters.kernel,
            agent: counters.agent,
            answered: counters.answered,
            envoy,
            envoy_by_reason: by_reason,
            empty_pool: counters.empty_pool,
        },
        responses: Responses { kernel: counters.responses_kernel, agent: agent.relayed.get() },
        rules: (0..).zip(&current.policies.program.actions).map(rule).collect(),
        upstreams: upstreams.map(|(address, connections)| Upstream { address, connections }).collect(),
    }
}
