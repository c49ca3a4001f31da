//! The intermediate form as a configuration of Envoy: the slow path, and the other side of the differential tests.
//!
//! What a connection decides once (who sends, the address that was dialled) is decided when the configuration is made:
//! one listener of Envoy for each listener of the policy and each kind of sender, as Istio does it for each sidecar.

mod access;
mod cluster;
mod route;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::evaluate::Sender;
use crate::form::{Authorization, EscapedSlashes, HostPort, Listener, ListenerKind, Policy, Reason, RuleId};

const HCM: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const FAULT: &str = "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault";
const CORS: &str = "type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors";
const INTERNAL: &str = "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener";

/// A listener of Envoy for some connections.
#[derive(Debug, Clone)]
pub struct Bind {
    /// The listener of the policy.
    pub listener: String,
    /// Where Envoy listens.
    pub address: SocketAddr,
    /// Who sends on these connections. Unknown labels match nothing.
    pub sender: Sender,
    /// The address that they were meant for.
    pub destination: (IpAddr, u16),
}

/// An endpoint that the policy does not name itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its share; at least 1.
    pub weight: u32,
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Self {
        Self { address, weight: 1 }
    }
}

/// A configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// A bootstrap; JSON is YAML.
    pub config: Value,
    /// Rules that it does not enforce in full, because the intermediate form does not hold all of them (JWT, Lua,
    /// certificates, patches of Envoy …). Requests for their targets must go to a proxy that was configured by other
    /// means.
    pub missing: Vec<RuleId>,
}

/// Makes a bootstrap. `endpoints` are those of clusters whose endpoints the policy does not name itself.
pub fn bootstrap<S: Copy + Into<Server>>(
    policy: &Policy,
    binds: &[Bind],
    endpoints: &BTreeMap<String, Vec<S>>,
) -> Generated {
    let mut listeners = Vec::new();
    let mut missing = not_held(policy);
    let (mut clusters, mut guarded) = (BTreeMap::new(), BTreeMap::new());
    for (index, bind) in binds.iter().enumerate() {
        let Some(listener) = policy.listener(&bind.listener) else { continue };
        let mut maker = Maker { policy, bind, index, missing: &mut missing, guarded: &mut guarded };
        listeners.push(maker.listener(listener));
    }
    for cluster in &policy.clusters {
        let known: Option<Vec<Server>> =
            endpoints.get(&cluster.name).map(|all| all.iter().map(|of| (*of).into()).collect());
        clusters.insert(cluster.name.clone(), cluster::cluster(cluster, known.as_deref()));
    }
    for (name, (listener, cluster)) in guarded {
        listeners.push(listener);
        clusters.insert(name, cluster);
    }
    missing.sort_unstable();
    missing.dedup();
    let clusters: Vec<_> = clusters.into_values().collect();
    let internal = json!({"name": "envoy.bootstrap.internal_listener", "typed_config": {"@type": INTERNAL}});
    let config = json!({
        "bootstrap_extensions": [internal],
        "static_resources": {"listeners": listeners, "clusters": clusters},
    });
    Generated { config, missing }
}

/// Rules with a finding about something that the intermediate form only knows the existence of.
fn not_held(policy: &Policy) -> Vec<RuleId> {
    let of_envoy = policy.listeners.iter().any(|listener| listener.kind == ListenerKind::Envoy);
    let is_held = |reason: Reason| match reason {
        Reason::MatchQuery | Reason::MatchSourceLabels | Reason::MatchRegex | Reason::RegexRewrite => true,
        Reason::AuthorityDynamic | Reason::Timeout | Reason::FaultDelay => true,
        // Read in full from Istio only.
        Reason::Retry | Reason::Mirror | Reason::Cors | Reason::OutlierDetection | Reason::PoolLimits => !of_envoy,
        _ => false,
    };
    let ids = (0..).map(RuleId).zip(&policy.rules);
    ids.filter(|(_, rule)| rule.findings.iter().any(|finding| !is_held(finding.reason))).map(|(id, _)| id).collect()
}

/// What one bind brings.
struct Maker<'a> {
    policy: &'a Policy,
    bind: &'a Bind,
    index: usize,
    missing: &'a mut Vec<RuleId>,
    /// Clusters behind the authorization of their workload: a listener inside Envoy, and the cluster that leads to it.
    guarded: &'a mut BTreeMap<String, (Value, Value)>,
}

impl Maker<'_> {
    fn listener(&mut self, listener: &Listener) -> Value {
        let of_listener: Vec<_> = self.policy.authorization_of_listener(listener).collect();
        let filters = self.filters(&of_listener, true);
        let mut hosts = Vec::new();
        for virtual_host in &listener.virtual_hosts {
            hosts.push(route::virtual_host(self, virtual_host));
        }
        let mut table = json!({
            "virtual_hosts": hosts,
            "ignore_port_in_host_matching": listener.options.host_port == HostPort::Ignore,
        });
        route::add_edits(&mut table, &listener.request_headers, &listener.response_headers);
        let mut manager = manager(filters, &table);
        let options = &listener.options;
        manager["normalize_path"] = json!(options.normalize_path);
        manager["merge_slashes"] = json!(options.merge_slashes);
        manager["path_with_escaped_slashes_action"] = json!(match options.escaped_slashes {
            EscapedSlashes::Keep => "KEEP_UNCHANGED",
            EscapedSlashes::Reject => "REJECT_REQUEST",
            EscapedSlashes::Redirect => "UNESCAPE_AND_REDIRECT",
            EscapedSlashes::Forward => "UNESCAPE_AND_FORWARD",
        });
        match options.host_port {
            HostPort::StripAny => manager["strip_any_host_port"] = json!(true),
            HostPort::StripMatching => manager["strip_matching_host_port"] = json!(true),
            HostPort::Keep | HostPort::Ignore => {}
        }
        let address = cluster::socket(&self.bind.address.ip().to_string(), self.bind.address.port());
        json!({"name": format!("{} {}", self.index, listener.name), "address": address, "filter_chains": [chain(&manager)]})
    }

    /// The cluster's name, or that of the guard in front of it.
    fn guard(&mut self, cluster: &str) -> String {
        let known = self.policy.cluster(cluster);
        let Some(workload) = known.and_then(|cluster| cluster.workload.as_ref()) else { return cluster.to_owned() };
        let policies: Vec<_> = self.policy.authorization_of_workload(workload).collect();
        if policies.is_empty() {
            return cluster.to_owned();
        }
        let name = format!("{} guarded {cluster}", self.index);
        if !self.guarded.contains_key(&name) {
            let filters = self.filters(&policies, false);
            let route = json!({"match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "0s"}});
            let table = json!({"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]});
            let listener = json!({
                "name": name, "internal_listener": {}, "filter_chains": [chain(&manager(filters, &table))],
            });
            self.guarded.insert(name.clone(), (listener, cluster::guard(&name)));
        }
        name
    }

    fn filters(&mut self, policies: &[&Authorization], with_faults: bool) -> Vec<Value> {
        let mut filters = access::filters(policies, self.bind, self.missing);
        if with_faults {
            filters.push(json!({"name": "envoy.filters.http.cors", "typed_config": {"@type": CORS}}));
            filters.push(json!({"name": "envoy.filters.http.fault", "typed_config": {"@type": FAULT}}));
        }
        let router = json!({"@type": ROUTER, "suppress_envoy_headers": true});
        filters.push(json!({"name": "envoy.filters.http.router", "typed_config": router}));
        filters
    }
}

/// Nothing that marks the requests as Envoy's, as far as it lets itself be told so.
fn manager(filters: Vec<Value>, table: &Value) -> Value {
    json!({
        "@type": HCM, "stat_prefix": "underdeck", "codec_type": "HTTP1", "generate_request_id": false,
        "server_header_transformation": "PASS_THROUGH", "skip_xff_append": true, "stream_idle_timeout": "0s",
        "http_filters": filters, "route_config": table,
    })
}

fn chain(manager: &Value) -> Value {
    json!({"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]})
}
