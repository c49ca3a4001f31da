//! Virtual hosts and routes.

use serde_json::{Value, json};

use super::cluster::duration;
use super::{FAULT, Maker};
use crate::form::{
    Action, AuthorityRewrite, Cors, Fault, Forward, HeaderEditMode, HeaderEdits, HeaderMatch, HeaderPattern, PathMatch,
    PathPattern, PathRewrite, PerMillion, Redirect, RedirectPath, RequestMatch, Route, StringMatch, StringPattern,
    VirtualHost,
};

const CORS_POLICY: &str = "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy";

pub(super) fn virtual_host(maker: &mut Maker<'_>, host: &VirtualHost) -> Value {
    let mut routes = Vec::new();
    for route in &host.routes {
        if is_for(route, maker) {
            routes.push(one(maker, route));
        }
    }
    let mut out = json!({
        "name": format!("{} {}", host.name, host.domains.join(" ")), "domains": host.domains, "routes": routes,
    });
    add_edits(&mut out, &host.request_headers, &host.response_headers);
    out
}

/// What the connection decides is decided here.
fn is_for(route: &Route, maker: &Maker<'_>) -> bool {
    let (matching, bind) = (&route.matching, maker.bind);
    let identity = bind.sender.identity.as_ref();
    let namespace = &matching.source.namespace;
    let in_namespace = namespace.as_ref().is_none_or(|wanted| identity.and_then(|i| i.namespace()) == Some(wanted));
    let labels = bind.sender.labels.as_ref();
    let labelled = |(name, value): &(String, String)| labels.is_some_and(|labels| labels.get(name) == Some(value));
    let on_port = matching.ports.is_empty() || matching.ports.contains(&bind.destination.1);
    in_namespace && on_port && matching.source.labels.iter().all(labelled)
}

fn one(maker: &mut Maker<'_>, route: &Route) -> Value {
    let mut out = json!({"match": matching(&route.matching)});
    match &route.action {
        Action::Forward(forward) => out["route"] = action(maker, forward, &route.matching.path),
        Action::Redirect(to) => out["redirect"] = redirect(to, &route.matching.path),
        Action::Direct(direct) => {
            out["direct_response"] = json!({"status": direct.status});
            if !direct.body.is_empty() {
                out["direct_response"]["body"] = json!({"inline_string": direct.body});
            }
        }
        Action::Envoy => {
            maker.missing.extend(route.rule);
            out["direct_response"] = json!({"status": 503});
        }
    }
    add_edits(&mut out, &route.request_headers, &route.response_headers);
    let mut per_filter = serde_json::Map::new();
    if let Some(fault) = &route.fault {
        per_filter.insert("envoy.filters.http.fault".into(), fault_of(fault));
    }
    if let Some(cors) = &route.cors {
        per_filter.insert("envoy.filters.http.cors".into(), cors_of(cors));
    }
    if !per_filter.is_empty() {
        out["typed_per_filter_config"] = Value::Object(per_filter);
    }
    out
}

fn matching(matching: &RequestMatch) -> Value {
    let mut out = path(&matching.path);
    let mut headers: Vec<_> = matching.headers.iter().map(header).collect();
    let pseudo = [(":method", &matching.method), (":authority", &matching.authority), (":scheme", &matching.scheme)];
    for (name, pattern) in pseudo {
        if let Some(pattern) = pattern {
            headers.push(json!({"name": name, "string_match": string(pattern)}));
        }
    }
    if !headers.is_empty() {
        out["headers"] = Value::Array(headers);
    }
    let query = matching.query.iter().map(|query| match &query.value {
        Some(value) => json!({"name": query.name, "string_match": string(value)}),
        None => json!({"name": query.name, "present_match": true}),
    });
    let query: Vec<_> = query.collect();
    if !query.is_empty() {
        out["query_parameters"] = Value::Array(query);
    }
    out
}

fn path(matching: &PathMatch) -> Value {
    let mut out = match &matching.pattern {
        PathPattern::Any => json!({"prefix": "/"}),
        PathPattern::Exact(path) => json!({"path": path}),
        PathPattern::Prefix(prefix) => json!({"prefix": prefix}),
        PathPattern::Segments(prefix) => json!({"path_separated_prefix": prefix}),
        PathPattern::Regex(regex) => json!({"safe_regex": {"regex": regex}}),
    };
    if matching.ignore_case {
        out["case_sensitive"] = json!(false);
    }
    out
}

pub(super) fn string(matching: &StringMatch) -> Value {
    let mut out = match &matching.pattern {
        StringPattern::Exact(text) => json!({"exact": text}),
        StringPattern::Prefix(text) => json!({"prefix": text}),
        StringPattern::Suffix(text) => json!({"suffix": text}),
        StringPattern::Contains(text) => json!({"contains": text}),
        StringPattern::Regex(text) => return json!({"safe_regex": {"regex": text}}),
    };
    // Envoy takes every value for an empty prefix only where it is written so.
    if let StringPattern::Prefix(text) = &matching.pattern
        && text.is_empty()
    {
        return json!({"safe_regex": {"regex": ".*"}});
    }
    if matching.ignore_case {
        out["ignore_case"] = json!(true);
    }
    out
}

pub(super) fn header(matching: &HeaderMatch) -> Value {
    let mut out = json!({"name": matching.name});
    match &matching.pattern {
        HeaderPattern::Present => out["present_match"] = json!(true),
        HeaderPattern::Value(value) => out["string_match"] = string(value),
        HeaderPattern::Range { start, end } => out["range_match"] = json!({"start": start, "end": end}),
    }
    if matching.invert {
        out["invert_match"] = json!(true);
    }
    if matching.missing_is_empty {
        out["treat_missing_header_as_empty"] = json!(true);
    }
    out
}

fn action(maker: &mut Maker<'_>, forward: &Forward, matched: &PathMatch) -> Value {
    let timeout = forward.timeout.unwrap_or_default();
    let mut out = json!({"timeout": duration(timeout)});
    match &forward.targets[..] {
        [only] if only.request_headers.is_empty() && only.response_headers.is_empty() => {
            out["cluster"] = json!(maker.guard(&only.cluster));
        }
        targets => {
            let mut clusters = Vec::new();
            for target in targets {
                let mut cluster = json!({"name": maker.guard(&target.cluster), "weight": target.weight});
                add_edits(&mut cluster, &target.request_headers, &target.response_headers);
                clusters.push(cluster);
            }
            out["weighted_clusters"] = json!({"clusters": clusters});
        }
    }
    if let Some(rewrite) = &forward.path {
        add_rewrite(&mut out, rewrite, matched);
    }
    match &forward.authority {
        Some(AuthorityRewrite::Literal(authority)) => out["host_rewrite_literal"] = json!(authority),
        Some(AuthorityRewrite::Endpoint) => out["auto_host_rewrite"] = json!(true),
        Some(AuthorityRewrite::Header(name)) => out["host_rewrite_header"] = json!(name),
        None => {}
    }
    if let Some(retry) = &forward.retry {
        let on = if retry.on.is_empty() { "connect-failure,refused-stream,unavailable,cancelled" } else { &retry.on };
        out["retry_policy"] = json!({"num_retries": retry.attempts, "retry_on": on});
        if let Some(timeout) = retry.per_try_timeout {
            out["retry_policy"]["per_try_timeout"] = duration(timeout);
        }
    }
    let mirrors = forward
        .mirrors
        .iter()
        .map(|mirror| json!({"cluster": mirror.cluster, "runtime_fraction": {"default_value": share(mirror.share)}}));
    let mirrors: Vec<_> = mirrors.collect();
    if !mirrors.is_empty() {
        out["request_mirror_policies"] = Value::Array(mirrors);
    }
    out
}

/// `prefix_rewrite` or `regex_rewrite`, of routes and redirects alike.
fn add_rewrite(out: &mut Value, rewrite: &PathRewrite, matched: &PathMatch) {
    let literal = |text: &str| text.replace('\\', "\\\\");
    match (rewrite, &matched.pattern) {
        (PathRewrite::Matched(prefix), _) => out["prefix_rewrite"] = json!(prefix),
        (PathRewrite::Segments(replacement), PathPattern::Segments(prefix)) => {
            let start = replacement.trim_end_matches('/');
            if start.is_empty() {
                let pattern = format!("^{}/*", escape(prefix));
                out["regex_rewrite"] = json!({"pattern": {"regex": pattern}, "substitution": "/"});
            } else {
                out["prefix_rewrite"] = json!(start);
            }
        }
        (PathRewrite::Segments(replacement), _) => {
            out["prefix_rewrite"] = json!(format!("{}/", replacement.trim_end_matches('/')));
        }
        (PathRewrite::Whole(path), _) => {
            out["regex_rewrite"] = json!({"pattern": {"regex": "^.*$"}, "substitution": literal(path)});
        }
        (PathRewrite::Regex { pattern, substitution }, _) => {
            out["regex_rewrite"] = json!({"pattern": {"regex": pattern}, "substitution": substitution});
        }
    }
}

/// A literal in RE2.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii_punctuation() && c != '/' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn redirect(redirect: &Redirect, matched: &PathMatch) -> Value {
    let code = match redirect.status {
        302 => "FOUND",
        303 => "SEE_OTHER",
        307 => "TEMPORARY_REDIRECT",
        308 => "PERMANENT_REDIRECT",
        _ => "MOVED_PERMANENTLY",
    };
    let mut out = json!({"response_code": code, "strip_query": redirect.strip_query});
    if let Some(scheme) = &redirect.scheme {
        out["scheme_redirect"] = json!(scheme);
    }
    if let Some(host) = &redirect.host {
        out["host_redirect"] = json!(host);
    }
    if let Some(port) = redirect.port {
        out["port_redirect"] = json!(port);
    }
    match &redirect.path {
        Some(RedirectPath::Whole(path)) => out["path_redirect"] = json!(path),
        Some(RedirectPath::Rewrite(rewrite)) => add_rewrite(&mut out, rewrite, matched),
        None => {}
    }
    out
}

fn fault_of(fault: &Fault) -> Value {
    let mut out = json!({"@type": FAULT});
    if let Some(abort) = &fault.abort {
        out["abort"] = json!({"http_status": abort.status, "percentage": share(abort.share)});
    }
    if let Some(delay) = &fault.delay {
        out["delay"] = json!({"fixed_delay": duration(delay.delay), "percentage": share(delay.share)});
    }
    out
}

fn cors_of(cors: &Cors) -> Value {
    let origins: Vec<_> = cors.origins.iter().map(string).collect();
    let mut out = json!({
        "@type": CORS_POLICY, "allow_origin_string_match": origins, "allow_methods": cors.methods.join(","),
        "allow_headers": cors.headers.join(","), "expose_headers": cors.expose.join(","),
        "allow_credentials": cors.credentials,
    });
    if let Some(age) = cors.max_age {
        out["max_age"] = json!(age.as_secs().to_string());
    }
    out
}

fn share(share: PerMillion) -> Value {
    json!({"numerator": share.0, "denominator": "MILLION"})
}

/// `request_headers_to_add` and its three siblings.
pub(super) fn add_edits(out: &mut Value, request: &HeaderEdits, response: &HeaderEdits) {
    for (direction, edits) in [("request", request), ("response", response)] {
        if !edits.remove.is_empty() {
            out[format!("{direction}_headers_to_remove")] = json!(edits.remove);
        }
        let add = edits.add.iter().map(|edit| {
            let action = match edit.mode {
                HeaderEditMode::Append => "APPEND_IF_EXISTS_OR_ADD",
                HeaderEditMode::Set => "OVERWRITE_IF_EXISTS_OR_ADD",
                HeaderEditMode::AddIfAbsent => "ADD_IF_ABSENT",
                HeaderEditMode::SetIfPresent => "OVERWRITE_IF_EXISTS",
            };
            let value = edit.value.replace('%', "%%");
            json!({"header": {"key": edit.name, "value": value}, "append_action": action, "keep_empty_value": true})
        });
        let add: Vec<_> = add.collect();
        if !add.is_empty() {
            out[format!("{direction}_headers_to_add")] = Value::Array(add);
        }
    }
}
