//! Clusters: where requests go, and what happens on that hop.

use std::collections::HashMap;
use std::sync::Arc;

use super::extension::{self, Category};
use super::node::Node;
use crate::address::Address;
use crate::findings::Hit;

/// A cluster as routes see it.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) upstreams: Vec<Address>,
    pub(super) hits: Vec<Hit>,
}

/// All clusters of a bootstrap by name.
pub(super) struct Clusters<'a> {
    by_name: HashMap<&'a str, Cluster>,
}

impl<'a> Clusters<'a> {
    pub(super) fn of(clusters: &'a [Node], file: &Arc<str>) -> Self {
        let by_name = clusters.iter().map(|c| (c.get("name").text(), Cluster::of(c, file))).collect();
        Self { by_name }
    }

    /// The cluster of this name; one that is not in the file can be anywhere.
    pub(super) fn named(&self, name: &str) -> Cluster {
        let unknown = || Cluster { upstreams: vec![Address::Every], hits: Vec::new() };
        self.by_name.get(name).cloned().unwrap_or_else(unknown)
    }

    /// All of them together, for routes that compute the name.
    pub(super) fn any(&self) -> Cluster {
        let hits = self.by_name.values().flat_map(|c| c.hits.iter().cloned()).collect();
        Cluster { upstreams: vec![Address::Every], hits }
    }
}

impl Cluster {
    fn of(cluster: &Node, file: &Arc<str>) -> Self {
        let mut hits = transport_hits(cluster, "UDE112", file);
        for matched in cluster.get("transport_socket_matches").items() {
            hits.extend(transport_hits(matched, "UDE112", file));
        }
        hits.extend(protocol_hits(cluster, file));
        for check in cluster.get("health_checks").items() {
            let receive = [check.path(&["http_health_check", "receive"]), check.path(&["tcp_health_check", "receive"])];
            let reads = receive.into_iter().find(|r| !r.items().is_empty() || !r.members().is_empty());
            hits.extend(reads.map(|r| Hit::new("UDE116", &r.at(file), "health_checks: receive")));
        }
        for filter in cluster.get("filters").items() {
            hits.extend(extension::hit(filter, Category::Network, file));
        }
        Self { upstreams: upstreams(cluster), hits }
    }
}

/// Where a cluster's endpoints are. Whatever is found at run time can be anywhere.
fn upstreams(cluster: &Node) -> Vec<Address> {
    let kind = cluster.get("type").text();
    if matches!(kind, "EDS" | "ORIGINAL_DST") || cluster.get("cluster_type").exists() {
        return vec![Address::Every];
    }
    let mut found = Vec::new();
    for group in cluster.path(&["load_assignment", "endpoints"]).items() {
        for endpoint in group.get("lb_endpoints").items() {
            let endpoint = endpoint.get("endpoint");
            found.extend(addresses(endpoint.get("address")));
            for more in endpoint.get("additional_addresses").items() {
                found.extend(addresses(more.get("address")));
            }
        }
    }
    if found.is_empty() { vec![Address::Every] } else { found }
}

/// What an `Address` message can mean.
pub(super) fn addresses(address: &Node) -> Vec<Address> {
    let socket = address.get("socket_address");
    if socket.exists() {
        let port = socket.get("port_value").text().parse::<u16>();
        return port.map_or_else(|_| vec![Address::Every], |port| Address::of_host(socket.get("address").text(), port));
    }
    match address.path(&["pipe", "path"]).text() {
        "" => vec![Address::Every],
        path => vec![Address::unix(path)],
    }
}

/// TLS and other transport sockets; `tls`: the code for it on this side.
pub(super) fn transport_hits(holder: &Node, tls: &'static str, file: &Arc<str>) -> Vec<Hit> {
    let mut hits = Vec::new();
    let mut socket = holder.get("transport_socket");
    // v2 and the first v3 had the context without a socket around it.
    let bare = holder.get("tls_context");
    if bare.exists() {
        hits.push(Hit::new(tls, &bare.at(file), "tls_context"));
    }
    while socket.exists() {
        let name = extension::name_of(socket, Category::Transport);
        let shown = extension::display(socket, name);
        match name {
            "tls" | "starttls" | "alts" | "s2a" => hits.push(Hit::new(tls, &socket.at(file), shown)),
            "quic" => {
                let code = if tls == "UDE111" { "UDE113" } else { "UDE114" };
                hits.push(Hit::new(code, &socket.at(file), shown));
            }
            _ => hits.extend(extension::hit(socket, Category::Transport, file)),
        }
        // Sockets that wrap another one.
        socket = socket.path(&["typed_config", "transport_socket"]);
    }
    hits
}

/// HTTP/2 and HTTP/3 towards the upstream server, and filters on that hop.
fn protocol_hits(cluster: &Node, file: &Arc<str>) -> Vec<Hit> {
    let mut hits = Vec::new();
    let mut framed = |node: &Node, what: &str| {
        if node.exists() {
            hits.push(Hit::new("UDE114", &node.at(file), what));
        }
    };
    framed(cluster.get("http2_protocol_options"), "http2_protocol_options");
    for (_, options) in cluster.get("typed_extension_protocol_options").members() {
        for way in ["explicit_http_config", "use_downstream_protocol_config", "auto_config"] {
            let way = options.get(way);
            framed(way.get("http3_protocol_options"), "http3_protocol_options");
            framed(way.get("http2_protocol_options"), "http2_protocol_options");
        }
    }
    for (_, options) in cluster.get("typed_extension_protocol_options").members() {
        for filter in options.get("http_filters").items() {
            hits.extend(extension::hit(filter, Category::Http, file));
        }
    }
    hits
}
