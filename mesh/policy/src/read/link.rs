//! From documents to listeners and clusters.

use std::collections::{BTreeMap, BTreeSet};

use super::Reading;
use super::set::{GatedRoute, Gateway, HostRoutes, Reference, Set};
use crate::form::{
    Action, EscapedSlashes, Forward, HeaderEdits, HostPort, HttpOptions, Listener, ListenerKind, Origin, Policy,
    RequestMatch, Route, Unmatched, VirtualHost, WeightedTarget, Workload,
};

mod clusters;
mod order;
mod reach;

/// As Istio configures Envoy if nobody says otherwise.
const OPTIONS: HttpOptions = HttpOptions {
    normalize_path: true,
    merge_slashes: false,
    escaped_slashes: EscapedSlashes::Keep,
    host_port: HostPort::Ignore,
};

/// Links what was gathered.
pub(super) fn link(mut set: Set) -> Reading {
    let mut listeners = Vec::new();
    let mut references: Vec<Reference> = Vec::new();
    let documents = set.routes.iter().flat_map(|document| &document.routes);
    references.extend(documents.flat_map(|gated| gated.targets.iter().cloned()));
    let (mesh, of_services) = mesh(&set);
    references.extend(of_services);
    listeners.extend(mesh);
    let declared = set.gateways.iter().map(|gateway| gateway.name.clone());
    let named = set.routes.iter().flat_map(|document| &document.routes).flat_map(|gated| &gated.gateways);
    let named = named.filter(|name| *name != "mesh").map(|name| name.split('#').next().unwrap_or(name).to_owned());
    for name in declared.chain(named).collect::<BTreeSet<_>>() {
        listeners.push(gateway(&set, &name));
    }
    listeners.append(&mut set.listeners);
    let mut clusters = clusters::clusters(&set, &references);
    clusters.append(&mut set.clusters);
    let mut policy =
        Policy { listeners, clusters, authorization: set.authorization, filters: set.filters, rules: set.rules };
    reach::reach(&mut policy, &set.gateways, &set.routes, &set.attached);
    Reading { policy, documents: set.documents, passed_over: set.passed_over, errors: set.errors }
}

/// Routes by domain, as they are gathered.
#[derive(Default)]
struct Hosts {
    /// In the order in which they came.
    hosts: Vec<Host>,
}

struct Host {
    domain: String,
    name: String,
    routes: Vec<Route>,
    origin: Origin,
}

impl Hosts {
    fn of(&mut self, domain: &str) -> Option<&mut Host> {
        self.hosts.iter_mut().find(|host| host.domain == domain)
    }

    fn add(&mut self, domain: &str, document: &HostRoutes, routes: &[Route]) {
        let (domain, name) = (domain.to_owned(), format!("{}/{}", document.namespace, document.name));
        self.hosts.push(Host { domain, name, routes: routes.to_vec(), origin: document.origin.clone() });
    }

    /// Neighbours with the same routes become one virtual host.
    fn finish(self) -> Vec<VirtualHost> {
        let mut out: Vec<VirtualHost> = Vec::new();
        for host in self.hosts {
            match out.iter_mut().find(|last| last.name == host.name && last.routes == host.routes) {
                Some(last) => last.domains.push(host.domain),
                None => out.push(VirtualHost {
                    name: host.name,
                    domains: vec![host.domain],
                    routes: host.routes,
                    request_headers: HeaderEdits::default(),
                    response_headers: HeaderEdits::default(),
                    origin: host.origin,
                }),
            }
        }
        out
    }
}

fn listener(name: String, kind: ListenerKind, hosts: Hosts, origin: Origin) -> Listener {
    Listener {
        name,
        kind,
        ports: Vec::new(),
        workload: None,
        options: OPTIONS,
        virtual_hosts: hosts.finish(),
        unmatched: Unmatched::NotFound,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
        origin,
    }
}

fn routes_at(document: &HostRoutes, wanted: impl Fn(&GatedRoute) -> bool) -> Vec<Route> {
    document.routes.iter().filter(|gated| wanted(gated)).map(|gated| gated.route.clone()).collect()
}

/// The listener of the processes of the node, and the services that only have default routes.
fn mesh(set: &Set) -> (Option<Listener>, Vec<Reference>) {
    let mut hosts = Hosts::default();
    let mut references = Vec::new();
    for document in &set.routes {
        let routes = routes_at(document, |gated| gated.gateways.iter().any(|gateway| gateway == "mesh"));
        for domain in document.hosts.iter().filter(|_| !routes.is_empty()) {
            match hosts.of(domain) {
                Some(host) if document.by_precedence => host.routes.extend(routes.iter().cloned()),
                // Istio takes one VirtualService for a host in the mesh.
                Some(_) => {}
                None => hosts.add(domain, document, &routes),
            }
        }
        sort_by_precedence(document, &mut hosts);
    }
    let described = set.services.iter().map(|service| (&service.host, &service.namespace, &service.origin));
    let of_traffic = set.traffic.iter().map(|traffic| (&traffic.host, &traffic.host, &traffic.origin));
    for (host, name, origin) in described.chain(of_traffic) {
        if hosts.of(host).is_some() || host.is_empty() || (host.contains('*') && !host.starts_with("*.")) {
            continue;
        }
        if host.starts_with("*.") && !set.services.iter().any(|service| service.host == *host) {
            continue;
        }
        let reference = Reference { host: host.clone(), port: None, subset: None };
        let routes = vec![default_route(&reference, origin.clone())];
        hosts.hosts.push(Host { domain: host.clone(), name: name.clone(), routes, origin: origin.clone() });
        references.push(reference);
    }
    short_names(&mut hosts);
    let origin = hosts.hosts.first().map(|host| host.origin.clone());
    let listener = origin.map(|origin| Listener {
        unmatched: Unmatched::OriginalDestination,
        ..listener("mesh".into(), ListenerKind::Mesh, hosts, origin)
    });
    (listener, references)
}

fn default_route(reference: &Reference, origin: Origin) -> Route {
    let target = WeightedTarget {
        cluster: reference.cluster(),
        weight: 1,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
    };
    Route {
        rule: None,
        name: "default".into(),
        matching: RequestMatch::default(),
        fault: None,
        action: Action::Forward(Box::new(Forward { targets: vec![target], ..Forward::default() })),
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
        cors: None,
        origin,
    }
}

/// `reviews`, `reviews.default` and `reviews.default.svc` lead where the full name does. Who comes first gets a name
/// that several services might have.
fn short_names(hosts: &mut Hosts) {
    let mut taken: BTreeSet<String> = hosts.hosts.iter().map(|host| host.domain.clone()).collect();
    let mut more = Vec::new();
    for host in &hosts.hosts {
        let Some(short) = host.domain.strip_suffix(".svc.cluster.local") else { continue };
        let mut names = vec![format!("{short}.svc"), short.to_owned()];
        names.extend(short.split_once('.').map(|(name, _)| name.to_owned()));
        for domain in names {
            if !domain.contains('*') && taken.insert(domain.clone()) {
                let (name, routes) = (host.name.clone(), host.routes.clone());
                more.push(Host { domain, name, routes, origin: host.origin.clone() });
            }
        }
    }
    hosts.hosts.extend(more);
}

fn sort_by_precedence(document: &HostRoutes, hosts: &mut Hosts) {
    if document.by_precedence {
        for domain in &document.hosts {
            if let Some(host) = hosts.of(domain) {
                order::sort(&mut host.routes);
            }
        }
    }
}

/// The clear-text listener of a gateway, declared or only named.
fn gateway(set: &Set, name: &str) -> Listener {
    let declared = set.gateways.iter().find(|gateway| gateway.name == name);
    let mut hosts = Hosts::default();
    for document in &set.routes {
        let mut by_domain: BTreeMap<String, Vec<Route>> = BTreeMap::new();
        for gated in &document.routes {
            for host in &document.hosts {
                for domain in domains_at(declared, name, gated, host) {
                    by_domain.entry(domain).or_default().push(gated.route.clone());
                }
            }
        }
        for (domain, routes) in by_domain {
            match hosts.of(&domain) {
                Some(host) => host.routes.extend(routes),
                None => hosts.add(&domain, document, &routes),
            }
            if let Some(host) = hosts.of(&domain).filter(|_| document.by_precedence) {
                order::sort(&mut host.routes);
            }
        }
    }
    let origin =
        declared.map(|gateway| gateway.origin.clone()).or_else(|| hosts.hosts.first().map(|h| h.origin.clone()));
    let origin = origin.unwrap_or_else(|| Origin::start_of(name));
    let mut listener = listener(format!("gateway {name}"), ListenerKind::Gateway, hosts, origin);
    if let Some(gateway) = declared {
        let ports: BTreeSet<u16> =
            gateway.servers.iter().filter(|server| server.clear).map(|server| server.port).collect();
        listener.ports = ports.into_iter().collect();
        listener.workload = Some(Workload { namespace: gateway.namespace.clone(), labels: gateway.labels.clone() });
    }
    listener
}

/// The domains under which a host of a route is reached at a gateway: what host and listener have in common.
fn domains_at(declared: Option<&Gateway>, name: &str, gated: &GatedRoute, host: &str) -> BTreeSet<String> {
    let mut domains = BTreeSet::new();
    for gateway in &gated.gateways {
        let (gateway, section) = gateway.split_once('#').map_or((gateway.as_str(), None), |(g, s)| (g, Some(s)));
        if gateway != name {
            continue;
        }
        let Some(declared) = declared else {
            domains.insert(host.to_owned());
            continue;
        };
        let servers = declared.servers.iter().filter(|server| server.clear);
        for server in servers.filter(|server| section.is_none_or(|section| section == server.name)) {
            domains.extend(server.hosts.iter().filter_map(|pattern| common(pattern, host)));
        }
    }
    domains
}

/// The narrower of two domains, if one lies in the other.
fn common(a: &str, b: &str) -> Option<String> {
    let within = |wide: &str, narrow: &str| {
        wide == "*" || wide == narrow || wide.strip_prefix('*').is_some_and(|suffix| narrow.ends_with(suffix))
    };
    if within(a, b) { Some(b.to_owned()) } else { within(b, a).then(|| a.to_owned()) }
}
