//! ServiceEntry: one rule. It brings hosts and endpoints.

use super::full_host;
use crate::form::{Endpoint, Reason, RuleKind, UpstreamProtocol};
use crate::read::fields::{Fields, Notes};
use crate::read::set::{Document, Entry, Service, Set};
use crate::read::yaml::Node;

pub(in crate::read) fn service_entry(set: &mut Set, document: &Document<'_>) {
    let mut notes = document.notes();
    let mut spec = document.spec(&mut notes);
    spec.pass_over(&["exportTo", "location"]);
    let hosts = spec.take("hosts").map(|node| notes.texts(node, "hosts")).unwrap_or_default();
    let addresses = spec.take("addresses").map(|node| notes.texts(node, "addresses")).unwrap_or_default();
    let ports = spec.take("ports").map(|node| notes.list(node, "ports")).unwrap_or_default();
    let (protocol, number, target_port) = ports_of(ports, &mut notes);
    let resolution = spec.take("resolution");
    let dns = match resolution.map_or("NONE", Node::text) {
        "DNS" | "DNS_ROUND_ROBIN" => true,
        "STATIC" | "NONE" => false,
        "DYNAMIC_DNS" => {
            notes.add(Reason::Dynamic, resolution.unwrap_or(document.node), "DYNAMIC_DNS");
            true
        }
        other => {
            notes.add(Reason::InvalidValue, resolution.unwrap_or(document.node), other);
            false
        }
    };
    let is_none = resolution.is_none_or(|node| node.text() == "NONE");
    let list = spec.take("endpoints").map(|node| notes.list(node, "endpoints")).unwrap_or_default();
    let mut endpoints: Vec<_> = list.iter().filter_map(|node| endpoint(node, target_port, &mut notes)).collect();
    let selector = spec.take("workloadSelector").and_then(|node| node.get("labels"));
    let selector = selector.map(|node| notes.labels(node, "labels"));
    spec.envoy("subjectAltNames", Reason::TlsUpstream, &mut notes);
    spec.finish(&mut notes);
    if endpoints.is_empty() && dns {
        let of_host = |host: &String| Endpoint::at(host.clone(), target_port.or(number));
        endpoints = hosts.iter().filter(|host| !host.contains('*')).map(of_host).collect();
    }
    if endpoints.is_empty() && is_none {
        endpoints = addresses.iter().filter(|a| !a.contains('/')).map(|a| Endpoint::at(a.clone(), number)).collect();
    }
    let rule = set.rule(RuleKind::Destination, document.title(), document.at(document.node), notes);
    for host in hosts {
        set.services.push(Service {
            host: full_host(&host, &document.namespace),
            namespace: document.namespace.clone(),
            selector: selector.clone(),
            entry: Some(Entry { rule, endpoints: endpoints.clone(), dns, protocol }),
            origin: document.at(document.node),
        });
    }
}

/// What is spoken, and the first port with its target.
fn ports_of(ports: &[Node], notes: &mut Notes) -> (UpstreamProtocol, Option<u16>, Option<u16>) {
    let (mut spoken, mut first, mut first_target) = (UpstreamProtocol::Http1, None, None);
    for node in ports {
        let mut fields = Fields::of(node, notes, "ports");
        fields.pass_over(&["name"]);
        let number = fields.take("number").and_then(|node| notes.integer(node, "number"));
        let target = fields.take("targetPort").and_then(|node| notes.integer(node, "targetPort"));
        let protocol = fields.take("protocol");
        fields.finish(notes);
        let at = protocol.unwrap_or(node);
        let name = protocol.map_or("TCP", Node::text).to_ascii_uppercase();
        spoken = match name.as_str() {
            "HTTP" => spoken,
            "HTTP2" | "GRPC" | "GRPC-WEB" => {
                notes.add(Reason::Http2, at, name);
                UpstreamProtocol::Http2
            }
            "HTTPS" | "TLS" => {
                notes.add(Reason::TlsUpstream, at, name);
                UpstreamProtocol::Tls
            }
            "TCP" | "MONGO" | "MYSQL" | "REDIS" => {
                notes.add(Reason::Tcp, at, name);
                UpstreamProtocol::Tcp
            }
            other => {
                notes.add(Reason::InvalidValue, at, other);
                UpstreamProtocol::Tcp
            }
        };
        if first.is_none() {
            (first, first_target) = (number, target);
        }
    }
    (spoken, first, first_target)
}

fn endpoint(node: &Node, target_port: Option<u16>, notes: &mut Notes) -> Option<Endpoint> {
    let mut fields = Fields::of(node, notes, "endpoints");
    let address = fields.take("address").and_then(|node| notes.text(node, "address"));
    let ports = fields.take("ports").map_or(&[][..], Node::members);
    let port = ports.first().and_then(|(_, node)| notes.integer(node, "ports"));
    let labels = fields.take("labels").map(|node| notes.labels(node, "labels")).unwrap_or_default();
    // Istio takes 0 for 1.
    let weight = fields.take("weight").and_then(|node| notes.integer(node, "weight"));
    fields.envoy("locality", Reason::Locality, notes);
    fields.envoy("network", Reason::Locality, notes);
    fields.pass_over(&["serviceAccount"]);
    fields.finish(notes);
    Some(Endpoint { address: address?, port: port.or(target_port), labels, weight: weight.unwrap_or(1).max(1) })
}
