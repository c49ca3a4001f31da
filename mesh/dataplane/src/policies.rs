//! One set of policies in force: what was read, the program made of it, and what its numbers mean.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use underdeck_mesh_compiler::abi::{self, ud_cluster};
use underdeck_mesh_compiler::{Cache, FitError, Fitted, Node, Object, Program, fit};
use underdeck_mesh_policy::form::{Listener, LoadBalancing, Policy};
use underdeck_mesh_policy::read::{LoadError, load, read};

use crate::config::Config;

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
    pub(crate) fn endpoints(&self, name: &str, known: &BTreeMap<String, Vec<SocketAddr>>) -> Vec<SocketAddr> {
        if let Some(addresses) = known.get(name) {
            return addresses.clone();
        }
        let Some(cluster) = self.policy.cluster(name) else { return Vec::new() };
        let address = |endpoint: &underdeck_mesh_policy::form::Endpoint| {
            let port = endpoint.port.or(cluster.port).unwrap_or(80);
            (endpoint.weight == 1).then(|| Some(SocketAddr::new(endpoint.address.parse().ok()?, port)))?
        };
        cluster.endpoints.iter().map(address).collect::<Option<_>>().unwrap_or_default()
    }

    /// The kernel's form of a cluster.
    pub(crate) fn cluster(&self, name: &str, endpoints: &[u32]) -> ud_cluster {
        let mut cluster = ud_cluster::default();
        // More endpoints than fit are Envoy's, rather than some of them.
        if endpoints.len() > cluster.endpoint.len() {
            return cluster;
        }
        cluster.count = u32::try_from(endpoints.len()).unwrap_or(0);
        cluster.endpoint[..endpoints.len()].copy_from_slice(endpoints);
        cluster.balancing = match self.policy.cluster(name).map(|cluster| &cluster.balancing) {
            Some(LoadBalancing::Random) => abi::UD_RANDOM,
            Some(LoadBalancing::LeastRequest { .. }) => abi::UD_LEAST_REQUEST,
            _ => abi::UD_ROUND_ROBIN,
        };
        cluster
    }
}
