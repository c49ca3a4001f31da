//! Clusters: what routes name, with what destination rules and services say of it.

use std::collections::BTreeMap;

use crate::form::{Cluster, Discovery, LoadBalancing, Origin, Subset, UpstreamProtocol, Workload};
use crate::read::set::{Reference, Service, Set, Traffic, TrafficSettings};

/// One cluster for each name.
pub(super) fn clusters(set: &Set, references: &[Reference]) -> Vec<Cluster> {
    let mut by_name: BTreeMap<String, Cluster> = BTreeMap::new();
    for reference in references {
        by_name.entry(reference.cluster()).or_insert_with(|| cluster(set, reference));
    }
    by_name.into_values().collect()
}

fn cluster(set: &Set, reference: &Reference) -> Cluster {
    let service = service(set, &reference.host);
    let traffic = traffic(set, &reference.host);
    let top = traffic.iter().find(|t| t.subset.is_none() && t.port.is_none());
    let name = reference.subset.as_deref();
    let of_subset: Vec<_> =
        traffic.iter().filter(|t| name.is_some() && t.subset.as_ref().map(|s| s.0.as_str()) == name).collect();
    let whole = of_subset.iter().find(|t| t.port.is_none());
    let mut settings = top.map(|t| t.settings.clone()).unwrap_or_default();
    let mut rules: Vec<_> = top.iter().map(|t| t.rule).collect();
    if let Some(traffic) = whole {
        settings = over(settings, traffic.settings.clone());
        rules.push(traffic.rule);
    }
    let ports = |t: &&&Traffic| t.port.is_some() && (reference.port.is_none() || t.port == reference.port);
    let of_port: Vec<_> = of_subset.iter().copied().filter(|t| ports(t)).collect();
    let general: Vec<_> = traffic.iter().filter(|t| t.subset.is_none() && ports(t)).collect();
    for traffic in if of_port.is_empty() { general } else { of_port } {
        // What a port says replaces all that the host says.
        settings = traffic.settings.clone();
        rules.push(traffic.rule);
    }
    let entry = service.and_then(|service| service.entry.as_ref());
    rules.extend(entry.map(|entry| entry.rule));
    let labels = whole.and_then(|t| t.subset.as_ref()).map(|(_, labels)| labels.clone());
    let endpoints = entry.map(|entry| entry.endpoints.clone()).unwrap_or_default();
    let discovery = match entry {
        Some(entry) if entry.dns => Discovery::Dns,
        Some(_) if !endpoints.is_empty() => Discovery::Static,
        Some(_) => Discovery::OriginalDestination,
        None => Discovery::Services,
    };
    Cluster {
        name: reference.cluster(),
        host: reference.host.clone(),
        port: reference.port,
        subset: reference.subset.clone().map(|name| Subset { name, labels: labels.clone() }),
        discovery,
        endpoints,
        balancing: settings.balancing.unwrap_or(LoadBalancing::LeastRequest { choices: 2 }),
        limits: settings.limits,
        outlier: settings.outlier,
        protocol: settings.protocol.or(entry.map(|entry| entry.protocol)).unwrap_or(UpstreamProtocol::Http1),
        workload: service.and_then(|service| workload(service, labels.unwrap_or_default())),
        rules,
        origin: whole
            .or(top.as_ref().map(|t| *t).as_ref())
            .map_or_else(|| fallback(service, reference), |t| t.origin.clone()),
    }
}

fn fallback(service: Option<&Service>, reference: &Reference) -> Origin {
    service.map_or_else(|| Origin::start_of(&reference.host), |service| service.origin.clone())
}

/// Who answers: the labels that the service selects by, and those of the subset.
fn workload(service: &Service, subset: BTreeMap<String, String>) -> Option<Workload> {
    let mut labels = service.selector.clone()?;
    labels.extend(subset);
    Some(Workload { namespace: service.namespace.clone(), labels })
}

fn service<'a>(set: &'a Set, host: &str) -> Option<&'a Service> {
    let exact = set.services.iter().find(|service| service.host == host);
    exact.or_else(|| {
        set.services.iter().filter(|service| is_wildcard_of(&service.host, host)).max_by_key(|s| s.host.len())
    })
}

/// What destination rules say: those for the host itself, else those for the longest wildcard.
fn traffic<'a>(set: &'a Set, host: &str) -> Vec<&'a Traffic> {
    let exact: Vec<_> = set.traffic.iter().filter(|traffic| traffic.host == host).collect();
    if !exact.is_empty() {
        return exact;
    }
    let wild = set.traffic.iter().filter(|traffic| is_wildcard_of(&traffic.host, host));
    let Some(longest) = wild.clone().map(|traffic| traffic.host.len()).max() else { return Vec::new() };
    wild.filter(|traffic| traffic.host.len() == longest).collect()
}

fn is_wildcard_of(pattern: &str, host: &str) -> bool {
    pattern.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix) && host.len() > suffix.len())
}

/// What the second says is taken; where it says nothing, the first.
fn over(first: TrafficSettings, second: TrafficSettings) -> TrafficSettings {
    TrafficSettings {
        balancing: second.balancing.or(first.balancing),
        limits: second.limits.or(first.limits),
        outlier: second.outlier.or(first.outlier),
        protocol: second.protocol.or(first.protocol),
    }
}
