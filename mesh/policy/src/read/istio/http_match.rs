//! `HTTPMatchRequest` of a VirtualService.

use crate::form::{
    HeaderMatch, HeaderPattern, PathMatch, PathPattern, QueryMatch, Reason, RequestMatch, StringMatch, StringPattern,
};
use crate::read::fields::{Fields, Notes};
use crate::read::yaml::Node;
use crate::regexes;

/// One match, and the gateways that it names.
pub(super) fn read(node: &Node, notes: &mut Notes) -> (RequestMatch, Option<Vec<String>>) {
    let mut fields = Fields::of(node, notes, "match");
    fields.pass_over(&["name", "statPrefix"]);
    let mut matching = RequestMatch::default();
    let ignore_case = fields.take("ignoreUriCase").and_then(|node| notes.boolean(node, "ignoreUriCase"));
    if let Some(uri) = fields.take("uri") {
        matching.path = path(uri, ignore_case.unwrap_or(false), notes);
    }
    matching.scheme = fields.take("scheme").and_then(|node| string(node, "scheme", notes));
    matching.method = fields.take("method").and_then(|node| string(node, "method", notes));
    matching.authority = fields.take("authority").and_then(|node| string(node, "authority", notes));
    for (name, value) in fields.take("headers").map_or(&[][..], Node::members) {
        header(&mut matching, name, value, false, notes);
    }
    for (name, value) in fields.take("withoutHeaders").map_or(&[][..], Node::members) {
        header(&mut matching, name, value, true, notes);
    }
    if let Some(query) = fields.take("queryParams") {
        notes.add(Reason::MatchQuery, query, "queryParams");
        let parameter = |(name, value): &(Node, Node)| QueryMatch {
            name: name.text().to_owned(),
            value: string(value, "queryParams", &mut Notes::new(&notes.at(name).file)),
        };
        matching.query = query.members().iter().map(parameter).collect();
    }
    if let Some(port) = fields.take("port") {
        matching.ports.extend(notes.integer::<u16>(port, "port"));
    }
    if let Some(labels) = fields.take("sourceLabels") {
        notes.add(Reason::MatchSourceLabels, labels, "sourceLabels");
        matching.source.labels = notes.labels(labels, "sourceLabels").into_iter().collect();
    }
    matching.source.namespace = fields.take("sourceNamespace").and_then(|node| notes.text(node, "sourceNamespace"));
    let gateways = fields.take("gateways").map(|node| notes.texts(node, "gateways"));
    fields.finish(notes);
    (matching, gateways)
}

fn path(node: &Node, ignore_case: bool, notes: &mut Notes) -> PathMatch {
    let pattern = match string(node, "uri", notes).map(|string| string.pattern) {
        Some(StringPattern::Exact(text)) => PathPattern::Exact(text),
        Some(StringPattern::Prefix(text)) => PathPattern::Prefix(text),
        Some(StringPattern::Regex(text)) => return PathMatch { pattern: PathPattern::Regex(text), ignore_case: false },
        _ => PathPattern::Any,
    };
    PathMatch { pattern, ignore_case }
}

/// `{exact: …}`, `{prefix: …}` or `{regex: …}`; None: any value.
fn string(node: &Node, what: &str, notes: &mut Notes) -> Option<StringMatch> {
    let mut fields = Fields::of(node, notes, what);
    let mut patterns = Vec::new();
    if let Some(text) = fields.take("exact").and_then(|node| notes.text(node, what)) {
        patterns.push(StringPattern::Exact(text));
    }
    if let Some(text) = fields.take("prefix").and_then(|node| notes.text(node, what)) {
        patterns.push(StringPattern::Prefix(text));
    }
    if let Some(node) = fields.take("regex") {
        // Istio takes a lone star for "is there".
        let pattern = notes.text(node, what).filter(|text| text != "*");
        if let Some(Err(error)) = pattern.as_deref().map(regexes::automaton) {
            notes.add(Reason::MatchRegex, node, format!("{what}: {error}"));
        }
        patterns.extend(pattern.map(StringPattern::Regex));
    }
    fields.finish(notes);
    if patterns.len() > 1 {
        notes.add(Reason::InvalidValue, node, format!("{what}: one of exact, prefix and regex is expected here"));
    }
    patterns.into_iter().next().map(StringMatch::new)
}

fn header(matching: &mut RequestMatch, name: &Node, value: &Node, without: bool, notes: &mut Notes) {
    let lower = name.text().to_ascii_lowercase();
    let pattern = string(value, name.text(), notes);
    match (lower.as_str(), pattern.clone(), without) {
        // Istio writes these as headers of the request, too.
        (":method", Some(pattern), false) if matching.method.is_none() => matching.method = Some(pattern),
        (":authority" | "host", Some(pattern), false) if matching.authority.is_none() => {
            matching.authority = Some(pattern);
        }
        (other, ..) if other.starts_with(':') || other == "host" => {
            notes.add(Reason::MatchOther, name, name.text());
        }
        _ => {
            let is_value = pattern.is_some();
            let pattern = pattern.map_or(HeaderPattern::Present, HeaderPattern::Value);
            let missing_is_empty = without && is_value;
            matching.headers.push(HeaderMatch { name: lower, pattern, invert: without, missing_is_empty });
        }
    }
}
