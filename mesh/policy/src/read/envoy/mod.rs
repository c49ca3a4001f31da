//! Static Envoy configuration: YAML or JSON.

mod action;
mod cluster;
mod listener;
mod matching;
mod rbac;
mod route;
mod strings;

use std::sync::Arc;

use super::fields::{Fields, Notes};
use super::set::Set;
use super::yaml::Node;
use crate::form::{Reason, RuleKind};

/// Reads a bootstrap. What comes from a management server is one rule, and Envoy's.
pub(super) fn bootstrap(set: &mut Set, file: &Arc<str>, node: &Node) {
    let mut shared = Notes::new(file);
    let mut top = Fields::of_proto(node, &mut shared, "bootstrap");
    // About the process itself, not about requests.
    top.pass_over(&[
        "admin",
        "node",
        "layered_runtime",
        "stats_sinks",
        "stats_config",
        "tracing",
        "watchdog",
        "watchdogs",
    ]);
    top.pass_over(&["bootstrap_extensions", "overload_manager", "flags_path", "cluster_manager", "hds_config"]);
    top.pass_over(&["stats_flush_interval", "application_log_config", "default_socket_interface", "runtime"]);
    let resources = top.take("static_resources");
    let dynamic = top.take("dynamic_resources");
    top.finish(&mut shared);
    if let Some(resources) = resources {
        let mut fields = Fields::of_proto(resources, &mut shared, "static_resources");
        fields.pass_over(&["secrets"]);
        let (listeners, clusters) = (fields.take("listeners"), fields.take("clusters"));
        fields.finish(&mut shared);
        for node in listeners.map_or(&[][..], Node::items) {
            listener::listener(set, file, node);
        }
        for node in clusters.map_or(&[][..], Node::items) {
            cluster::cluster(set, file, node);
        }
    }
    if let Some(node) = dynamic {
        shared.add(Reason::Dynamic, node, "dynamic_resources");
    }
    if !shared.findings.is_empty() {
        set.rule(RuleKind::Other, "bootstrap".into(), dynamic.unwrap_or(node).at(file), shared);
    }
}

/// `typed_config`, or `config` as it was written earlier; without what says its type.
fn config<'a>(fields: &mut Fields<'a>) -> Option<&'a Node> {
    fields.take("typed_config").or_else(|| fields.take("config"))
}

/// The part of a name or type that says which extension it is: `envoy.filters.http.router` is `router`.
fn extension(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
