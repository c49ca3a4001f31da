//! Rules that are fine by themselves, but whose requests go to Envoy because of another rule.

use std::collections::BTreeSet;

use crate::form::{Action, Cluster, Filter, Finding, Listener, Placement, Policy, Reason, RuleId, Target};
use crate::read::set::{Attached, Gateway, HostRoutes};

/// Adds findings to such rules. They point at the place of the other rule.
pub(super) fn reach(policy: &mut Policy, gateways: &[Gateway], documents: &[HostRoutes], attached: &[Attached]) {
    let mut found: Vec<(RuleId, Finding)> = Vec::new();
    for listener in &policy.listeners {
        let of_listener: Vec<_> = filters(policy, |target| target.selects_listener(listener)).collect();
        for route in listener.virtual_hosts.iter().flat_map(|host| &host.routes) {
            let Some(rule) = route.rule else { continue };
            found.extend(of_listener.iter().map(|finding| (rule, finding.clone())));
            for cluster in clusters(policy, &route.action) {
                found.extend(of_cluster(policy, cluster).map(|finding| (rule, finding)));
            }
        }
        found.extend(authorization(policy, listener, &of_listener));
    }
    for authorization in &policy.authorization {
        let others = filters(policy, |target| *target == authorization.target);
        let others: Vec<_> = others.collect();
        for rule in &authorization.rules {
            found.extend(others.iter().map(|finding| (rule.rule, finding.clone())));
        }
    }
    found.extend(behind_tls(gateways, documents));
    found.extend(under_attached(policy, documents, attached));
    for (rule, finding) in found {
        let rule = &mut policy.rules[rule.0 as usize];
        if !rule.inherited.contains(&finding) && !rule.findings.contains(&finding) {
            rule.inherited.push(finding);
        }
    }
}

/// What filters for some targets say.
fn filters<'a>(policy: &'a Policy, wanted: impl Fn(&Target) -> bool + 'a) -> impl Iterator<Item = Finding> + 'a {
    let matching = policy.filters.iter().filter(move |filter: &&Filter| wanted(&filter.target));
    matching.filter_map(|filter| policy.rule(filter.rule).findings.first().cloned())
}

fn authorization(policy: &Policy, listener: &Listener, filters: &[Finding]) -> Vec<(RuleId, Finding)> {
    let rules = policy.authorization_of_listener(listener).flat_map(|authorization| &authorization.rules);
    rules.flat_map(|rule| filters.iter().map(|finding| (rule.rule, finding.clone()))).collect()
}

fn clusters<'a>(policy: &'a Policy, action: &'a Action) -> Vec<&'a Cluster> {
    let Action::Forward(forward) = action else { return Vec::new() };
    forward.targets.iter().filter_map(|target| policy.cluster(&target.cluster)).collect()
}

/// What the rules of a cluster and the filters of its workload say.
fn of_cluster<'a>(policy: &'a Policy, cluster: &'a Cluster) -> impl Iterator<Item = Finding> + 'a {
    let rules = cluster.rules.iter().map(|rule| policy.rule(*rule));
    let rules =
        rules.filter(|rule| rule.own_placement() == Placement::Envoy).filter_map(|rule| rule.findings.first().cloned());
    let workload = cluster.workload.as_ref();
    let filters = filters(policy, move |target| workload.is_some_and(|workload| target.selects_workload(workload)));
    rules.chain(filters).map(|finding| Finding {
        reason: Reason::Cluster,
        what: format!("{} ({})", cluster.name, finding.reason),
        origin: finding.origin,
    })
}

/// Routes of gateways that are declared, and have no clear-text listener for them.
fn behind_tls(gateways: &[Gateway], documents: &[HostRoutes]) -> Vec<(RuleId, Finding)> {
    let mut found = Vec::new();
    for gated in documents.iter().flat_map(|document| &document.routes) {
        let Some(rule) = gated.route.rule else { continue };
        let clear = |name: &String| {
            let (gateway, section) = name.split_once('#').map_or((name.as_str(), None), |(g, s)| (g, Some(s)));
            let declared = gateways.iter().find(|declared| declared.name == gateway);
            let is_clear = |declared: &Gateway| {
                let mut servers = declared.servers.iter().filter(|s| section.is_none_or(|section| section == s.name));
                servers.any(|server| server.clear)
            };
            declared.is_none_or(is_clear)
        };
        if gated.gateways.is_empty() || gated.gateways.iter().any(clear) {
            continue;
        }
        let names: BTreeSet<_> = gated.gateways.iter().cloned().collect();
        let what = names.into_iter().collect::<Vec<_>>().join(", ");
        found.push((rule, Finding { reason: Reason::TlsDownstream, origin: gated.route.origin.clone(), what }));
    }
    found
}

/// Routes with a policy on them, or on their gateway, that is not read.
fn under_attached(policy: &Policy, documents: &[HostRoutes], attached: &[Attached]) -> Vec<(RuleId, Finding)> {
    let mut found = Vec::new();
    for policy_on in attached {
        let Some(finding) = policy.rule(policy_on.rule).findings.first() else { continue };
        let is_meant = |name: &str| match &policy_on.name {
            Some(wanted) => wanted == name,
            None => name.starts_with(&format!("{}/", policy_on.namespace)),
        };
        for document in documents {
            let of_route =
                policy_on.kind.ends_with("Route") && is_meant(&format!("{}/{}", document.namespace, document.name));
            for gated in &document.routes {
                let mut gateways = gated.gateways.iter().map(|name| name.split('#').next().unwrap_or(name));
                let of_gateway = policy_on.kind == "Gateway" && gateways.any(is_meant);
                if let (true, Some(rule)) = (of_route || of_gateway, gated.route.rule) {
                    found.push((rule, finding.clone()));
                }
            }
        }
    }
    found
}
