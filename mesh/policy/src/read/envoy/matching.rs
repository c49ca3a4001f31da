//! `RouteMatch`.

use super::strings;
use crate::form::{HeaderMatch, HeaderPattern, PathMatch, PathPattern, Reason, RequestMatch};
use crate::read::fields::{Fields, Notes};
use crate::read::yaml::Node;

pub(super) fn read(node: &Node, notes: &mut Notes) -> RequestMatch {
    let mut fields = Fields::of_proto(node, notes, "match");
    let mut matching = RequestMatch::default();
    let sensitive = fields.take("case_sensitive").is_none_or(|node| node.text() != "false");
    let mut pattern = fields.take("prefix").and_then(|node| notes.text(node, "prefix")).map(PathPattern::Prefix);
    pattern = pattern.or(fields.take("path").and_then(|node| notes.text(node, "path")).map(PathPattern::Exact));
    let segments = fields.take("path_separated_prefix").and_then(|node| notes.text(node, "path_separated_prefix"));
    pattern = pattern.or(segments.map(PathPattern::Segments));
    for name in ["safe_regex", "regex"] {
        let regex = fields.take(name).and_then(|node| strings::expression(node, notes));
        pattern = pattern.or(regex.map(PathPattern::Regex));
    }
    fields.envoy("connect_matcher", Reason::Upgrade, notes);
    for name in ["path_match_policy", "runtime_fraction", "grpc", "tls_context", "dynamic_metadata", "filter_state"] {
        fields.envoy(name, Reason::MatchOther, notes);
    }
    for item in fields.take("headers").map(|node| notes.list(node, "headers")).unwrap_or_default() {
        if let Some(header) = strings::header(item, notes) {
            place(&mut matching, header, item, notes);
        }
    }
    for item in fields.take("query_parameters").map(|node| notes.list(node, "query_parameters")).unwrap_or_default() {
        matching.query.push(strings::query(item, notes));
    }
    fields.finish(notes);
    let ignore_case = !sensitive && !matches!(pattern, Some(PathPattern::Regex(_)));
    matching.path = match pattern {
        Some(PathPattern::Prefix(prefix)) if prefix.is_empty() || prefix == "/" => PathMatch::default(),
        Some(pattern) => PathMatch { pattern, ignore_case },
        None => PathMatch::default(),
    };
    matching
}

/// Pseudo-headers have places of their own.
fn place(matching: &mut RequestMatch, header: HeaderMatch, node: &Node, notes: &mut Notes) {
    let slot = match header.name.as_str() {
        ":method" => &mut matching.method,
        ":authority" | "host" => &mut matching.authority,
        ":scheme" => &mut matching.scheme,
        name if name.starts_with(':') => return notes.add(Reason::MatchOther, node, name),
        _ => return matching.headers.push(header),
    };
    match header.pattern {
        HeaderPattern::Value(value) if !header.invert && slot.is_none() => *slot = Some(value),
        // Every request has them.
        HeaderPattern::Present if !header.invert => {}
        _ => notes.add(Reason::MatchOther, node, header.name),
    }
}
