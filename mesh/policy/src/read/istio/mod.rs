//! Istio: one file per kind.

mod authentication;
mod authorization;
mod destination_rule;
mod envoy_filter;
mod gateway;
mod http_action;
mod http_match;
mod service_entry;
mod virtual_service;

pub(super) use authentication::{peer_authentication, request_authentication};
pub(super) use authorization::authorization_policy;
pub(super) use destination_rule::destination_rule;
pub(super) use envoy_filter::envoy_filter;
pub(super) use gateway::gateway;
pub(super) use service_entry::service_entry;
pub(super) use virtual_service::virtual_service;

use super::fields::{Fields, Notes};
use super::set::Document;
use super::yaml::Node;
use crate::form::Target;

/// The namespace whose policies hold everywhere.
const ROOT_NAMESPACE: &str = "istio-system";

/// `reviews` in namespace `default` is `reviews.default.svc.cluster.local`; names with a dot are complete.
pub(super) fn full_host(host: &str, namespace: &str) -> String {
    let host = host.to_ascii_lowercase();
    if host.contains(['.', '*']) || host.is_empty() { host } else { format!("{host}.{namespace}.svc.cluster.local") }
}

/// Whose policy it is: `selector`, or `targetRefs`, or the whole namespace.
fn target(document: &Document<'_>, spec: &mut Fields<'_>, notes: &mut Notes) -> Vec<Target> {
    let namespace = Some(document.namespace.clone()).filter(|namespace| namespace != ROOT_NAMESPACE);
    let references = [spec.take("targetRef"), spec.take("targetRefs")];
    let labels = spec.take("selector").map(|node| {
        let mut fields = Fields::of(node, notes, "selector");
        let labels = fields.take("matchLabels").map(|node| notes.labels(node, "matchLabels")).unwrap_or_default();
        fields.finish(notes);
        labels
    });
    let mut targets = Vec::new();
    if let Some(one) = references[0] {
        targets.extend(target_reference(document, one, notes));
    }
    for many in references[1].map(|node| notes.list(node, "targetRefs")).unwrap_or_default() {
        targets.extend(target_reference(document, many, notes));
    }
    if references.iter().all(Option::is_none) {
        targets.push(Target::Workloads { namespace, labels: labels.unwrap_or_default() });
    }
    targets
}

fn target_reference(document: &Document<'_>, node: &Node, notes: &mut Notes) -> Option<Target> {
    let mut fields = Fields::of(node, notes, "targetRefs");
    fields.pass_over(&["group"]);
    let (kind, name) = (fields.take("kind"), fields.take("name").map_or("", Node::text).to_owned());
    fields.finish(notes);
    match kind.map(Node::text) {
        Some("Gateway") => Some(Target::Listener(format!("gateway {}/{name}", document.namespace))),
        _ => {
            // Waypoints for services: who answers is not in the policy, so everyone of the namespace is meant.
            notes.add(crate::form::Reason::UnknownKind, kind.unwrap_or(node), "targetRefs: only Gateway is read");
            let namespace = Some(document.namespace.clone());
            Some(Target::Workloads { namespace, labels: Default::default() })
        }
    }
}
