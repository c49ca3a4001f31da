//! Whether a request matches. `None` means that only Envoy knows.

use super::Request;
use super::path::split_query;
use crate::form::{HeaderMatch, HeaderPattern, PathMatch, PathPattern, RequestMatch, StringMatch, StringPattern};
use crate::regexes;

/// A request on its way: path and authority as they are now.
#[derive(Debug, Clone)]
pub(super) struct Current<'a> {
    pub(super) request: &'a Request,
    /// With the query.
    pub(super) path: String,
    pub(super) authority: String,
    pub(super) headers: Vec<(String, String)>,
}

impl Current<'_> {
    pub(super) fn path_only(&self) -> &str {
        split_query(&self.path).0
    }
}

/// All of them must hold: a certain no outweighs what is not known.
pub(super) fn all(parts: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let mut known = Some(true);
    for part in parts {
        match part {
            Some(false) => return Some(false),
            Some(true) => {}
            None => known = None,
        }
    }
    known
}

/// One of them must hold: a certain yes outweighs what is not known.
pub(super) fn any(parts: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    all(parts.into_iter().map(|part| part.map(|holds| !holds))).map(|none| !none)
}

pub(super) fn route(matching: &RequestMatch, current: &Current<'_>) -> Option<bool> {
    let of = |pattern: &Option<StringMatch>, text: &str| {
        pattern.as_ref().map_or(Some(true), |pattern| string(pattern, text))
    };
    let source = &current.request.source;
    let mut parts = vec![
        path(&matching.path, current.path_only()),
        of(&matching.method, &current.request.method),
        of(&matching.authority, &current.authority),
        of(&matching.scheme, "http"),
        Some(matching.ports.is_empty() || matching.ports.contains(&current.request.destination.1)),
    ];
    parts.extend(matching.headers.iter().map(|matching| header(matching, current)));
    parts.extend(matching.query.iter().map(|matching| query(&matching.name, matching.value.as_ref(), &current.path)));
    if let Some(namespace) = &matching.source.namespace {
        parts.push(source.identity.as_ref().map(|identity| identity.namespace() == Some(namespace)));
    }
    for (name, value) in &matching.source.labels {
        parts.push(source.labels.as_ref().map(|labels| labels.get(name) == Some(value)));
    }
    all(parts)
}

fn path(matching: &PathMatch, path: &str) -> Option<bool> {
    let fold = |text: &str| if matching.ignore_case { text.to_ascii_lowercase() } else { text.to_owned() };
    Some(match &matching.pattern {
        PathPattern::Any => true,
        PathPattern::Exact(wanted) => fold(path) == fold(wanted),
        PathPattern::Prefix(prefix) => fold(path).starts_with(&fold(prefix)),
        PathPattern::Segments(prefix) => {
            let rest = fold(path).strip_prefix(&fold(prefix)).map(str::to_owned);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        PathPattern::Regex(pattern) => return regex(pattern, path),
    })
}

/// None if the expression is one that engines read differently, or the subject is not ASCII.
fn regex(pattern: &str, subject: &str) -> Option<bool> {
    let regex = regexes::whole(pattern).ok()?;
    subject.is_ascii().then(|| regex.is_match(subject.as_bytes()))
}

pub(super) fn string(matching: &StringMatch, text: &str) -> Option<bool> {
    let fold = |text: &str| if matching.ignore_case { text.to_ascii_lowercase() } else { text.to_owned() };
    Some(match &matching.pattern {
        StringPattern::Exact(wanted) => fold(text) == fold(wanted),
        StringPattern::Prefix(prefix) => fold(text).starts_with(&fold(prefix)),
        StringPattern::Suffix(suffix) => fold(text).ends_with(&fold(suffix)),
        StringPattern::Contains(part) => fold(text).contains(&fold(part)),
        StringPattern::Regex(pattern) => return regex(pattern, text),
    })
}

pub(super) fn header(matching: &HeaderMatch, current: &Current<'_>) -> Option<bool> {
    let of_name = || current.headers.iter().filter(|(name, _)| *name == matching.name).map(|(_, value)| value.as_str());
    let mut values = match matching.name.as_str() {
        ":method" => vec![current.request.method.as_str()],
        ":authority" => vec![current.authority.as_str()],
        ":path" => vec![current.path.as_str()],
        _ => of_name().collect(),
    };
    if matching.pattern == HeaderPattern::Present {
        return Some(values.is_empty() == matching.invert);
    }
    if values.is_empty() {
        if !matching.missing_is_empty {
            return Some(false);
        }
        values.push("");
    }
    // One that holds is enough.
    let holds = |value: &&str| match &matching.pattern {
        HeaderPattern::Present => Some(true),
        HeaderPattern::Value(pattern) => string(pattern, value),
        HeaderPattern::Range { start, end } => Some(value.parse::<i64>().is_ok_and(|n| (*start..*end).contains(&n))),
    };
    let any = any(values.iter().map(holds))?;
    Some(any != matching.invert)
}

fn query(name: &str, wanted: Option<&StringMatch>, path: &str) -> Option<bool> {
    let text = split_query(path).1.trim_start_matches('?');
    let value = text.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).find(|(key, _)| *key == name);
    match (value, wanted) {
        (None, _) => Some(false),
        (Some(_), None) => Some(true),
        (Some((_, value)), Some(pattern)) => string(pattern, value),
    }
}
