//! DestinationRule: the traffic policy, each subset and each port of them is one rule.

use super::full_host;
use crate::form::{LoadBalancing, OutlierDetection, PoolLimits, Reason, RuleKind, UpstreamProtocol};
use crate::read::fields::{Fields, Notes};
use crate::read::set::{Document, Set, Traffic, TrafficSettings};
use crate::read::yaml::Node;

pub(in crate::read) fn destination_rule(set: &mut Set, document: &Document<'_>) {
    let mut notes = document.notes();
    let mut spec = document.spec(&mut notes);
    spec.pass_over(&["exportTo"]);
    let host = spec.take("host").and_then(|node| notes.text(node, "host"));
    if host.is_none() {
        notes.missing(document.node.get("spec").unwrap_or(document.node), "host");
    }
    spec.envoy("workloadSelector", Reason::MatchSourceLabels, &mut notes);
    let (policy, subsets) = (spec.take("trafficPolicy"), spec.take("subsets"));
    let subsets = subsets.map(|node| notes.list(node, "subsets")).unwrap_or_default();
    spec.finish(&mut notes);
    let host = full_host(&host.unwrap_or_default(), &document.namespace);
    let shared = notes.findings.clone();
    let mut adder = Adder { set, document, host };
    if policy.is_some() || subsets.is_empty() {
        let title = format!("{} trafficPolicy", document.title());
        adder.policy(&title, policy, None, policy.unwrap_or(document.node), notes);
    }
    for (index, node) in subsets.iter().enumerate() {
        let mut notes = document.notes_with(&shared);
        let mut fields = Fields::of(node, &mut notes, "subsets");
        let name = fields.take("name").and_then(|node| notes.text(node, "name"));
        if name.is_none() {
            notes.missing(node, "name");
        }
        let labels = fields.take("labels").map(|node| notes.labels(node, "labels")).unwrap_or_default();
        let policy = fields.take("trafficPolicy");
        fields.finish(&mut notes);
        let title = format!("{} subsets[{index}]", document.title());
        adder.policy(&title, policy, Some((name.unwrap_or_default(), labels)), node, notes);
    }
}

type Labels = std::collections::BTreeMap<String, String>;

struct Adder<'a, 'b> {
    set: &'a mut Set,
    document: &'a Document<'b>,
    host: String,
}

impl Adder<'_, '_> {
    fn policy(
        &mut self,
        title: &str,
        policy: Option<&Node>,
        subset: Option<(String, Labels)>,
        at: &Node,
        mut notes: Notes,
    ) {
        let mut ports = &[][..];
        let mut settings = TrafficSettings::default();
        if let Some(node) = policy {
            let mut fields = Fields::of(node, &mut notes, "trafficPolicy");
            let levels = fields.take("portLevelSettings");
            ports = levels.map(|node| notes.list(node, "portLevelSettings")).unwrap_or_default();
            settings = read_settings(fields, &mut notes);
        }
        self.add(title.to_owned(), subset.clone(), None, settings, at, notes);
        for (index, node) in ports.iter().enumerate() {
            let mut notes = self.document.notes();
            let mut fields = Fields::of(node, &mut notes, "portLevelSettings");
            let number = fields.take("port").and_then(|node| node.get("number"));
            let port = number.and_then(|node| notes.integer(node, "port"));
            if port.is_none() {
                notes.missing(node, "port.number");
            }
            let settings = read_settings(fields, &mut notes);
            let title = format!("{title} portLevelSettings[{index}]");
            self.add(title, subset.clone(), Some(port.unwrap_or(0)), settings, node, notes);
        }
    }

    fn add(
        &mut self,
        title: String,
        subset: Option<(String, Labels)>,
        port: Option<u16>,
        settings: TrafficSettings,
        at: &Node,
        notes: Notes,
    ) {
        let origin = self.document.at(at);
        let rule = self.set.rule(RuleKind::Destination, title, origin.clone(), notes);
        self.set.traffic.push(Traffic { host: self.host.clone(), subset, port, settings, rule, origin });
    }
}

/// A traffic policy or that of one port.
fn read_settings(mut fields: Fields<'_>, notes: &mut Notes) -> TrafficSettings {
    let mut settings = TrafficSettings::default();
    if let Some(node) = fields.take("loadBalancer") {
        settings.balancing = balancing(node, notes);
    }
    if let Some(node) = fields.take("connectionPool") {
        notes.add(Reason::PoolLimits, node, "connectionPool");
        settings.limits = Some(limits(node, notes));
    }
    if let Some(node) = fields.take("outlierDetection") {
        notes.add(Reason::OutlierDetection, node, "outlierDetection");
        settings.outlier = Some(outlier(node, notes));
    }
    if let Some(node) = fields.take("tls") {
        let mode = node.get("mode").map_or("", Node::text);
        if mode != "DISABLE" {
            notes.add(Reason::TlsUpstream, node, format!("tls.mode {mode}"));
            settings.protocol = Some(UpstreamProtocol::Tls);
        }
    }
    fields.envoy("tunnel", Reason::Tcp, notes);
    fields.envoy("proxyProtocol", Reason::Tcp, notes);
    fields.envoy("retryBudget", Reason::Retry, notes);
    fields.finish(notes);
    settings
}

fn balancing(node: &Node, notes: &mut Notes) -> Option<LoadBalancing> {
    let mut fields = Fields::of(node, notes, "loadBalancer");
    let mut chosen = None;
    if let Some(node) = fields.take("simple") {
        match node.text() {
            "ROUND_ROBIN" => chosen = Some(LoadBalancing::RoundRobin),
            "LEAST_REQUEST" | "LEAST_CONN" => chosen = Some(LoadBalancing::LeastRequest { choices: 2 }),
            "RANDOM" => chosen = Some(LoadBalancing::Random),
            "UNSPECIFIED" => {}
            "PASSTHROUGH" => {
                notes.add(Reason::LoadBalancing, node, "PASSTHROUGH");
                chosen = Some(LoadBalancing::Passthrough);
            }
            other => notes.add(Reason::InvalidValue, node, other),
        }
    }
    if let Some(node) = fields.take("consistentHash") {
        notes.add(Reason::LoadBalancing, node, "consistentHash");
        let by = node.members().first().map_or("", |(key, _)| key.text());
        chosen = Some(LoadBalancing::Hash(by.to_owned()));
    }
    if let Some(node) = fields.take("localityLbSetting")
        && node.get("enabled").map(Node::text) != Some("false")
    {
        notes.add(Reason::Locality, node, "localityLbSetting");
    }
    fields.envoy("warmupDurationSecs", Reason::LoadBalancing, notes);
    fields.envoy("warmup", Reason::LoadBalancing, notes);
    fields.finish(notes);
    chosen
}

fn limits(node: &Node, notes: &mut Notes) -> PoolLimits {
    let mut limits = PoolLimits::default();
    let mut fields = Fields::of(node, notes, "connectionPool");
    if let Some(node) = fields.take("tcp") {
        let mut tcp = Fields::of(node, notes, "tcp");
        limits.connections = tcp.take("maxConnections").and_then(|node| notes.integer(node, "maxConnections"));
        limits.connect_timeout = tcp.take("connectTimeout").and_then(|node| notes.duration(node, "connectTimeout"));
        limits.idle_timeout = tcp.take("idleTimeout").and_then(|node| notes.duration(node, "idleTimeout"));
        tcp.pass_over(&["tcpKeepalive", "maxConnectionDuration"]);
        tcp.finish(notes);
    }
    if let Some(node) = fields.take("http") {
        let mut http = Fields::of(node, notes, "http");
        let mut number =
            |name: &'static str, notes: &mut Notes| http.take(name).and_then(|node| notes.integer(node, name));
        limits.pending_requests = number("http1MaxPendingRequests", notes);
        limits.requests = number("http2MaxRequests", notes);
        limits.requests_per_connection = number("maxRequestsPerConnection", notes);
        limits.retries = number("maxRetries", notes);
        limits.idle_timeout = http.take("idleTimeout").and_then(|node| notes.duration(node, "idleTimeout"));
        http.pass_over(&["h2UpgradePolicy", "useClientProtocol", "maxConcurrentStreams"]);
        http.finish(notes);
    }
    fields.finish(notes);
    limits
}

fn outlier(node: &Node, notes: &mut Notes) -> OutlierDetection {
    let mut fields = Fields::of(node, notes, "outlierDetection");
    let mut errors = None;
    for name in ["consecutive5xxErrors", "consecutiveErrors", "consecutiveGatewayErrors"] {
        errors = errors.or(fields.take(name).and_then(|node| notes.integer(node, name)));
    }
    let outlier = OutlierDetection {
        consecutive_errors: errors,
        interval: fields.take("interval").and_then(|node| notes.duration(node, "interval")),
        base_ejection_time: fields.take("baseEjectionTime").and_then(|node| notes.duration(node, "baseEjectionTime")),
        max_ejection_percent: fields.take("maxEjectionPercent").and_then(|node| notes.integer(node, "percent")),
    };
    fields.pass_over(&["splitExternalLocalOriginErrors", "consecutiveLocalOriginFailures", "minHealthPercent"]);
    fields.finish(notes);
    outlier
}
