//! Envoy: from a static bootstrap to a report.
//!
//! `node` reads, `extension` says which extension touches bodies, `cluster` describes the upstream side, `http` the
//! HTTP connection manager with its routes, and this file walks over the listeners.

mod cluster;
mod extension;
mod http;
mod node;

use std::sync::Arc;

use self::cluster::Clusters;
use self::extension::Category;
use self::node::Node;
use crate::Options;
use crate::address::Address;
use crate::error::AuditError;
use crate::findings::{Collector, Hit, Reach, RouteParts};
use crate::kind::ProxyKind;
use crate::report::Report;
use crate::sources::File;

/// Checks a bootstrap in YAML or JSON.
pub(crate) fn audit(file: &File, options: &Options) -> Result<Report, AuditError> {
    let name: Arc<str> = file.path.to_string_lossy().into();
    let root = Node::parse(&name, &file.text)?;
    let mut collector = Collector::new(options);
    let resources = root.get("static_resources");
    let clusters = Clusters::of(resources.get("clusters").items(), &name);
    if options.inline.is_some() {
        // Envoy merges it into the file; what comes out is not what stands here.
        let hit = Hit::new("UDE001", &root.at(&"--config-yaml".into()), "--config-yaml");
        collector.beside_routes(&hit.reaching(Reach::Everything), "the whole program", &[], &[]);
    }
    for hit in from_elsewhere(&root, &name) {
        collector.beside_routes(&hit.reaching(Reach::Everything), "the whole program", &[], &[]);
    }
    for (hit, cluster) in asked_by_envoy(&root, &name) {
        collector.beside_routes(&hit, &format!("cluster {cluster}"), &[], &clusters.named(cluster).upstreams);
    }
    for listener in resources.get("listeners").items() {
        Listener::of(listener, &name).routes(listener, &clusters, &mut collector);
    }
    Ok(collector.finish(ProxyKind::Envoy, vec![name.to_string()]))
}

/// What only a management server, or a file read later, says.
fn from_elsewhere(root: &Node, file: &Arc<str>) -> Vec<Hit> {
    let mut hits = Vec::new();
    let dynamic = root.get("dynamic_resources");
    let sources = ["lds_config", "cds_config", "ads_config", "lds_resources_locator", "cds_resources_locator"];
    for name in sources {
        let source = dynamic.get(name);
        if source.exists() {
            hits.push(Hit::new("UDE001", &source.at(file), name));
        }
    }
    for node in root.get("static_resources").everything() {
        for name in ["rds", "scoped_rds", "vhds", "config_discovery"] {
            let source = node.get(name);
            if !source.members().is_empty() {
                hits.push(Hit::new("UDE001", &source.at(file), name));
            }
        }
    }
    for extension in root.get("bootstrap_extensions").items() {
        let name = extension.get("name").text();
        if !name.contains("internal_listener") {
            hits.push(Hit::new("UDE002", &extension.at(file), name));
        }
    }
    hits
}

/// Clusters that Envoy itself sends requests to: wherever an `HttpUri` stands.
fn asked_by_envoy<'a>(root: &'a Node, file: &Arc<str>) -> Vec<(Hit, &'a str)> {
    let is_uri = |node: &&&Node| !node.get("uri").text().is_empty() && !node.get("cluster").text().is_empty();
    let everything = root.everything();
    everything
        .iter()
        .filter(is_uri)
        .map(|node| {
            let cluster = node.get("cluster");
            (Hit::new("UDE117", &cluster.at(file), format!("cluster: {}", cluster.text())), cluster.text())
        })
        .collect()
}

struct Listener {
    name: String,
    file: Arc<str>,
    addresses: Vec<Address>,
    hits: Vec<Hit>,
}

impl Listener {
    fn of(listener: &Node, file: &Arc<str>) -> Self {
        let mut addresses = cluster::addresses(listener.get("address"));
        for more in listener.get("additional_addresses").items() {
            addresses.extend(cluster::addresses(more.get("address")));
        }
        let mut hits = Vec::new();
        for filter in listener.get("listener_filters").items() {
            hits.extend(extension::hit(filter, Category::Listener, file));
        }
        let quic = listener.path(&["udp_listener_config", "quic_options"]);
        if quic.exists() {
            hits.push(Hit::new("UDE113", &quic.at(file), "quic_options"));
        }
        let name = match listener.get("name").text() {
            "" => addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            name => name.to_owned(),
        };
        Self { name: format!("listener {name}"), file: file.clone(), addresses, hits }
    }

    fn routes(&self, listener: &Node, clusters: &Clusters<'_>, collector: &mut Collector) {
        let default = listener.get("default_filter_chain");
        let chains = listener.get("filter_chains").items().iter().chain(default.exists().then_some(default));
        for chain in chains {
            let mut hits = self.hits.clone();
            hits.extend(cluster::transport_hits(chain, "UDE111", &self.file));
            if chain.get("use_proxy_proto").is_true() {
                hits.push(Hit::new("UDE115", &chain.get("use_proxy_proto").at(&self.file), "use_proxy_proto"));
            }
            for filter in chain.get("filters").items() {
                hits.extend(extension::hit(filter, Category::Network, &self.file));
            }
            for filter in chain.get("filters").items() {
                match extension::name_of(filter, Category::Network) {
                    "http_connection_manager" => {
                        let manager = http::Manager::of(filter, &self.file);
                        manager.routes(&self.name, &self.addresses, &hits, clusters, collector);
                    }
                    _ => self.tcp_route(filter, &hits, clusters, collector),
                }
            }
        }
    }

    /// A filter that forwards bytes. The engine may do so as well, unless something is put around them.
    fn tcp_route(&self, filter: &Node, hits: &[Hit], clusters: &Clusters<'_>, collector: &mut Collector) {
        let config = filter.get("typed_config");
        let mut names: Vec<_> = vec![config.get("cluster").text()];
        names.extend(config.path(&["weighted_clusters", "clusters"]).items().iter().map(|c| c.get("name").text()));
        names.retain(|name| !name.is_empty());
        let is_last_word = extension::name_of(filter, Category::Network) == "tcp_proxy"
            || hits.iter().any(|h| h.code == "UDE301" && h.at == filter.at(&self.file));
        if names.is_empty() && !is_last_word {
            return;
        }
        let mut hits = hits.to_vec();
        let tunnel = config.get("tunneling_config");
        if tunnel.exists() {
            hits.push(Hit::new("UDE118", &tunnel.at(&self.file), "tunneling_config"));
        }
        let mut upstreams = Vec::new();
        for name in names {
            let cluster = clusters.named(name);
            upstreams.extend(cluster.upstreams);
            hits.extend(cluster.hits);
        }
        let scope = format!("{} {}", self.name, extension::name_of(filter, Category::Network));
        let parts = RouteParts { scope, at: filter.at(&self.file), listeners: self.addresses.clone(), upstreams };
        collector.route(parts, hits);
    }
}
