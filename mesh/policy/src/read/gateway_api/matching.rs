//! `HTTPRouteMatch`.

use crate::form::{
    HeaderMatch, HeaderPattern, PathMatch, PathPattern, QueryMatch, Reason, RequestMatch, StringMatch, StringPattern,
};
use crate::read::fields::{Fields, Notes};
use crate::read::yaml::Node;
use crate::regexes;

pub(super) fn read(node: &Node, notes: &mut Notes) -> RequestMatch {
    let mut fields = Fields::of(node, notes, "matches");
    let mut matching = RequestMatch { path: path(fields.take("path"), notes), ..RequestMatch::default() };
    if let Some(node) = fields.take("method") {
        matching.method = notes.text(node, "method").map(StringMatch::exact);
    }
    let headers = fields.take("headers").map(|node| notes.list(node, "headers")).unwrap_or_default();
    for (name, value) in headers.iter().filter_map(|node| named(node, "headers", notes)) {
        let name = name.to_ascii_lowercase();
        // The specification: of equal names, only the first counts.
        if matching.headers.iter().all(|header| header.name != name) {
            let pattern = HeaderPattern::Value(value);
            matching.headers.push(HeaderMatch { name, pattern, invert: false, missing_is_empty: false });
        }
    }
    if let Some(node) = fields.take("queryParams") {
        notes.add(Reason::MatchQuery, node, "queryParams");
        let named = notes.list(node, "queryParams").iter().filter_map(|node| named(node, "queryParams", notes));
        matching.query = named.map(|(name, value)| QueryMatch { name, value: Some(value) }).collect();
    }
    fields.finish(notes);
    matching
}

fn path(node: Option<&Node>, notes: &mut Notes) -> PathMatch {
    let (mut kind, mut value) = ("PathPrefix", "/".to_owned());
    if let Some(node) = node {
        let mut fields = Fields::of(node, notes, "path");
        kind = fields.take("type").map_or(kind, Node::text);
        value = fields.take("value").and_then(|node| notes.text(node, "value")).unwrap_or(value);
        fields.finish(notes);
        if kind == "RegularExpression" {
            check_regex(&value, node, notes);
        } else if !value.starts_with('/') {
            notes.add(Reason::InvalidValue, node, format!("{value}: a path begins with a slash"));
        }
        if !["Exact", "PathPrefix", "RegularExpression"].contains(&kind) {
            notes.add(Reason::InvalidValue, node, kind);
        }
    }
    let pattern = match kind {
        "Exact" => PathPattern::Exact(value),
        "RegularExpression" => PathPattern::Regex(value),
        _ if value.trim_end_matches('/').is_empty() => PathPattern::Any,
        _ => PathPattern::Segments(value.trim_end_matches('/').to_owned()),
    };
    PathMatch { pattern, ignore_case: false }
}

/// `{name, type, value}` of a header or a parameter.
fn named(node: &Node, what: &str, notes: &mut Notes) -> Option<(String, StringMatch)> {
    let mut fields = Fields::of(node, notes, what);
    let kind = fields.take("type").map_or("Exact", Node::text);
    let name = fields.take("name").and_then(|node| notes.text(node, "name"));
    let value = fields.take("value").and_then(|node| notes.text(node, "value")).unwrap_or_default();
    fields.finish(notes);
    if name.is_none() {
        notes.missing(node, "name");
    }
    let pattern = match kind {
        "Exact" => StringPattern::Exact(value),
        "RegularExpression" => {
            check_regex(&value, node, notes);
            StringPattern::Regex(value)
        }
        other => {
            notes.add(Reason::InvalidValue, node, other);
            StringPattern::Exact(value)
        }
    };
    Some((name?, StringMatch::new(pattern)))
}

fn check_regex(pattern: &str, node: &Node, notes: &mut Notes) {
    if let Err(error) = regexes::automaton(pattern) {
        notes.add(Reason::MatchRegex, node, format!("{pattern}: {error}"));
    }
}
