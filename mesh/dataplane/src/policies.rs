//! One set of policies in force: what was read, the program made of it, and what its numbers mean.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use underdeck_mesh_compiler::abi::{self, ud_cluster};
use underdeck_mesh_compiler::{Cache, FitError, Fitted, Node, Object, Program, fit};
use underdeck_mesh_policy::envoy::Server;
use underdeck_mesh_policy::form::{Listener, LoadBalancing, Policy};
use underdeck_mesh_policy::read::{LoadError, load, read};

use crate::config::{Config, Endpoint};

/// How far one request puts the next turn of the endpoint with the greatest weight off.
const AHEAD_LEAST: u64 = 1 << 16;

/// The same for small weights beside great ones, so that with 2¹⁶ requests under way two turns are less than 2⁶³ apart.
const AHEAD_MOST: u64 = 1 << 40;

/// Where turns begin: the sums overflow soon rather than after months, when nobody would look.
const FIRST: u64 = 0u64.wrapping_sub(1 << 20);

/// Why a set of policies does not come into force. The one before stays.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A file cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Documents that make no sense, each with its place.
    #[error("{}", .0.join("\n"))]
    Read(Vec<String>),
    /// No such listener.
    #[error("there is no listener {name}; there are: {}", .known.join(", "))]
    NoListener {
        /// As configured.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// The program cannot be made, or the kernel does not take it.
    #[error(transparent)]
    Fit(#[from] FitError),
}

/// Policies with their program, not yet in the kernel.
pub(crate) struct Policies {
    pub(crate) policy: Policy,
    pub(crate) listener: Listener,
    pub(crate) program: Program,
    pub(crate) object: Object,
}

impl Policies {
    /// Reads and compiles.
    pub(crate) fn make(config: &Config) -> Result<Self, PolicyError> {
        let reading = read(&load(&config.policies)?);
        if !reading.errors.is_empty() {
            return Err(PolicyError::Read(reading.errors.iter().map(ToString::to_string).collect()));
        }
        let policy = reading.policy;
        let Some(listener) = policy.listener(&config.listener).cloned() else {
            let known = policy.listeners.iter().map(|listener| listener.name.clone()).collect();
            return Err(PolicyError::NoListener { name: config.listener.clone(), known });
        };
        let node = Node { sender: config.sender() };
        let Fitted { program, object, .. } = fit(&policy, &listener, &node, &Cache(config.cache.clone()))?;
        Ok(Self { policy, listener, program, object })
    }

    /// The endpoints of a cluster; empty: its requests are Envoy's.
    pub(crate) fn endpoints(&self, name: &str, known: &BTreeMap<String, Vec<Endpoint>>) -> Vec<Server> {
        if let Some(endpoints) = known.get(name) {
            return endpoints.iter().map(|endpoint| (*endpoint).into()).collect();
        }
        let Some(cluster) = self.policy.cluster(name) else { return Vec::new() };
        let server = |endpoint: &underdeck_mesh_policy::form::Endpoint| {
            let port = endpoint.port.or(cluster.port).unwrap_or(80);
            let address = SocketAddr::new(endpoint.address.parse().ok()?, port);
            Some(Server { address, weight: endpoint.weight })
        };
        cluster.endpoints.iter().map(server).collect::<Option<_>>().unwrap_or_default()
    }

    /// The kernel's form of a cluster: numbers and weights of its endpoints.
    pub(crate) fn cluster(&self, name: &str, endpoints: &[(u32, u32)]) -> ud_cluster {
        let mut cluster = ud_cluster::default();
        // More endpoints than fit are Envoy's, rather than some of them.
        if endpoints.len() > cluster.endpoint.len() {
            return cluster;
        }
        cluster.count = u32::try_from(endpoints.len()).unwrap_or(0);
        let greatest = endpoints.iter().map(|(_, weight)| *weight).max().unwrap_or(1);
        for (at, (number, weight)) in endpoints.iter().enumerate() {
            cluster.endpoint[at] = *number;
            cluster.ahead[at] = (u64::from(greatest) * AHEAD_LEAST / u64::from(*weight).max(1)).min(AHEAD_MOST);
            cluster.due[at] = FIRST.wrapping_add(cluster.ahead[at]);
        }
        cluster.balancing = match self.policy.cluster(name).map(|cluster| &cluster.balancing) {
            Some(LoadBalancing::Random) => abi::UD_RANDOM,
            Some(LoadBalancing::LeastRequest { .. }) => abi::UD_LEAST_REQUEST,
            _ => abi::UD_ROUND_ROBIN,
        };
        // As in Envoy: any of them at random is any of them, whatever its weight.
        let has_weights = endpoints.iter().any(|(_, weight)| *weight != greatest);
        cluster.weighted = (has_weights && cluster.balancing != abi::UD_RANDOM).into();
        cluster
    }
}
