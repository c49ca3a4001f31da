//! What the readers have gathered, before it is linked.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SyntaxError;
use super::fields::{Fields, Notes};
use super::yaml::Node;
use crate::form::{
    Authorization, Cluster, Endpoint, Filter, Finding, Listener, LoadBalancing, Origin, OutlierDetection, PoolLimits,
    Reason, Route, Rule, RuleId, RuleKind, UpstreamProtocol,
};

/// Grows document by document.
#[derive(Debug, Default)]
pub(super) struct Set {
    pub(super) documents: usize,
    pub(super) passed_over: Vec<(String, Origin)>,
    pub(super) errors: Vec<SyntaxError>,
    pub(super) rules: Vec<Rule>,
    pub(super) authorization: Vec<Authorization>,
    pub(super) filters: Vec<Filter>,
    pub(super) services: Vec<Service>,
    pub(super) routes: Vec<HostRoutes>,
    pub(super) traffic: Vec<Traffic>,
    pub(super) gateways: Vec<Gateway>,
    /// Policies of kinds that are not read, and what they are attached to: kind, `NAMESPACE/NAME`.
    pub(super) attached: Vec<Attached>,
    /// Of Envoy: complete as they are.
    pub(super) listeners: Vec<Listener>,
    /// Of Envoy: complete as they are.
    pub(super) clusters: Vec<Cluster>,
}

/// A Kubernetes document.
pub(super) struct Document<'a> {
    pub(super) file: &'a Arc<str>,
    pub(super) node: &'a Node,
    pub(super) kind: &'a str,
    pub(super) name: String,
    pub(super) namespace: String,
}

impl Document<'_> {
    /// `VirtualService default/reviews`.
    pub(super) fn title(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }

    pub(super) fn notes(&self) -> Notes {
        Notes::new(self.file)
    }

    pub(super) fn notes_with(&self, findings: &[Finding]) -> Notes {
        Notes::with(self.file, findings)
    }

    pub(super) fn at(&self, node: &Node) -> Origin {
        node.at(self.file)
    }

    /// `spec`; a document without one has an empty one.
    pub(super) fn spec(&self, notes: &mut Notes) -> Fields<'_> {
        Fields::of(self.node.get("spec").unwrap_or(self.node), notes, "spec")
    }
}

/// A service that a document describes: a Kubernetes `Service` or a host of a `ServiceEntry`.
#[derive(Debug)]
pub(super) struct Service {
    /// In full, in lower case.
    pub(super) host: String,
    pub(super) namespace: String,
    /// The labels of the pods behind it.
    pub(super) selector: Option<BTreeMap<String, String>>,
    /// Of a `ServiceEntry`.
    pub(super) entry: Option<Entry>,
    pub(super) origin: Origin,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) rule: RuleId,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) dns: bool,
    pub(super) protocol: UpstreamProtocol,
}

/// Routes for some hosts at some gateways.
#[derive(Debug)]
pub(super) struct HostRoutes {
    pub(super) name: String,
    pub(super) namespace: String,
    /// In full, in lower case.
    pub(super) hosts: Vec<String>,
    pub(super) routes: Vec<GatedRoute>,
    /// The Gateway API orders routes by how much they say, Istio as they are written.
    pub(super) by_precedence: bool,
    pub(super) origin: Origin,
}

/// A route and the gateways at which it holds: `mesh` or `NAMESPACE/NAME`, with the name of a listener behind `#`.
#[derive(Debug)]
pub(super) struct GatedRoute {
    pub(super) route: Route,
    pub(super) gateways: Vec<String>,
    pub(super) targets: Vec<Reference>,
}

/// A cluster as a route names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    /// In full, in lower case.
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) subset: Option<String>,
}

impl Reference {
    pub(super) fn cluster(&self) -> String {
        let port = self.port.map(|port| port.to_string()).unwrap_or_default();
        format!("{}|{port}|{}", self.host, self.subset.as_deref().unwrap_or(""))
    }
}

/// What a `DestinationRule` says of a host, a subset of it, or one of its ports.
#[derive(Debug, Clone)]
pub(super) struct Traffic {
    /// In full, in lower case, or `*.suffix`.
    pub(super) host: String,
    pub(super) subset: Option<(String, BTreeMap<String, String>)>,
    pub(super) port: Option<u16>,
    pub(super) settings: TrafficSettings,
    pub(super) rule: RuleId,
    pub(super) origin: Origin,
}

#[derive(Debug, Clone, Default)]
pub(super) struct TrafficSettings {
    pub(super) balancing: Option<LoadBalancing>,
    pub(super) limits: Option<PoolLimits>,
    pub(super) outlier: Option<OutlierDetection>,
    pub(super) protocol: Option<UpstreamProtocol>,
}

/// A gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    /// `NAMESPACE/NAME`.
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) servers: Vec<Server>,
    pub(super) origin: Origin,
}

/// A port of a gateway.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) port: u16,
    /// Clear-text HTTP/1.
    pub(super) clear: bool,
    /// In lower case; `*` for all.
    pub(super) hosts: Vec<String>,
}

/// A policy of a kind that is not read, on something that is.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) rule: RuleId,
    pub(super) kind: String,
    /// `NAMESPACE/NAME`; None: all of that kind in the namespace may be meant.
    pub(super) name: Option<String>,
    pub(super) namespace: String,
}

impl Set {
    /// Takes back what a document brought, if its control plane would refuse it: it is in force nowhere.
    pub(super) fn refuse_invalid(&mut self, before: &Lengths) {
        let new = &self.rules[before.rules..];
        let findings = new.iter().flat_map(|rule| &rule.findings).filter(|f| f.reason == Reason::InvalidValue);
        let mut errors: Vec<SyntaxError> = Vec::new();
        for finding in findings {
            let error = SyntaxError { origin: finding.origin.clone(), what: finding.what.clone(), template: false };
            if !errors.contains(&error) {
                errors.push(error);
            }
        }
        if errors.is_empty() {
            return;
        }
        errors.sort_by(|a, b| a.origin.cmp(&b.origin));
        self.errors.append(&mut errors);
        self.rules.truncate(before.rules);
        self.authorization.truncate(before.authorization);
        self.filters.truncate(before.filters);
        self.services.truncate(before.services);
        self.routes.truncate(before.routes);
        self.traffic.truncate(before.traffic);
        self.gateways.truncate(before.gateways);
        self.attached.truncate(before.attached);
        self.listeners.truncate(before.listeners);
        self.clusters.truncate(before.clusters);
    }

    pub(super) fn lengths(&self) -> Lengths {
        Lengths {
            rules: self.rules.len(),
            authorization: self.authorization.len(),
            filters: self.filters.len(),
            services: self.services.len(),
            routes: self.routes.len(),
            traffic: self.traffic.len(),
            gateways: self.gateways.len(),
            attached: self.attached.len(),
            listeners: self.listeners.len(),
            clusters: self.clusters.len(),
        }
    }

    /// A new rule with what was found while it was read.
    pub(super) fn rule(&mut self, kind: RuleKind, name: String, origin: Origin, notes: Notes) -> RuleId {
        let id = RuleId(u32::try_from(self.rules.len()).unwrap_or(u32::MAX));
        let mut findings = notes.findings;
        findings.dedup();
        self.rules.push(Rule { kind, name, origin, findings, inherited: Vec::new() });
        id
    }

    /// The id that the next rule will get.
    pub(super) fn next_rule(&self) -> RuleId {
        RuleId(u32::try_from(self.rules.len()).unwrap_or(u32::MAX))
    }
}

/// How much there was before a document.
pub(super) struct Lengths {
    rules: usize,
    authorization: usize,
    filters: usize,
    services: usize,
    routes: usize,
    traffic: usize,
    gateways: usize,
    attached: usize,
    listeners: usize,
    clusters: usize,
}
