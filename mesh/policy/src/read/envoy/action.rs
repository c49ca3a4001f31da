//! `RouteAction`, `RedirectAction` and `DirectResponseAction`.

use super::strings;
use crate::form::{
    AuthorityRewrite, DirectResponse, Forward, HeaderEditMode, HeaderEdits, Mirror, PathRewrite, PerMillion, Reason,
    Redirect, RedirectPath, Retry, WeightedTarget,
};
use crate::read::edits;
use crate::read::fields::{Fields, Notes};
use crate::read::yaml::Node;

pub(super) fn forward(node: &Node, notes: &mut Notes) -> Forward {
    let mut fields = Fields::of_proto(node, notes, "route");
    let mut forward = Forward { targets: targets(&mut fields, notes), ..Forward::default() };
    let prefix = fields.take("prefix_rewrite").and_then(|node| notes.text(node, "prefix_rewrite"));
    forward.path = prefix.map(PathRewrite::Matched);
    if let Some(node) = fields.take("regex_rewrite") {
        notes.add(Reason::RegexRewrite, node, "regex_rewrite");
        let pattern = node.get("pattern").and_then(|node| strings::expression(node, notes)).unwrap_or_default();
        let substitution = node.get("substitution").map_or("", Node::text).to_owned();
        forward.path = Some(PathRewrite::Regex { pattern, substitution });
    }
    forward.authority = authority(&mut fields, notes);
    if let Some(node) = fields.take("timeout") {
        forward.timeout = notes.duration(node, "timeout");
        if forward.timeout.is_some_and(|timeout| !timeout.is_zero()) {
            notes.add(Reason::Timeout, node, "timeout");
        }
    }
    if let Some(node) = fields.take("retry_policy") {
        notes.add(Reason::Retry, node, "retry_policy");
        forward.retry = Some(Retry {
            attempts: node.get("num_retries").and_then(|node| notes.integer(node, "num_retries")).unwrap_or(1),
            per_try_timeout: node.get("per_try_timeout").and_then(|node| notes.duration(node, "per_try_timeout")),
            on: node.get("retry_on").map_or("", Node::text).to_owned(),
        });
    }
    if let Some(node) = fields.take("request_mirror_policies") {
        notes.add(Reason::Mirror, node, "request_mirror_policies");
        let cluster = |node: &Node| node.get("cluster").map(|node| node.text().to_owned());
        let mirror = |cluster| Mirror { cluster, share: PerMillion::ALL };
        forward.mirrors = node.items().iter().filter_map(cluster).map(mirror).collect();
    }
    fields.envoy("cors", Reason::Cors, notes);
    fields.envoy("upgrade_configs", Reason::Upgrade, notes);
    fields.envoy("rate_limits", Reason::RateLimitGlobal, notes);
    fields.envoy("hash_policy", Reason::LoadBalancing, notes);
    for name in ["idle_timeout", "max_stream_duration", "max_grpc_timeout", "grpc_timeout_offset"] {
        fields.envoy(name, Reason::Timeout, notes);
    }
    fields.pass_over(&["metadata_match"]);
    if let Some(node) = node.get("metadata_match") {
        notes.add(Reason::LoadBalancing, node, "metadata_match");
    }
    fields.finish(notes);
    forward
}

fn targets(fields: &mut Fields<'_>, notes: &mut Notes) -> Vec<WeightedTarget> {
    fields.envoy("cluster_header", Reason::Dynamic, notes);
    fields.envoy("cluster_specifier_plugin", Reason::Dynamic, notes);
    let target = |cluster, weight| WeightedTarget {
        cluster,
        weight,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
    };
    if let Some(node) = fields.take("cluster") {
        return notes.text(node, "cluster").map(|name| target(name, 1)).into_iter().collect();
    }
    let Some(node) = fields.take("weighted_clusters") else { return Vec::new() };
    let mut weighted = Fields::of_proto(node, notes, "weighted_clusters");
    let mut targets = Vec::new();
    let list = weighted.take("clusters").map(|node| notes.list(node, "clusters")).unwrap_or_default();
    for item in list {
        let mut one = Fields::of_proto(item, notes, "clusters");
        let name = one.take("name").and_then(|node| notes.text(node, "name"));
        let weight = one.take("weight").and_then(|node| notes.integer(node, "weight"));
        let (request, response) = header_edits(&mut one, notes);
        one.finish(notes);
        targets.push(WeightedTarget {
            request_headers: request,
            response_headers: response,
            ..target(name.unwrap_or_default(), weight.unwrap_or(0))
        });
    }
    // Written earlier, and what the sum is by itself.
    if let Some(total) = weighted.take("total_weight") {
        let sum: u64 = targets.iter().map(|target| u64::from(target.weight)).sum();
        if notes.integer::<u64>(total, "total_weight") != Some(sum) {
            notes.add(Reason::InvalidValue, total, "total_weight is not the sum of the weights");
        }
    }
    weighted.finish(notes);
    targets
}

fn authority(fields: &mut Fields<'_>, notes: &mut Notes) -> Option<AuthorityRewrite> {
    let mut authority = None;
    for name in ["host_rewrite_literal", "host_rewrite"] {
        authority = authority.or(fields.take(name).and_then(|node| notes.text(node, name)));
    }
    if let Some(node) = fields.take("auto_host_rewrite").filter(|node| node.text() == "true") {
        notes.add(Reason::AuthorityDynamic, node, "auto_host_rewrite");
        return Some(AuthorityRewrite::Endpoint);
    }
    if let Some(node) = fields.take("host_rewrite_header") {
        notes.add(Reason::AuthorityDynamic, node, "host_rewrite_header");
        return Some(AuthorityRewrite::Header(node.text().to_ascii_lowercase()));
    }
    fields.envoy("host_rewrite_path_regex", Reason::AuthorityDynamic, notes);
    authority.map(AuthorityRewrite::Literal)
}

pub(super) fn redirect(node: &Node, notes: &mut Notes) -> Redirect {
    let mut fields = Fields::of_proto(node, notes, "redirect");
    let code = fields.take("response_code");
    let status = match code.map_or("MOVED_PERMANENTLY", Node::text) {
        "MOVED_PERMANENTLY" => 301,
        "FOUND" => 302,
        "SEE_OTHER" => 303,
        "TEMPORARY_REDIRECT" => 307,
        "PERMANENT_REDIRECT" => 308,
        other => {
            notes.add(Reason::InvalidValue, code.unwrap_or(node), other);
            301
        }
    };
    let mut scheme = fields.take("scheme_redirect").and_then(|node| notes.text(node, "scheme_redirect"));
    if fields.take("https_redirect").is_some_and(|node| node.text() == "true") {
        scheme = Some("https".into());
    }
    let whole = fields.take("path_redirect").and_then(|node| notes.text(node, "path_redirect"));
    let prefix = fields.take("prefix_rewrite").and_then(|node| notes.text(node, "prefix_rewrite"));
    let prefix = prefix.map(|prefix| RedirectPath::Rewrite(PathRewrite::Matched(prefix)));
    fields.envoy("regex_rewrite", Reason::RedirectRewrite, notes);
    let redirect = Redirect {
        status,
        scheme,
        host: fields.take("host_redirect").and_then(|node| notes.text(node, "host_redirect")),
        port: fields.take("port_redirect").and_then(|node| notes.integer(node, "port_redirect")),
        path: whole.filter(|path| !path.is_empty()).map(RedirectPath::Whole).or(prefix),
        strip_query: fields.take("strip_query").is_some_and(|node| node.text() == "true"),
    };
    fields.finish(notes);
    redirect
}

pub(super) fn direct(node: &Node, notes: &mut Notes) -> DirectResponse {
    let mut fields = Fields::of_proto(node, notes, "direct_response");
    let status = fields.take("status").and_then(|node| notes.integer(node, "status"));
    let mut body = String::new();
    if let Some(node) = fields.take("body") {
        let mut source = Fields::of_proto(node, notes, "body");
        body = source.take("inline_string").and_then(|node| notes.text(node, "inline_string")).unwrap_or_default();
        for name in ["filename", "environment_variable", "inline_bytes"] {
            source.envoy(name, Reason::EnvoyFilter, notes);
        }
        source.finish(notes);
    }
    fields.envoy("body_format", Reason::HeaderFormat, notes);
    fields.finish(notes);
    if !status.is_some_and(|status: u16| (200..=599).contains(&status)) {
        notes.add(Reason::InvalidValue, node, "a status from 200 to 599 is expected here");
    }
    DirectResponse { status: status.unwrap_or(200), body }
}

/// `request_headers_to_add` and its three siblings.
pub(super) fn header_edits(fields: &mut Fields<'_>, notes: &mut Notes) -> (HeaderEdits, HeaderEdits) {
    let lists = [
        (fields.take("request_headers_to_add"), fields.take("request_headers_to_remove")),
        (fields.take("response_headers_to_add"), fields.take("response_headers_to_remove")),
    ];
    let [request, response] = lists.map(|(add, remove)| {
        let mut edits = HeaderEdits::default();
        for item in remove.map(|node| notes.list(node, "headers_to_remove")).unwrap_or_default() {
            edits::remove(&mut edits, notes, item, item.text());
        }
        for item in add.map(|node| notes.list(node, "headers_to_add")).unwrap_or_default() {
            option(item, &mut edits, notes);
        }
        edits
    });
    (request, response)
}

/// `HeaderValueOption`.
fn option(node: &Node, edits: &mut HeaderEdits, notes: &mut Notes) {
    let mut fields = Fields::of_proto(node, notes, "headers_to_add");
    let (header, keep_empty) = (fields.take("header"), fields.take("keep_empty_value"));
    let (append, action) = (fields.take("append"), fields.take("append_action"));
    fields.finish(notes);
    let mode = match (action.map(Node::text), append.map(Node::text)) {
        (None, Some("false")) | (Some("OVERWRITE_IF_EXISTS_OR_ADD"), _) => HeaderEditMode::Set,
        (None, _) | (Some("APPEND_IF_EXISTS_OR_ADD"), _) => HeaderEditMode::Append,
        (Some("ADD_IF_ABSENT"), _) => HeaderEditMode::AddIfAbsent,
        (Some("OVERWRITE_IF_EXISTS"), _) => HeaderEditMode::SetIfPresent,
        (Some(other), _) => {
            notes.add(Reason::InvalidValue, action.unwrap_or(node), other);
            HeaderEditMode::Append
        }
    };
    let Some(header) = header else { return notes.missing(node, "header") };
    let mut pair = Fields::of_proto(header, notes, "header");
    let name = pair.take("key").map_or("", Node::text);
    let value = pair.take("value").map_or("", Node::text);
    pair.envoy("raw_value", Reason::HeaderFormat, notes);
    pair.finish(notes);
    // Envoy drops empty ones unless they are to be kept.
    if !value.is_empty() || keep_empty.is_some_and(|node| node.text() == "true") {
        edits::add(edits, notes, header, name, value, mode);
    }
}
