//! `Cluster`: one rule.

use std::sync::Arc;

use super::extension;
use crate::form::{
    Cluster, Discovery, Endpoint, LoadBalancing, OutlierDetection, PoolLimits, Reason, RuleKind, UpstreamProtocol,
};
use crate::read::fields::{Fields, Notes};
use crate::read::set::Set;
use crate::read::yaml::Node;

pub(super) fn cluster(set: &mut Set, file: &Arc<str>, node: &Node) {
    let mut notes = Notes::new(file);
    let mut fields = Fields::of_proto(node, &mut notes, "clusters");
    // About names, logs, and how addresses are looked up and connections are made.
    fields.pass_over(&[
        "name",
        "alt_stat_name",
        "metadata",
        "connect_timeout",
        "dns_lookup_family",
        "dns_refresh_rate",
    ]);
    fields.pass_over(&["respect_dns_ttl", "dns_resolvers", "wait_for_warm_on_init", "upstream_connection_options"]);
    fields.pass_over(&["per_connection_buffer_limit_bytes", "cleanup_interval", "track_cluster_stats"]);
    let kind = fields.take("type");
    let discovery = discovery(kind, &mut notes);
    fields.envoy("cluster_type", Reason::Dynamic, &mut notes);
    fields.envoy("eds_cluster_config", Reason::Dynamic, &mut notes);
    let balancing = balancing(fields.take("lb_policy"), &mut notes);
    for name in
        ["load_balancing_policy", "lb_subset_config", "ring_hash_lb_config", "maglev_lb_config", "common_lb_config"]
    {
        fields.envoy(name, Reason::LoadBalancing, &mut notes);
    }
    for name in ["least_request_lb_config", "round_robin_lb_config"] {
        if let Some(node) = fields.take(name) {
            balancing_options(name, node, &mut notes);
        }
    }
    let mut protocol = UpstreamProtocol::Http1;
    for name in ["http2_protocol_options", "tls_context", "transport_socket", "typed_extension_protocol_options"] {
        if let Some(node) = fields.take(name) {
            protocol = spoken(name, node, protocol, &mut notes);
        }
    }
    fields.pass_over(&["http_protocol_options"]);
    fields.envoy("health_checks", Reason::HealthCheck, &mut notes);
    let outlier = fields.take("outlier_detection");
    if let Some(node) = outlier {
        notes.add(Reason::OutlierDetection, node, "outlier_detection");
    }
    let limits = fields.take("circuit_breakers");
    if let Some(node) = limits {
        notes.add(Reason::PoolLimits, node, "circuit_breakers");
    }
    fields.envoy("max_requests_per_connection", Reason::PoolLimits, &mut notes);
    let endpoints = endpoints(&mut fields, &mut notes);
    fields.finish(&mut notes);
    let name = node.get("name").map_or("", Node::text).to_owned();
    let rule = set.rule(RuleKind::Destination, format!("cluster {name}"), node.at(file), notes);
    set.clusters.push(Cluster {
        host: name.clone(),
        name,
        port: None,
        subset: None,
        discovery,
        endpoints,
        balancing,
        limits: limits.map(|_| PoolLimits::default()),
        outlier: outlier.map(|_| OutlierDetection::default()),
        protocol,
        workload: None,
        rules: vec![rule],
        origin: node.at(file),
    });
}

fn endpoints(fields: &mut Fields<'_>, notes: &mut Notes) -> Vec<Endpoint> {
    let mut endpoints = Vec::new();
    if let Some(node) = fields.take("load_assignment") {
        assignment(node, &mut endpoints, notes);
    }
    // As it was written before version 3 of the API.
    for item in fields.take("hosts").map_or(&[][..], Node::items) {
        endpoints.extend(address(item, 1, notes));
    }
    endpoints
}

fn discovery(node: Option<&Node>, notes: &mut Notes) -> Discovery {
    match node.map_or("STATIC", Node::text).to_ascii_uppercase().as_str() {
        "STATIC" => Discovery::Static,
        "STRICT_DNS" | "LOGICAL_DNS" => Discovery::Dns,
        "ORIGINAL_DST" => Discovery::OriginalDestination,
        other => {
            if let Some(node) = node {
                notes.add(Reason::Dynamic, node, other);
            }
            Discovery::Services
        }
    }
}

fn balancing(node: Option<&Node>, notes: &mut Notes) -> LoadBalancing {
    match node.map_or("ROUND_ROBIN", Node::text).to_ascii_uppercase().as_str() {
        "ROUND_ROBIN" => LoadBalancing::RoundRobin,
        "LEAST_REQUEST" => LoadBalancing::LeastRequest { choices: 2 },
        "RANDOM" => LoadBalancing::Random,
        "CLUSTER_PROVIDED" => LoadBalancing::Passthrough,
        other => {
            if let Some(node) = node {
                notes.add(Reason::LoadBalancing, node, other);
            }
            LoadBalancing::Hash(other.to_ascii_lowercase())
        }
    }
}

/// Of the two algorithms that have options. The kernel compares two endpoints where weights are equal; other options
/// change what a weight means.
fn balancing_options(name: &str, node: &Node, notes: &mut Notes) {
    let mut fields = Fields::of_proto(node, notes, name);
    if let Some(node) = fields.take("choice_count")
        && notes.integer::<u32>(node, "choice_count") != Some(2)
    {
        notes.add(Reason::LoadBalancing, node, "choice_count");
    }
    for name in
        ["active_request_bias", "slow_start_config", "locality_lb_config", "enable_full_scan", "selection_method"]
    {
        fields.envoy(name, Reason::LoadBalancing, notes);
    }
    fields.finish(notes);
}

fn spoken(name: &str, node: &Node, before: UpstreamProtocol, notes: &mut Notes) -> UpstreamProtocol {
    match name {
        "http2_protocol_options" => {
            notes.add(Reason::Http2, node, name);
            UpstreamProtocol::Http2
        }
        "typed_extension_protocol_options" => {
            let is_http2 = |node: &&Node| {
                node.members()
                    .iter()
                    .any(|(key, _)| ["http2_protocol_options", "http2ProtocolOptions"].contains(&key.text()))
            };
            let uses_http1 = node.everything().into_iter().any(|node| {
                node.members()
                    .iter()
                    .any(|(key, _)| ["explicit_http_config", "explicitHttpConfig"].contains(&key.text()))
            });
            if node.everything().iter().any(is_http2) {
                notes.add(Reason::Http2, node, name);
                return UpstreamProtocol::Http2;
            }
            if !uses_http1 {
                notes.add(Reason::UnknownField, node, name);
            }
            before
        }
        _ if name == "transport_socket" && extension(node.get("name").map_or("", Node::text)) == "raw_buffer" => before,
        _ => {
            notes.add(Reason::TlsUpstream, node, name);
            UpstreamProtocol::Tls
        }
    }
}

fn assignment(node: &Node, endpoints: &mut Vec<Endpoint>, notes: &mut Notes) {
    let mut fields = Fields::of_proto(node, notes, "load_assignment");
    fields.pass_over(&["cluster_name"]);
    fields.envoy("policy", Reason::Locality, notes);
    let localities = fields.take("endpoints").map(|node| notes.list(node, "endpoints")).unwrap_or_default();
    fields.finish(notes);
    for locality in localities {
        let mut fields = Fields::of_proto(locality, notes, "endpoints");
        for name in ["priority", "load_balancing_weight"] {
            fields.envoy(name, Reason::Locality, notes);
        }
        fields.pass_over(&["locality"]);
        let list = fields.take("lb_endpoints").map(|node| notes.list(node, "lb_endpoints")).unwrap_or_default();
        fields.finish(notes);
        for item in list {
            let mut fields = Fields::of_proto(item, notes, "lb_endpoints");
            fields.pass_over(&["metadata", "health_status"]);
            let weight = fields.take("load_balancing_weight").map(|node| weight(node, notes)).unwrap_or(1);
            let inner = fields.take("endpoint");
            fields.finish(notes);
            let Some(inner) = inner else {
                notes.missing(item, "endpoint");
                continue;
            };
            let mut fields = Fields::of_proto(inner, notes, "endpoint");
            let at = fields.take("address");
            fields.pass_over(&["hostname"]);
            fields.envoy("health_check_config", Reason::HealthCheck, notes);
            fields.finish(notes);
            endpoints.extend(at.and_then(|node| address(node, weight, notes)));
        }
    }
}

fn weight(node: &Node, notes: &mut Notes) -> u32 {
    let weight = notes.integer(node, "load_balancing_weight").unwrap_or(1);
    if weight == 0 {
        notes.add(Reason::InvalidValue, node, "load_balancing_weight is at least 1");
    }
    weight.max(1)
}

fn address(node: &Node, weight: u32, notes: &mut Notes) -> Option<Endpoint> {
    let mut fields = Fields::of_proto(node, notes, "address");
    let socket = fields.take("socket_address");
    fields.finish(notes);
    let mut fields = Fields::of_proto(socket?, notes, "socket_address");
    fields.pass_over(&["protocol", "ipv4_compat", "resolver_name"]);
    let address = fields.take("address").and_then(|node| notes.text(node, "address"));
    let port = fields.take("port_value").and_then(|node| notes.integer(node, "port_value"));
    fields.finish(notes);
    Some(Endpoint { weight, ..Endpoint::at(address?, port) })
}
