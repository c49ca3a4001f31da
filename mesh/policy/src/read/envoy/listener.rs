//! `Listener` with its HTTP connection managers: the manager's settings are one rule, each filter but the router is
//! one, each route is one.

use std::sync::Arc;

use super::route::{self, Around};
use super::{config, extension, rbac};
use crate::form::{
    Abort, EscapedSlashes, Fault, Filter, FilterKind, HostPort, HttpOptions, Listener, ListenerKind, PerMillion,
    Reason, RuleKind, Target, Unmatched,
};
use crate::read::fields::{Fields, Notes};
use crate::read::set::Set;
use crate::read::yaml::Node;

/// Parts of the names of HTTP filters, and what they stand for.
pub(super) const KNOWN: &[(&str, FilterKind, Reason)] = &[
    ("lua", FilterKind::Lua, Reason::Lua),
    ("wasm", FilterKind::Wasm, Reason::Wasm),
    ("ext_authz", FilterKind::ExtAuthz, Reason::ExtAuthz),
    ("ext_proc", FilterKind::ExtProc, Reason::EnvoyFilter),
    ("jwt_authn", FilterKind::Jwt, Reason::Jwt),
    ("oauth2", FilterKind::Jwt, Reason::Jwt),
    ("cors", FilterKind::Other, Reason::Cors),
    ("local_ratelimit", FilterKind::LocalRateLimit, Reason::RateLimitLocal),
    ("local_rate_limit", FilterKind::LocalRateLimit, Reason::RateLimitLocal),
    ("ratelimit", FilterKind::GlobalRateLimit, Reason::RateLimitGlobal),
    ("rate_limit", FilterKind::GlobalRateLimit, Reason::RateLimitGlobal),
    ("grpc", FilterKind::Grpc, Reason::Http2),
    ("compressor", FilterKind::Compression, Reason::EnvoyFilter),
    ("fault", FilterKind::Other, Reason::EnvoyFilter),
];

pub(super) fn listener(set: &mut Set, file: &Arc<str>, node: &Node) {
    let mut notes = Notes::new(file);
    let mut fields = Fields::of_proto(node, &mut notes, "listeners");
    fields.pass_over(&["name", "address", "stat_prefix", "traffic_direction", "access_log", "metadata", "reuse_port"]);
    fields.pass_over(&["enable_reuse_port", "per_connection_buffer_limit_bytes", "tcp_backlog_size", "socket_options"]);
    fields.envoy("use_original_dst", Reason::Dynamic, &mut notes);
    fields.envoy("additional_addresses", Reason::UnknownField, &mut notes);
    for item in fields.take("listener_filters").map_or(&[][..], Node::items) {
        notes.add(Reason::EnvoyFilter, item, item.get("name").map_or("listener_filters", Node::text));
    }
    let chains = fields.take("filter_chains").map(|node| notes.list(node, "filter_chains")).unwrap_or_default();
    let default_chain = fields.take("default_filter_chain");
    fields.finish(&mut notes);
    let socket = node.path(&["address", "socket_address"]);
    let port = socket.and_then(|node| node.get("port_value").or_else(|| node.get("portValue")));
    let port = port.and_then(|node| node.text().parse().ok());
    let name = node.get("name").map_or_else(|| format!("port {}", port.unwrap_or(0)), |node| node.text().to_owned());
    for (index, chain) in chains.iter().chain(default_chain).enumerate() {
        let mut notes = Notes::with(file, &notes.findings);
        let mut fields = Fields::of_proto(chain, &mut notes, "filter_chains");
        fields.pass_over(&["name", "metadata"]);
        for tls in ["transport_socket", "tls_context", "transport_socket_connect_timeout"] {
            fields.envoy(tls, Reason::TlsDownstream, &mut notes);
        }
        fields.envoy("use_proxy_proto", Reason::Tcp, &mut notes);
        if let Some(node) = fields.take("filter_chain_match").filter(|node| !node.members().is_empty()) {
            notes.add(Reason::MatchOther, node, "filter_chain_match");
        }
        let filters = fields.take("filters").map(|node| notes.list(node, "filters")).unwrap_or_default();
        fields.finish(&mut notes);
        let name = if index == 0 { name.clone() } else { format!("{name}#{index}") };
        for filter in filters {
            let name_of = filter.get("name").map_or("", Node::text);
            let notes = Notes::with(file, &notes.findings);
            match extension(name_of) {
                "http_connection_manager" => manager(set, file, filter, &name, port, notes),
                _ => network_filter(set, filter, &name, notes),
            }
        }
    }
}

fn network_filter(set: &mut Set, node: &Node, listener: &str, mut notes: Notes) {
    let name = node.get("name").map_or("", Node::text);
    notes.add(Reason::Tcp, node, name);
    let origin = notes.at(node);
    set.rule(RuleKind::Filter, format!("listener {listener} {}", extension(name)), origin, notes);
}

fn manager(set: &mut Set, file: &Arc<str>, node: &Node, name: &str, port: Option<u16>, mut notes: Notes) {
    let mut outer = Fields::of_proto(node, &mut notes, "filters");
    outer.pass_over(&["name"]);
    let config = config(&mut outer);
    outer.finish(&mut notes);
    let Some(config) = config else { return notes.missing(node, "typed_config") };
    let mut fields = Fields::of_proto(config, &mut notes, "typed_config");
    let options = options(&mut fields, &mut notes);
    let (tables, filters) = (fields.take("route_config"), fields.take("http_filters"));
    fields.finish(&mut notes);
    let (title, origin) = (format!("listener {name}"), node.at(file));
    let findings = notes.findings.clone();
    set.rule(RuleKind::Listener, title.clone(), origin.clone(), notes);
    let mut around = Around { file, title: &title, fault: None, findings };
    for item in filters.map_or(&[][..], Node::items) {
        http_filter(set, item, name, &mut around);
    }
    let Some(tables) = tables.map(|node| route::tables(set, &mut around, node)) else { return };
    let host_port = if tables.ignore_port { HostPort::Ignore } else { options.host_port };
    set.listeners.push(Listener {
        name: name.to_owned(),
        kind: ListenerKind::Envoy,
        ports: port.into_iter().collect(),
        workload: None,
        options: HttpOptions { host_port, ..options },
        virtual_hosts: tables.virtual_hosts,
        unmatched: Unmatched::NotFound,
        request_headers: tables.request_headers,
        response_headers: tables.response_headers,
        origin,
    });
}

fn options(fields: &mut Fields<'_>, notes: &mut Notes) -> HttpOptions {
    // Names, logs and limits that no request within the usual bounds meets.
    fields.pass_over(&["@type", "stat_prefix", "access_log", "access_log_options", "tracing", "generate_request_id"]);
    fields.pass_over(&["http_protocol_options", "http2_protocol_options", "http3_protocol_options", "server_name"]);
    fields.pass_over(&["always_set_request_id_in_response", "preserve_external_request_id", "xff_num_trusted_hops"]);
    fields.pass_over(&["max_request_headers_kb", "delayed_close_timeout", "drain_timeout", "use_remote_address"]);
    fields.pass_over(&["skip_xff_append", "server_header_transformation", "via", "proxy_100_continue"]);
    if let Some(node) =
        fields.take("codec_type").filter(|node| !["AUTO", "HTTP1", "auto", "http1"].contains(&node.text()))
    {
        notes.add(Reason::Http2, node, "codec_type");
    }
    for name in ["rds", "scoped_routes"] {
        fields.envoy(name, Reason::Dynamic, notes);
    }
    fields.envoy("upgrade_configs", Reason::Upgrade, notes);
    fields.envoy("local_reply_config", Reason::EnvoyFilter, notes);
    fields.envoy("forward_client_cert_details", Reason::MutualTls, notes);
    fields.envoy("set_current_client_cert_details", Reason::MutualTls, notes);
    for name in ["stream_idle_timeout", "request_timeout", "request_headers_timeout", "common_http_protocol_options"] {
        fields.envoy(name, Reason::Timeout, notes);
    }
    let mut is = |name| fields.take(name).is_some_and(|node: &Node| node.text() == "true");
    let (normalize_path, merge_slashes) = (is("normalize_path"), is("merge_slashes"));
    let (any, matching) = (is("strip_any_host_port"), is("strip_matching_host_port"));
    if let Some(node) = fields.take("strip_trailing_host_dot").filter(|node| node.text() == "true") {
        notes.add(Reason::UnknownField, node, "strip_trailing_host_dot");
    }
    let slashes = fields.take("path_with_escaped_slashes_action");
    let escaped_slashes = match slashes.map_or("KEEP_UNCHANGED", Node::text) {
        "KEEP_UNCHANGED" | "IMPLEMENTATION_SPECIFIC_DEFAULT" => EscapedSlashes::Keep,
        "REJECT_REQUEST" => EscapedSlashes::Reject,
        "UNESCAPE_AND_REDIRECT" => EscapedSlashes::Redirect,
        "UNESCAPE_AND_FORWARD" => EscapedSlashes::Forward,
        other => {
            notes.add(Reason::InvalidValue, slashes.unwrap_or(fields.node()), other);
            EscapedSlashes::Keep
        }
    };
    let host_port = match (any, matching) {
        (true, _) => HostPort::StripAny,
        (_, true) => HostPort::StripMatching,
        _ => HostPort::Keep,
    };
    HttpOptions { normalize_path, merge_slashes, escaped_slashes, host_port }
}

/// One HTTP filter. RBAC and a fault that only aborts are enforced by the kernel.
fn http_filter(set: &mut Set, node: &Node, listener: &str, around: &mut Around<'_>) {
    let mut notes = Notes::new(around.file);
    let mut fields = Fields::of_proto(node, &mut notes, "http_filters");
    fields.pass_over(&["is_optional"]);
    let full_name = fields.take("name").map_or("", Node::text);
    let config = config(&mut fields);
    fields.envoy("disabled", Reason::EnvoyFilter, &mut notes);
    fields.envoy("config_discovery", Reason::Dynamic, &mut notes);
    fields.finish(&mut notes);
    let kind = config.and_then(|node| node.get("@type")).map_or("", Node::text).to_ascii_lowercase();
    let name = extension(full_name).to_ascii_lowercase();
    if name == "router" || kind.ends_with(".router") {
        return;
    }
    if let Some(config) = config.filter(|_| name == "rbac" || kind.contains(".rbac.")) {
        return rbac::filter(set, around.file, config, listener, notes);
    }
    let title = format!("listener {listener} {name}");
    let origin = notes.at(node);
    let fault = config.filter(|_| name == "fault" || kind.contains(".fault."));
    if let Some(fault) = fault.and_then(|config| abort_only(config, &notes)) {
        around.fault = Some(fault);
        set.rule(RuleKind::Filter, title, origin, notes);
        return;
    }
    let known = KNOWN.iter().find(|(part, ..)| name.contains(part) || kind.contains(part));
    let (kind, reason) = known.map_or((FilterKind::Other, Reason::EnvoyFilter), |(_, kind, reason)| (*kind, *reason));
    // The CORS filter does nothing where no route has a policy for it; those are findings of the routes.
    if reason != Reason::Cors {
        notes.add(reason, node, full_name);
    }
    let is_envoy = !notes.findings.is_empty();
    let rule = set.rule(RuleKind::Filter, title, origin.clone(), notes);
    if is_envoy {
        set.filters.push(Filter { rule, target: Target::Listener(listener.to_owned()), kind, origin });
    }
}

/// A fault filter with nothing but an abort by status.
fn abort_only(node: &Node, notes: &Notes) -> Option<Fault> {
    let mut quiet = Notes::new(&notes.at(node).file);
    let mut fields = Fields::of_proto(node, &mut quiet, "typed_config");
    fields.pass_over(&["@type"]);
    let abort = fields.take("abort")?;
    fields.finish(&mut quiet);
    let mut fields = Fields::of_proto(abort, &mut quiet, "abort");
    let status: u16 = fields.take("http_status").and_then(|node| quiet.integer(node, "http_status"))?;
    let share = fields.take("percentage");
    fields.finish(&mut quiet);
    let numerator: u32 =
        share.and_then(|node| node.get("numerator")).map_or(Some(0), |node| node.text().parse().ok())?;
    let factor = match share.and_then(|node| node.get("denominator")).map_or("HUNDRED", Node::text) {
        "HUNDRED" => 10_000,
        "TEN_THOUSAND" => 100,
        "MILLION" => 1,
        _ => return None,
    };
    let share = PerMillion(numerator.saturating_mul(factor).min(1_000_000));
    let valid = quiet.findings.is_empty() && (200..=599).contains(&status);
    valid.then_some(Fault { abort: Some(Abort { status, share }), delay: None })
}
