//! `RouteConfiguration`: each route is one rule.

use std::sync::Arc;

use super::{action, matching};
use crate::form::{Action, Fault, Finding, HeaderEdits, Origin, Reason, Route, RuleKind, VirtualHost};
use crate::read::fields::{Fields, Notes};
use crate::read::set::Set;
use crate::read::yaml::Node;

/// The tables of a listener.
pub(super) struct Tables {
    pub(super) virtual_hosts: Vec<VirtualHost>,
    pub(super) ignore_port: bool,
    pub(super) request_headers: HeaderEdits,
    pub(super) response_headers: HeaderEdits,
}

/// What holds for each route.
pub(super) struct Around<'a> {
    pub(super) file: &'a Arc<str>,
    pub(super) title: &'a str,
    pub(super) fault: Option<Fault>,
    /// Of the listener.
    pub(super) findings: Vec<Finding>,
}

pub(super) fn tables(set: &mut Set, around: &mut Around<'_>, node: &Node) -> Tables {
    let mut notes = Notes::new(around.file);
    let mut fields = Fields::of_proto(node, &mut notes, "route_config");
    fields.pass_over(&["name", "validate_clusters", "max_direct_response_body_size_bytes"]);
    let ignore_port = fields.take("ignore_port_in_host_matching").is_some_and(|node| node.text() == "true");
    let (request_headers, response_headers) = action::header_edits(&mut fields, &mut notes);
    let hosts = fields.take("virtual_hosts").map(|node| notes.list(node, "virtual_hosts")).unwrap_or_default();
    fields.envoy("vhds", Reason::Dynamic, &mut notes);
    fields.finish(&mut notes);
    around.findings.append(&mut notes.findings);
    let virtual_hosts = hosts.iter().map(|node| virtual_host(set, around, node)).collect();
    Tables { virtual_hosts, ignore_port, request_headers, response_headers }
}

fn virtual_host(set: &mut Set, around: &Around<'_>, node: &Node) -> VirtualHost {
    let mut notes = Notes::new(around.file);
    let mut fields = Fields::of_proto(node, &mut notes, "virtual_hosts");
    fields.pass_over(&["virtual_clusters", "metadata"]);
    let name = fields.take("name").map_or("", Node::text).to_owned();
    let domains = fields.take("domains").map(|node| notes.texts(node, "domains")).unwrap_or_default();
    let (request_headers, response_headers) = action::header_edits(&mut fields, &mut notes);
    if let Some(node) = fields.take("require_tls").filter(|node| node.text() != "NONE") {
        notes.add(Reason::TlsDownstream, node, "require_tls");
    }
    fields.envoy("cors", Reason::Cors, &mut notes);
    fields.envoy("retry_policy", Reason::Retry, &mut notes);
    fields.envoy("rate_limits", Reason::RateLimitGlobal, &mut notes);
    per_filter(&mut fields, &mut notes);
    let routes = fields.take("routes").map(|node| notes.list(node, "routes")).unwrap_or_default();
    fields.finish(&mut notes);
    let shared = notes.findings;
    let mut out = VirtualHost {
        domains: domains.iter().map(|domain| domain.to_ascii_lowercase()).collect(),
        routes: Vec::new(),
        request_headers,
        response_headers,
        origin: node.at(around.file),
        name,
    };
    for (index, node) in routes.iter().enumerate() {
        let mut notes = Notes::with(around.file, &shared);
        let mut route = route(around, node, &mut notes);
        let title = format!("{} {} routes[{index}]", around.title, out.name);
        let rule = set.rule(RuleKind::Route, title, node.at(around.file), notes);
        set.rules[rule.0 as usize].inherited.clone_from(&around.findings);
        route.rule = Some(rule);
        out.routes.push(route);
    }
    out
}

fn route(around: &Around<'_>, node: &Node, notes: &mut Notes) -> Route {
    let mut fields = Fields::of_proto(node, notes, "routes");
    fields.pass_over(&["metadata", "decorator", "stat_prefix", "tracing"]);
    let name = fields.take("name").map_or("", Node::text).to_owned();
    let matching_node = fields.take("match");
    let matching = matching_node.map(|node| matching::read(node, notes)).unwrap_or_default();
    let (request_headers, response_headers) = action::header_edits(&mut fields, notes);
    per_filter(&mut fields, notes);
    let action = if let Some(node) = fields.take("route") {
        Action::Forward(Box::new(action::forward(node, notes)))
    } else if let Some(node) = fields.take("redirect") {
        Action::Redirect(action::redirect(node, notes))
    } else if let Some(node) = fields.take("direct_response") {
        Action::Direct(action::direct(node, notes))
    } else {
        fields.envoy("filter_action", Reason::EnvoyFilter, notes);
        fields.envoy("non_forwarding_action", Reason::EnvoyFilter, notes);
        Action::Envoy
    };
    fields.finish(notes);
    let origin: Origin = matching_node.unwrap_or(node).at(around.file);
    let fault = around.fault.clone();
    Route { rule: None, name, matching, fault, action, request_headers, response_headers, cors: None, origin }
}

/// Settings of filters for a route: each is Envoy's.
fn per_filter(fields: &mut Fields<'_>, notes: &mut Notes) {
    for name in ["typed_per_filter_config", "per_filter_config"] {
        for (key, _) in fields.take(name).map_or(&[][..], Node::members) {
            let reason = super::listener::KNOWN.iter().find(|(part, ..)| key.text().contains(part));
            notes.add(reason.map_or(Reason::EnvoyFilter, |(_, _, reason)| *reason), key, key.text());
        }
    }
}
