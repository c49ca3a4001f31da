//! `StringMatcher` and `HeaderMatcher`, old and new spellings.

use crate::form::{HeaderMatch, HeaderPattern, QueryMatch, Reason, StringMatch, StringPattern};
use crate::read::fields::{Fields, Notes};
use crate::read::yaml::Node;
use crate::regexes;

pub(super) fn string(node: &Node, notes: &mut Notes) -> Option<StringMatch> {
    let mut fields = Fields::of_proto(node, notes, "a string matcher");
    let ignore_case = fields.take("ignore_case").and_then(|node| notes.boolean(node, "ignore_case")).unwrap_or(false);
    let mut pattern = None;
    for (name, to) in PLAIN {
        pattern = pattern.or(fields.take(name).and_then(|node| notes.text(node, name)).map(*to));
    }
    for name in ["safe_regex", "regex"] {
        pattern = pattern.or(fields.take(name).and_then(|node| regex(node, notes)));
    }
    fields.envoy("custom", Reason::MatchOther, notes);
    fields.finish(notes);
    if pattern.is_none() {
        notes.missing(node, "a pattern");
    }
    Some(StringMatch { pattern: pattern?, ignore_case })
}

type ToPattern = fn(String) -> StringPattern;

const PLAIN: &[(&str, ToPattern)] = &[
    ("exact", StringPattern::Exact),
    ("prefix", StringPattern::Prefix),
    ("suffix", StringPattern::Suffix),
    ("contains", StringPattern::Contains),
];

const HEADER: &[(&str, ToPattern)] = &[
    ("exact_match", StringPattern::Exact),
    ("prefix_match", StringPattern::Prefix),
    ("suffix_match", StringPattern::Suffix),
    ("contains_match", StringPattern::Contains),
];

/// `{regex: …}`, or the expression alone as it was written earlier.
pub(super) fn regex(node: &Node, notes: &mut Notes) -> Option<StringPattern> {
    Some(StringPattern::Regex(expression(node, notes)?))
}

pub(super) fn expression(node: &Node, notes: &mut Notes) -> Option<String> {
    let mut pattern = node.text().to_owned();
    if !node.members().is_empty() {
        let mut fields = Fields::of_proto(node, notes, "regex");
        fields.pass_over(&["google_re2"]);
        pattern = fields.take("regex").and_then(|node| notes.text(node, "regex")).unwrap_or_default();
        fields.finish(notes);
    }
    if let Err(error) = regexes::automaton(&pattern) {
        notes.add(Reason::MatchRegex, node, format!("{pattern}: {error}"));
    }
    Some(pattern)
}

pub(super) fn header(node: &Node, notes: &mut Notes) -> Option<HeaderMatch> {
    let mut fields = Fields::of_proto(node, notes, "a header matcher");
    let name = fields.take("name").and_then(|node| notes.text(node, "name"));
    let mut invert = fields.take("invert_match").is_some_and(|node| node.text() == "true");
    let missing = fields.take("treat_missing_header_as_empty").is_some_and(|node| node.text() == "true");
    let mut pattern = None;
    for (name, to) in HEADER {
        let value = fields.take(name).and_then(|node| notes.text(node, name)).map(*to);
        pattern = pattern.or(value.map(|value| HeaderPattern::Value(StringMatch::new(value))));
    }
    for name in ["safe_regex_match", "regex_match"] {
        let value = fields.take(name).and_then(|node| regex(node, notes));
        pattern = pattern.or(value.map(|value| HeaderPattern::Value(StringMatch::new(value))));
    }
    pattern = pattern.or(fields.take("string_match").and_then(|node| string(node, notes)).map(HeaderPattern::Value));
    if let Some(node) = fields.take("range_match") {
        let mut bound = |name| node.get(name).map_or(Some(0), |node| notes.integer(node, name));
        let (start, end) = (bound("start"), bound("end"));
        pattern = Some(HeaderPattern::Range { start: start.unwrap_or(0), end: end.unwrap_or(0) });
    }
    if let Some(node) = fields.take("present_match") {
        invert ^= node.text() == "false";
        pattern = Some(HeaderPattern::Present);
    }
    fields.finish(notes);
    let Some(name) = name else {
        notes.missing(node, "name");
        return None;
    };
    let pattern = pattern.unwrap_or(HeaderPattern::Present);
    Some(HeaderMatch { name: name.to_ascii_lowercase(), pattern, invert, missing_is_empty: missing })
}

pub(super) fn query(node: &Node, notes: &mut Notes) -> QueryMatch {
    notes.add(Reason::MatchQuery, node, "query_parameters");
    let mut fields = Fields::of_proto(node, notes, "query_parameters");
    let name = fields.take("name").map_or("", Node::text).to_owned();
    let value = fields.take("string_match").and_then(|node| string(node, notes));
    fields.pass_over(&["present_match"]);
    fields.finish(notes);
    QueryMatch { name, value }
}
