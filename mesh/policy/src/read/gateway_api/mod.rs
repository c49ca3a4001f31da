//! The Gateway API of Kubernetes.

mod filters;
mod gateway;
mod grpc_route;
mod http_route;
mod matching;

pub(super) use gateway::gateway;
pub(super) use grpc_route::grpc_route;
pub(super) use http_route::http_route;

use super::fields::{Fields, Notes};
use super::istio::full_host;
use super::set::{Document, Reference};
use super::yaml::Node;
use crate::form::Reason;

/// Where a route is attached: gateways (`NAMESPACE/NAME#SECTION`), and services in the mesh with their ports.
#[derive(Default)]
struct Parents {
    gateways: Vec<String>,
    services: Vec<String>,
}

fn parents(document: &Document<'_>, node: Option<&Node>, notes: &mut Notes) -> Parents {
    let mut parents = Parents::default();
    for node in node.map(|node| notes.list(node, "parentRefs")).unwrap_or_default() {
        let mut fields = Fields::of(node, notes, "parentRefs");
        fields.pass_over(&["group"]);
        let kind = fields.take("kind").map_or("Gateway", Node::text);
        let name = fields.take("name").map_or("", Node::text);
        let namespace = fields.take("namespace").map_or(document.namespace.as_str(), Node::text);
        let (section, port) = (fields.take("sectionName"), fields.take("port"));
        fields.finish(notes);
        match kind {
            "Gateway" => {
                let section = section.map(|section| format!("#{}", section.text())).unwrap_or_default();
                parents.gateways.push(format!("{namespace}/{name}{section}"));
                if let Some(port) = port {
                    notes.add(Reason::MatchOther, port, "parentRefs.port");
                }
            }
            "Service" => parents.services.push(full_host(name, namespace)),
            other => notes.add(Reason::UnknownKind, node, other),
        }
    }
    parents
}

/// A `backendRef`: a service and its port.
fn backend(document: &Document<'_>, fields: &mut Fields<'_>, notes: &mut Notes) -> Option<Reference> {
    let kind = fields.take("kind").map_or("Service", Node::text);
    let group = fields.take("group").map_or("", Node::text);
    let name = fields.take("name").and_then(|node| notes.text(node, "name"));
    let namespace = fields.take("namespace").map_or(document.namespace.as_str(), Node::text).to_owned();
    let port = fields.take("port").and_then(|node| notes.integer(node, "port"));
    if kind != "Service" || !group.is_empty() {
        notes.add(Reason::UnknownKind, fields.node(), format!("backendRefs: {kind}"));
        return None;
    }
    let Some(name) = name else {
        notes.missing(fields.node(), "name");
        return None;
    };
    Some(Reference { host: full_host(&name, &namespace), port, subset: None })
}
