//! New paths and authorities.

use super::matching::Current;
use super::path::split_query;
use crate::form::{PathMatch, PathPattern, PathRewrite};
use crate::regexes;

/// The path (with the query) after a rewrite; None: only Envoy knows.
pub(super) fn path(rewrite: &PathRewrite, matched: &PathMatch, path_and_query: &str) -> Option<String> {
    let (path, query) = split_query(path_and_query);
    let new = match rewrite {
        PathRewrite::Matched(replacement) => {
            let len = match &matched.pattern {
                PathPattern::Prefix(prefix) | PathPattern::Segments(prefix) => prefix.len(),
                // Envoy writes "every path" as the prefix `/`.
                PathPattern::Any => 1,
                PathPattern::Exact(_) | PathPattern::Regex(_) => path.len(),
            };
            format!("{replacement}{}", path.get(len..).unwrap_or(""))
        }
        PathRewrite::Segments(replacement) => {
            let len = if let PathPattern::Segments(prefix) = &matched.pattern { prefix.len() } else { 0 };
            let rest = path.get(len..).unwrap_or("");
            let start = replacement.trim_end_matches('/');
            if start.is_empty() { format!("/{}", rest.trim_start_matches('/')) } else { format!("{start}{rest}") }
        }
        PathRewrite::Whole(path) => path.clone(),
        PathRewrite::Regex { pattern, substitution } => {
            let regex = regexes::part(pattern).ok()?;
            // `\1` of RE2 is `${1}` here.
            let mut template = substitution.replace('$', "$$");
            for digit in 0..10 {
                template = template.replace(&format!("\\{digit}"), &format!("${{{digit}}}"));
            }
            String::from_utf8(regex.replace_all(path.as_bytes(), template.as_bytes()).into_owned()).ok()?
        }
    };
    Some(new + query)
}

/// A changed request: its path.
pub(super) fn apply(current: &mut Current<'_>, rewrite: &PathRewrite, matched: &PathMatch) -> bool {
    match path(rewrite, matched, &current.path) {
        Some(path) => {
            current.path = path;
            true
        }
        None => false,
    }
}
