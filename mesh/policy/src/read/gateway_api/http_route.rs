//! HTTPRoute: each entry of `rules` is one rule.

use super::filters::{self, Filters};
use super::{backend, matching, parents};
use crate::form::{Action, DirectResponse, Forward, Reason, RequestMatch, Route, RuleId, RuleKind, WeightedTarget};
use crate::read::fields::{Fields, Notes};
use crate::read::set::{Document, GatedRoute, HostRoutes, Reference, Set};
use crate::read::yaml::Node;

pub(in crate::read) fn http_route(set: &mut Set, document: &Document<'_>) {
    let mut shared = document.notes();
    let mut spec = document.spec(&mut shared);
    let parents = parents(document, spec.take("parentRefs"), &mut shared);
    let hosts = spec.take("hostnames").map(|node| shared.texts(node, "hostnames")).unwrap_or_default();
    let rules = spec.take("rules").map(|node| shared.list(node, "rules")).unwrap_or_default();
    spec.envoy("useDefaultGateways", Reason::UnknownField, &mut shared);
    spec.finish(&mut shared);
    let (mut at_gateways, mut in_mesh) = (Vec::new(), Vec::new());
    for (index, node) in rules.iter().enumerate() {
        let mut notes = document.notes_with(&shared.findings);
        let made = rule(document, node, set.next_rule(), &mut notes);
        let title = format!("{} rules[{index}]", document.title());
        set.rule(RuleKind::Route, title, document.at(node), notes);
        for (route, targets) in made {
            let gated = |gateways| GatedRoute { route: route.clone(), gateways, targets: targets.clone() };
            at_gateways.push(gated(parents.gateways.clone()));
            in_mesh.push(gated(vec!["mesh".into()]));
        }
    }
    let mut add = |hosts: Vec<String>, routes: Vec<GatedRoute>| {
        set.routes.push(HostRoutes {
            name: document.name.clone(),
            namespace: document.namespace.clone(),
            hosts,
            routes,
            by_precedence: true,
            origin: document.at(document.node),
        });
    };
    if !parents.gateways.is_empty() && !at_gateways.is_empty() {
        let all = vec!["*".to_owned()];
        let hosts: Vec<_> = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        add(if hosts.is_empty() { all } else { hosts }, at_gateways);
    }
    // A route of a service: hostnames do not count.
    if !parents.services.is_empty() && !in_mesh.is_empty() {
        add(parents.services, in_mesh);
    }
}

/// One entry of `rules`: as many routes as it has matches.
fn rule(document: &Document<'_>, node: &Node, rule: RuleId, notes: &mut Notes) -> Vec<(Route, Vec<Reference>)> {
    let mut fields = Fields::of(node, notes, "rules");
    let name = fields.take("name").map_or("", Node::text).to_owned();
    let list = fields.take("matches").map(|node| notes.list(node, "matches")).unwrap_or_default();
    let mut matches: Vec<_> = list.iter().map(|item| (matching::read(item, notes), document.at(item))).collect();
    if matches.is_empty() {
        matches.push((RequestMatch::default(), document.at(node)));
    }
    let mut filters = fields.take("filters").map(|node| filters::read(document, node, notes)).unwrap_or_default();
    let mut references = std::mem::take(&mut filters.references);
    let mut forward = Forward { mirrors: std::mem::take(&mut filters.mirrors), ..Forward::default() };
    if let Some(node) = fields.take("timeouts") {
        timeouts(node, &mut forward, notes);
    }
    fields.envoy("retry", Reason::Retry, notes);
    fields.envoy("sessionPersistence", Reason::LoadBalancing, notes);
    let backends_node = fields.take("backendRefs");
    let all_read = backends(document, backends_node, &mut forward, &mut references, notes);
    fields.finish(notes);
    let Filters { request, response, redirect, path, authority, cors, .. } = filters;
    (forward.path, forward.authority) = (path, authority);
    let action = match redirect {
        Some(redirect) => Action::Redirect(redirect),
        None if !all_read => Action::Envoy,
        // The specification: no backend answers 500.
        None if forward.targets.is_empty() => Action::Direct(DirectResponse { status: 500, body: String::new() }),
        None => Action::Forward(Box::new(forward)),
    };
    let route = |(matching, origin)| {
        let route = Route {
            rule: Some(rule),
            name: name.clone(),
            matching,
            fault: None,
            action: action.clone(),
            request_headers: request.clone(),
            response_headers: response.clone(),
            cors: cors.clone(),
            origin,
        };
        (route, references.clone())
    };
    matches.into_iter().map(route).collect()
}

fn timeouts(node: &Node, forward: &mut Forward, notes: &mut Notes) {
    let mut fields = Fields::of(node, notes, "timeouts");
    for name in ["request", "backendRequest"] {
        let Some(node) = fields.take(name) else { continue };
        let timeout = notes.duration(node, name);
        if timeout.is_some_and(|timeout| !timeout.is_zero()) {
            notes.add(Reason::Timeout, node, name);
        }
        forward.timeout = forward.timeout.or(timeout);
    }
    fields.finish(notes);
}

/// Says whether all of them are of a kind that is read.
fn backends(
    document: &Document<'_>,
    node: Option<&Node>,
    forward: &mut Forward,
    references: &mut Vec<Reference>,
    notes: &mut Notes,
) -> bool {
    let mut all_read = true;
    for item in node.map(|node| notes.list(node, "backendRefs")).unwrap_or_default() {
        let mut fields = Fields::of(item, notes, "backendRefs");
        let weight = fields.take("weight").and_then(|node| notes.integer(node, "weight")).unwrap_or(1);
        let filters = fields.take("filters").map(|node| filters::read(document, node, notes)).unwrap_or_default();
        let reference = backend(document, &mut fields, notes);
        fields.finish(notes);
        if filters.redirect.is_some() || filters.path.is_some() || filters.authority.is_some() || filters.cors.is_some()
        {
            notes.add(Reason::EnvoyFilter, item, "a filter of one backend");
        }
        let Some(reference) = reference else {
            all_read = false;
            continue;
        };
        forward.targets.push(WeightedTarget {
            cluster: reference.cluster(),
            weight,
            request_headers: filters.request,
            response_headers: filters.response,
        });
        references.push(reference);
    }
    if let [only] = &mut forward.targets[..]
        && only.weight > 0
    {
        only.weight = 1;
    } else if forward.targets.iter().all(|target| target.weight == 0) {
        // No backend is left.
        forward.targets.clear();
    }
    all_read
}
