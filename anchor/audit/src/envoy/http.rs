//! The HTTP connection manager: its filters and routes.

use std::sync::Arc;

use super::cluster::{Cluster, Clusters};
use super::extension::{self, Category};
use super::node::Node;
use crate::address::Address;
use crate::findings::{Collector, Hit, RouteParts};

/// What is found on one manager.
pub(super) struct Manager<'a> {
    config: &'a Node,
    file: &'a Arc<str>,
    /// For all of its routes.
    hits: Vec<Hit>,
    /// Of HTTP filters, with their name, as a route may switch them off.
    filters: Vec<(&'a str, Hit)>,
}

impl<'a> Manager<'a> {
    pub(super) fn of(filter: &'a Node, file: &'a Arc<str>) -> Self {
        let config = filter.get("typed_config");
        let mut manager = Self { config, file, hits: Vec::new(), filters: Vec::new() };
        let codec = config.get("codec_type");
        if matches!(codec.text(), "HTTP2" | "HTTP3") {
            manager.hits.push(Hit::new("UDE113", &codec.at(file), format!("codec_type: {}", codec.text())));
        }
        let upgrades = config.get("upgrade_configs").items().iter().flat_map(|u| u.get("filters").items());
        for http_filter in config.get("http_filters").items().iter().chain(upgrades) {
            manager.filter(http_filter);
        }
        manager
    }

    fn filter(&mut self, filter: &'a Node) {
        let name = filter.get("name").text();
        if filter.get("disabled").is_true() && !self.is_configured_by_routes(name) {
            return;
        }
        let config = filter.get("typed_config");
        let hit = match extension::name_of(filter, Category::Http) {
            "ext_authz" => {
                let with_body = config.get("with_request_body");
                let here =
                    with_body.exists().then(|| Hit::new("UDE104", &with_body.at(self.file), "with_request_body"));
                here.or_else(|| self.body_for_authorisation(name))
            }
            "ext_proc" if only_headers(config) && !self.is_configured_by_routes(name) => None,
            _ => extension::hit(filter, Category::Http, self.file),
        };
        self.filters.extend(hit.map(|hit| (name, hit)));
    }

    /// Whether a route or virtual host has settings for the filter, other than that it is off.
    fn is_configured_by_routes(&self, name: &str) -> bool {
        let everything = self.config.get("route_config").everything();
        everything.iter().any(|node| {
            let settings = node.get("typed_per_filter_config").get(name);
            settings.exists() && !is_off(settings)
        })
    }

    /// ext_authz can be told per route to send the body.
    fn body_for_authorisation(&self, name: &str) -> Option<Hit> {
        let everything = self.config.get("route_config").everything();
        everything.iter().find_map(|node| {
            let body = node.get("typed_per_filter_config").get(name).path(&["check_settings", "with_request_body"]);
            body.exists().then(|| Hit::new("UDE104", &body.at(self.file), "with_request_body"))
        })
    }

    pub(super) fn routes(
        &self,
        listener: &str,
        addresses: &[Address],
        around: &[Hit],
        clusters: &Clusters<'_>,
        collector: &mut Collector,
    ) {
        let config = self.config.get("route_config");
        let mut any = false;
        for host in config.get("virtual_hosts").items() {
            for route in host.get("routes").items().iter().filter(|r| r.get("route").exists()) {
                any = true;
                let mut hits = around.to_vec();
                hits.extend(self.hits.iter().cloned());
                hits.extend(self.filters_on(&[route, host, config]));
                hits.extend(self.route_hits(route.get("route"), host, config));
                let cluster = target(route.get("route"), clusters);
                hits.extend(cluster.hits);
                let scope = format!("{listener} {} {}", host.get("name").text(), shown_match(route.get("match")));
                let parts = RouteParts {
                    scope: scope.trim_end().to_owned(),
                    at: route.at(self.file),
                    listeners: addresses.to_vec(),
                    upstreams: cluster.upstreams,
                };
                collector.route(parts, hits);
            }
        }
        if !any {
            // No route of its own: what there is comes from elsewhere, or Envoy answers by itself.
            let mut hits = around.to_vec();
            hits.extend(self.hits.iter().cloned());
            hits.extend(self.filters_on(&[]));
            if !hits.is_empty() {
                let (listeners, upstreams) = (addresses.to_vec(), Vec::new());
                let parts =
                    RouteParts { scope: listener.to_owned(), at: self.config.at(self.file), listeners, upstreams };
                collector.route(parts, hits);
            }
        }
    }

    /// The filters in effect; the innermost level that has settings for a filter decides.
    fn filters_on(&self, levels: &[&Node]) -> Vec<Hit> {
        let off = |name: &str| {
            let settings = levels.iter().map(|l| l.get("typed_per_filter_config").get(name)).find(|s| s.exists());
            settings.is_some_and(is_off)
        };
        self.filters.iter().filter(|(name, _)| !off(name)).map(|(_, hit)| hit.clone()).collect()
    }

    /// Policies that send the body of a request more than once.
    fn route_hits(&self, action: &Node, host: &Node, config: &Node) -> Vec<Hit> {
        let mut hits = Vec::new();
        let mut found = |code, node: &Node, what: &str| hits.push(Hit::new(code, &node.at(self.file), what));
        let levels = [action, host, config];
        let first = |name: &str| levels.into_iter().map(|l| l.get(name)).find(|n| n.exists());
        if let Some(mirror) = first("request_mirror_policies").filter(|m| !m.items().is_empty()) {
            found("UDE108", mirror, "request_mirror_policies");
        }
        if action.get("request_mirror_policy").exists() {
            found("UDE108", action.get("request_mirror_policy"), "request_mirror_policy");
        }
        if let Some(policy) = first("retry_policy").filter(|p| !p.get("retry_on").text().is_empty()) {
            found("UDE109", policy, "retry_policy");
        }
        if let Some(policy) = first("retry_policy_typed_config") {
            found("UDE109", policy, "retry_policy_typed_config");
        }
        if let Some(policy) = first("hedge_policy") {
            found("UDE109", policy, "hedge_policy");
        }
        let old = action.get("internal_redirect_action").text() == "HANDLE_INTERNAL_REDIRECT";
        if action.get("internal_redirect_policy").exists() || old {
            found("UDE110", action, "internal_redirect_policy");
        }
        hits
    }
}

/// Where a route leads.
fn target(action: &Node, clusters: &Clusters<'_>) -> Cluster {
    let mut names = vec![action.get("cluster").text()];
    names.extend(action.path(&["weighted_clusters", "clusters"]).items().iter().map(|c| c.get("name").text()));
    names.retain(|name| !name.is_empty());
    if names.is_empty() {
        return clusters.any();
    }
    let mut all = Cluster { upstreams: Vec::new(), hits: Vec::new() };
    for name in names {
        let cluster = clusters.named(name);
        all.upstreams.extend(cluster.upstreams);
        all.hits.extend(cluster.hits);
    }
    all
}

fn is_off(settings: &Node) -> bool {
    settings.get("disabled").is_true()
}

/// Whether an external processor gets headers only, whatever it asks for.
fn only_headers(config: &Node) -> bool {
    let mode = config.get("processing_mode");
    let no_body = |name| matches!(mode.get(name).text(), "" | "NONE");
    no_body("request_body_mode") && no_body("response_body_mode") && !config.get("allow_mode_override").is_true()
}

fn shown_match(matcher: &Node) -> String {
    let kinds = ["prefix", "path", "path_separated_prefix"];
    let found = kinds.iter().map(|k| matcher.get(k).text()).find(|t| !t.is_empty());
    let regex = matcher.path(&["safe_regex", "regex"]).text();
    found.unwrap_or(regex).to_owned()
}
