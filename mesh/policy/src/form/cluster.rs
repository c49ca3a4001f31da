//! Where requests go.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::listener::Workload;
use super::origin::Origin;
use super::rule::RuleId;

/// Endpoints that do the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cluster {
    /// Unique. Of Istio and Gateway API: `HOST|PORT|SUBSET`, where port and subset may be empty.
    pub name: String,
    /// The service, in full (`reviews.default.svc.cluster.local`); of Envoy, the name of the cluster.
    pub host: String,
    /// The port of the service; None: the one that the connection was made to.
    pub port: Option<u16>,
    /// A part of the endpoints of the service.
    pub subset: Option<Subset>,
    /// Where the endpoints come from.
    pub discovery: Discovery,
    /// Those that the policies name; with [`Discovery::Services`] the agent brings them.
    pub endpoints: Vec<Endpoint>,
    /// Which endpoint.
    pub balancing: LoadBalancing,
    /// Connections and requests at a time.
    pub limits: Option<PoolLimits>,
    /// Endpoints that fail are left out for a while.
    pub outlier: Option<OutlierDetection>,
    /// What is spoken to the endpoints.
    pub protocol: UpstreamProtocol,
    /// Who answers, if a Kubernetes `Service` or the agent's configuration says it.
    pub workload: Option<Workload>,
    /// The rules that it came from (traffic policy, subset, service entry). If one is placed in Envoy, all requests
    /// to the cluster are.
    pub rules: Vec<RuleId>,
    /// Where it was written; a route that names it, if nothing else does.
    pub origin: Origin,
}

/// A part of the endpoints of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Subset {
    /// Its name.
    pub name: String,
    /// The labels that its endpoints have; None: no policy says it, so it has no endpoints.
    pub labels: Option<BTreeMap<String, String>>,
}

/// Where endpoints come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discovery {
    /// The policy names them, with addresses.
    Static,
    /// The policy names them, with host names.
    Dns,
    /// The services that the agent knows.
    Services,
    /// Where the connection was meant to go.
    OriginalDestination,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// An IP address, or a host name with [`Discovery::Dns`].
    pub address: String,
    /// Its port; None: the one that the connection was made to.
    pub port: Option<u16>,
    /// What subsets select by.
    pub labels: BTreeMap<String, String>,
    /// Its share.
    pub weight: u32,
}

impl Endpoint {
    /// One without labels, with the weight 1.
    pub fn at(address: String, port: Option<u16>) -> Self {
        Self { address, port, labels: BTreeMap::new(), weight: 1 }
    }
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadBalancing {
    /// One after the other.
    RoundRobin,
    /// Of some at random (2), the one with the fewest requests.
    LeastRequest {
        /// How many are compared.
        choices: u32,
    },
    /// Any.
    Random,
    /// Where the connection was meant to go.
    Passthrough,
    /// By a hash of what this says (a header, a cookie, the source address): only Envoy does it.
    Hash(String),
}

/// Limits of connections and requests. What is None has no limit, or Envoy's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PoolLimits {
    /// Connections at a time.
    pub connections: Option<u32>,
    /// Requests that wait.
    pub pending_requests: Option<u32>,
    /// Requests at a time.
    pub requests: Option<u32>,
    /// Requests before a connection is closed.
    pub requests_per_connection: Option<u32>,
    /// Retries at a time.
    pub retries: Option<u32>,
    /// Before a connection attempt is given up.
    pub connect_timeout: Option<Duration>,
    /// Before an idle connection is closed.
    pub idle_timeout: Option<Duration>,
}

/// Endpoints that fail are left out for a while.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OutlierDetection {
    /// Errors in a row.
    pub consecutive_errors: Option<u32>,
    /// Between looks.
    pub interval: Option<Duration>,
    /// For how long, at first.
    pub base_ejection_time: Option<Duration>,
    /// At most this percentage.
    pub max_ejection_percent: Option<u32>,
}

/// What is spoken to endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpstreamProtocol {
    /// HTTP/1.1 in clear text.
    Http1,
    /// HTTP/2 in clear text.
    Http2,
    /// TLS, whatever is in it.
    Tls,
    /// Not HTTP.
    Tcp,
}
