//! Where requests come in, and the tables of virtual hosts and routes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::action::{Action, Cors, Fault, HeaderEdits};
use super::matching::RequestMatch;
use super::origin::Origin;
use super::rule::RuleId;

/// A table of virtual hosts that the requests of one place go through.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listener {
    /// Unique: `mesh`, `gateway NAMESPACE/NAME`, or the name of the listener of Envoy.
    pub name: String,
    /// What it is.
    pub kind: ListenerKind,
    /// The ports that it listens on (gateways, Envoy). Empty: every port (`mesh`).
    pub ports: Vec<u16>,
    /// The workload that it runs in, for gateways: authorization policies select it by its labels.
    pub workload: Option<Workload>,
    /// What is done to a request before it is matched.
    pub options: HttpOptions,
    /// No two share a domain. Their order does not matter.
    pub virtual_hosts: Vec<VirtualHost>,
    /// What happens to a request that no virtual host is for.
    pub unmatched: Unmatched,
    /// Edits of every request that a route took, after those of route and virtual host.
    pub request_headers: HeaderEdits,
    /// Edits of every response to such a request.
    pub response_headers: HeaderEdits,
    /// Where it was written; the first policy for `mesh`.
    pub origin: Origin,
}

/// What a listener stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenerKind {
    /// The outgoing connections of the processes of the node, as a sidecar would take them.
    Mesh,
    /// A gateway of Istio or of the Gateway API.
    Gateway,
    /// A listener of a static Envoy configuration.
    Envoy,
}

/// How Envoy's HTTP connection manager treats paths and authorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HttpOptions {
    /// `normalize_path`: RFC 3986 section 6 (dot segments, percent-encoded unreserved characters, `\` to `/`). The
    /// path is matched and forwarded as normalised.
    pub normalize_path: bool,
    /// `merge_slashes`: `//` becomes `/`.
    pub merge_slashes: bool,
    /// `path_with_escaped_slashes_action`.
    pub escaped_slashes: EscapedSlashes,
    /// What happens to the port in the authority.
    pub host_port: HostPort,
}

/// What `%2F` and `%5C` in a path do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EscapedSlashes {
    /// They stay.
    Keep,
    /// 400.
    Reject,
    /// A redirect (307) to the path with them unescaped.
    Redirect,
    /// The path goes on with them unescaped.
    Forward,
}

/// What happens to a port in the authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostPort {
    /// It takes part in the matching of domains.
    Keep,
    /// It is left out when domains are matched, and forwarded (`ignore_port_in_host_matching`).
    Ignore,
    /// It is taken off if it is the listener's port (`strip_matching_host_port`).
    StripMatching,
    /// It is taken off (`strip_any_host_port`).
    StripAny,
}

/// What happens to a request that no virtual host is for. Within a virtual host, no matching route means 404.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unmatched {
    /// 404.
    NotFound,
    /// It goes where the connection was meant to go, unchanged.
    OriginalDestination,
}

/// Routes for some authorities.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VirtualHost {
    /// For people.
    pub name: String,
    /// In lower case: `name`, `*.suffix` (matches one or more characters before the dot), `prefix.*`, or `*`. May
    /// end with `:port` where [`HostPort::Keep`] holds.
    pub domains: Vec<String>,
    /// In order: the first match wins.
    pub routes: Vec<Route>,
    /// Edits of every request that a route of this host took, after those of the route.
    pub request_headers: HeaderEdits,
    /// Edits of every response to such a request.
    pub response_headers: HeaderEdits,
    /// Where it was written.
    pub origin: Origin,
}

/// What is done to the requests that match.
///
/// A rule with several alternative matches becomes several routes with the same [`RuleId`] and action.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Route {
    /// The rule that it came from; None: the default route of a service that no route names. If the rule is placed in
    /// Envoy, the kernel sends every request that may match this route there, and goes on to later routes only with
    /// requests that certainly do not match it.
    pub rule: Option<RuleId>,
    /// The name that the policy gives it, or an empty string.
    pub name: String,
    /// Which requests.
    pub matching: RequestMatch,
    /// Injected before the action.
    pub fault: Option<Fault>,
    /// What happens.
    pub action: Action,
    /// Edits of requests that are forwarded, after those of the weighted target.
    pub request_headers: HeaderEdits,
    /// Edits of responses, also of direct ones and of redirects.
    pub response_headers: HeaderEdits,
    /// Cross-origin resource sharing.
    pub cors: Option<Cors>,
    /// Where the match was written; the rule's place if it has no match.
    pub origin: Origin,
}

/// One kind of process, as authorization policies know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// What an authorization policy or a filter is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A listener, by name.
    Listener(String),
    /// All routes of a virtual host or a single route, by the rule.
    Rule(RuleId),
    /// Workloads, and gateways that run in them.
    Workloads {
        /// None: in every namespace (Istio's root namespace).
        namespace: Option<String>,
        /// The labels that a workload must have; none: all workloads.
        labels: BTreeMap<String, String>,
    },
}

impl Target {
    /// Whether it is for this workload.
    pub fn selects_workload(&self, workload: &Workload) -> bool {
        let Self::Workloads { namespace, labels } = self else { return false };
        namespace.as_ref().is_none_or(|namespace| *namespace == workload.namespace)
            && labels.iter().all(|(name, value)| workload.labels.get(name) == Some(value))
    }

    /// Whether it is for this listener.
    pub fn selects_listener(&self, listener: &Listener) -> bool {
        match self {
            Self::Listener(name) => *name == listener.name,
            Self::Rule(_) => false,
            Self::Workloads { .. } => {
                listener.workload.as_ref().is_some_and(|workload| self.selects_workload(workload))
            }
        }
    }
}
