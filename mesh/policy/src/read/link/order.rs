//! The Gateway API's order of routes: who says more comes first.

use std::cmp::Reverse;

use crate::form::{PathPattern, Route};

/// Exact paths, then regular expressions, then longer prefixes; then a method; then more headers; then more
/// parameters. The order of documents decides between equals.
pub(super) fn sort(routes: &mut [Route]) {
    routes.sort_by_cached_key(|route| {
        let matching = &route.matching;
        let (kind, len) = match &matching.path.pattern {
            PathPattern::Exact(path) => (3, path.len()),
            PathPattern::Regex(regex) => (2, regex.len()),
            PathPattern::Prefix(path) | PathPattern::Segments(path) => (1, path.len()),
            PathPattern::Any => (1, 1),
        };
        Reverse((kind, len, matching.method.is_some(), matching.headers.len(), matching.query.len()))
    });
}
