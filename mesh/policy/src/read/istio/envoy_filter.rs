//! EnvoyFilter: each patch is one rule, and always Envoy's. The reason says what is in it, as far as that is known.

use crate::form::{Filter, FilterKind, Reason, RuleKind, Target};
use crate::read::fields::Fields;
use crate::read::set::{Document, Set};
use crate::read::yaml::Node;

/// Parts of names and types, and what they stand for.
const KNOWN: &[(&str, FilterKind, Reason)] = &[
    ("lua", FilterKind::Lua, Reason::Lua),
    ("wasm", FilterKind::Wasm, Reason::Wasm),
    ("ext_authz", FilterKind::ExtAuthz, Reason::ExtAuthz),
    ("jwt_authn", FilterKind::Jwt, Reason::Jwt),
    ("local_ratelimit", FilterKind::LocalRateLimit, Reason::RateLimitLocal),
    ("ratelimit", FilterKind::GlobalRateLimit, Reason::RateLimitGlobal),
    ("rate_limit", FilterKind::GlobalRateLimit, Reason::RateLimitGlobal),
    ("grpc_json_transcoder", FilterKind::Grpc, Reason::Http2),
    ("grpc_web", FilterKind::Grpc, Reason::Http2),
    ("compressor", FilterKind::Compression, Reason::EnvoyFilter),
];

pub(in crate::read) fn envoy_filter(set: &mut Set, document: &Document<'_>) {
    let mut notes = document.notes();
    let mut spec = document.spec(&mut notes);
    let selector =
        spec.take("workloadSelector").and_then(|node| node.get("labels")).or_else(|| spec.take("workloadLabels"));
    let labels = selector.map(|node| notes.labels(node, "labels")).unwrap_or_default();
    let namespace = Some(document.namespace.clone()).filter(|namespace| namespace != super::ROOT_NAMESPACE);
    let target = Target::Workloads { namespace, labels };
    // `filters` is how it was written before Istio 1.3.
    for list in ["configPatches", "filters"] {
        let Some(node) = Fields::take(&mut spec, if list == "filters" { "filters" } else { "configPatches" }) else {
            continue;
        };
        for (index, patch) in node.items().iter().enumerate() {
            let mut notes = document.notes();
            let (kind, reason, what) = content(patch);
            notes.add(reason, patch, what);
            let title = format!("{} {list}[{index}]", document.title());
            let rule = set.rule(RuleKind::Filter, title, document.at(patch), notes);
            set.filters.push(Filter { rule, target: target.clone(), kind, origin: document.at(patch) });
        }
    }
}

/// What a patch puts in: the most telling name in it.
fn content(patch: &Node) -> (FilterKind, Reason, String) {
    let value = patch.path(&["patch", "value"]).unwrap_or(patch);
    let names: Vec<_> = value
        .everything()
        .into_iter()
        .flat_map(Node::members)
        .filter(|(key, _)| matches!(key.text(), "name" | "@type" | "type_url" | "filterName"))
        .map(|(_, node)| node.text())
        .collect();
    for (part, kind, reason) in KNOWN {
        if let Some(name) = names.iter().find(|name| name.to_ascii_lowercase().contains(part)) {
            return (*kind, *reason, (*name).to_owned());
        }
    }
    let what = patch.get("applyTo").or_else(|| patch.get("filterName")).map_or("patch", Node::text);
    (FilterKind::Other, Reason::EnvoyFilter, what.to_owned())
}
