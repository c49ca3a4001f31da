//! One document: which dialect it is, and who reads it.

use std::sync::Arc;

use super::fields::Notes;
use super::set::{Attached, Document, Service, Set};
use super::yaml::{Node, Value};
use super::{envoy, gateway_api, istio};
use crate::form::{Reason, RuleKind};

/// API groups whose kinds are policies for Layer 7. A kind of theirs that is not read is a rule for Envoy.
const POLICY_GROUPS: &[&str] = &[
    "networking.istio.io",
    "security.istio.io",
    "extensions.istio.io",
    "telemetry.istio.io",
    "gateway.networking.k8s.io",
    "gateway.envoyproxy.io",
    "cilium.io",
    "policy.linkerd.io",
    "kuadrant.io",
    "gloo.solo.io",
    "getambassador.io",
    "kuma.io",
    "consul.hashicorp.com",
    "traefik.io",
    "projectcontour.io",
];

/// Kinds of those groups that describe the surroundings of policies.
const NOT_POLICIES: &[&str] = &[
    "GatewayClass",
    "ReferenceGrant",
    "WorkloadEntry",
    "WorkloadGroup",
    "Telemetry",
    "Sidecar",
    "EnvoyProxy",
    "Backend",
    "CiliumEndpoint",
    "CiliumIdentity",
    "CiliumNode",
    "CiliumLoadBalancerIPPool",
    "CiliumL2AnnouncementPolicy",
    "CiliumBGPPeeringPolicy",
];

pub(super) fn read(set: &mut Set, file: &Arc<str>, node: &Node) {
    let before = set.lengths();
    read_any(set, file, node);
    set.refuse_invalid(&before);
}

fn read_any(set: &mut Set, file: &Arc<str>, node: &Node) {
    let api = node.get("apiVersion").map_or("", Node::text);
    let kind = node.get("kind").map_or("", Node::text);
    if api.is_empty() && kind.is_empty() {
        return read_plain(set, file, node);
    }
    if kind == "List" || (kind.ends_with("List") && node.get("items").is_some()) {
        return node.get("items").map_or(&[][..], Node::items).iter().for_each(|item| read(set, file, item));
    }
    let (group, _) = api.split_once('/').unwrap_or(("", api));
    let metadata = |name: &str| node.path(&["metadata", name]).map_or(String::new(), |n| n.text().to_owned());
    let namespace = Some(metadata("namespace")).filter(|n| !n.is_empty()).unwrap_or_else(|| "default".into());
    let document = Document { file, node, kind, name: metadata("name"), namespace };
    match (group, kind) {
        ("networking.istio.io", "VirtualService") => istio::virtual_service(set, &document),
        ("networking.istio.io", "DestinationRule") => istio::destination_rule(set, &document),
        ("networking.istio.io", "ServiceEntry") => istio::service_entry(set, &document),
        ("networking.istio.io", "EnvoyFilter") => istio::envoy_filter(set, &document),
        ("networking.istio.io", "Gateway") => istio::gateway(set, &document),
        ("security.istio.io", "AuthorizationPolicy") => istio::authorization_policy(set, &document),
        ("security.istio.io", "PeerAuthentication") => istio::peer_authentication(set, &document),
        ("security.istio.io", "RequestAuthentication") => istio::request_authentication(set, &document),
        ("gateway.networking.k8s.io", "Gateway") => gateway_api::gateway(set, &document),
        ("gateway.networking.k8s.io", "HTTPRoute") => gateway_api::http_route(set, &document),
        ("gateway.networking.k8s.io", "GRPCRoute") => gateway_api::grpc_route(set, &document),
        ("", "Service") => service(set, &document),
        _ if is_policy(group, kind) => unknown_kind(set, &document),
        _ => set.passed_over.push((kind.to_owned(), document.at(node))),
    }
}

/// A document without `kind`: a static Envoy configuration, or nothing of ours.
fn read_plain(set: &mut Set, file: &Arc<str>, node: &Node) {
    let is_envoy = ["static_resources", "staticResources", "dynamic_resources", "dynamicResources"];
    if is_envoy.iter().any(|name| node.get(name).is_some()) {
        return envoy::bootstrap(set, file, node);
    }
    let what = if matches!(node.value, Value::Map(_)) { "no kind" } else { "not a map" };
    set.passed_over.push((what.to_owned(), node.at(file)));
}

fn is_policy(group: &str, kind: &str) -> bool {
    let of_group = POLICY_GROUPS.iter().any(|known| group == *known || group.ends_with(&format!(".{known}")));
    let is_ingress = kind == "Ingress" && (group == "networking.k8s.io" || group == "extensions");
    (of_group && !NOT_POLICIES.contains(&kind)) || is_ingress
}

fn unknown_kind(set: &mut Set, document: &Document<'_>) {
    let mut notes: Notes = document.notes();
    notes.add(Reason::UnknownKind, document.node.get("kind").unwrap_or(document.node), document.kind);
    let rule = set.rule(RuleKind::Other, document.title(), document.at(document.node), notes);
    let spec = document.node.get("spec");
    let one = spec.and_then(|spec| spec.get("targetRef"));
    let many = spec.and_then(|spec| spec.get("targetRefs").or_else(|| spec.get("targetSelectors")));
    for target in one.into_iter().chain(many.map_or(&[][..], Node::items)) {
        let namespace = document.namespace.clone();
        let name = target.get("name").map(|name| format!("{namespace}/{}", name.text()));
        let kind = target.get("kind").map_or("", Node::text).to_owned();
        set.attached.push(Attached { rule, kind, name, namespace });
    }
}

/// A Kubernetes Service: no policy, but it says which pods answer.
fn service(set: &mut Set, document: &Document<'_>) {
    let mut notes = document.notes();
    let selector = document.node.path(&["spec", "selector"]).map(|node| notes.labels(node, "selector"));
    set.services.push(Service {
        host: istio::full_host(&document.name, &document.namespace),
        namespace: document.namespace.clone(),
        selector: selector.filter(|labels| !labels.is_empty()),
        entry: None,
        origin: document.at(document.node),
    });
    set.passed_over.push((document.kind.to_owned(), document.at(document.node)));
}
