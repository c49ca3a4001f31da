//! Which requests a route is for.

use serde::Serialize;

/// All parts must hold; parts that are empty always do.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RequestMatch {
    /// The path without the query.
    pub path: PathMatch,
    /// `:method`. Exact matches have case.
    pub method: Option<StringMatch>,
    /// `:authority` as forwarded (port included unless it was stripped).
    pub authority: Option<StringMatch>,
    /// `:scheme`.
    pub scheme: Option<StringMatch>,
    /// All of them.
    pub headers: Vec<HeaderMatch>,
    /// All of them.
    pub query: Vec<QueryMatch>,
    /// The port that the connection was made to is one of these.
    pub ports: Vec<u16>,
    /// Who sends.
    pub source: SourceMatch,
}

/// A match of the path without its query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PathMatch {
    /// What it is compared with.
    pub pattern: PathPattern,
    /// ASCII case is ignored (exact and prefix only; Envoy's `case_sensitive: false`).
    pub ignore_case: bool,
}

/// What a path is compared with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathPattern {
    /// Every path.
    #[default]
    Any,
    /// The whole path.
    Exact(String),
    /// Its first characters, wherever they end: `/api` takes `/apis`. (Istio's and Envoy's `prefix`.)
    Prefix(String),
    /// Whole segments: `/api` takes `/api` and `/api/x`, not `/apis`. Without a slash at the end. (Gateway API's
    /// `PathPrefix`, Envoy's `path_separated_prefix`.)
    Segments(String),
    /// The whole path matches this RE2 expression.
    Regex(String),
}

/// A match of a string.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StringMatch {
    /// What it is compared with.
    pub pattern: StringPattern,
    /// ASCII case is ignored; never with [`StringPattern::Regex`].
    pub ignore_case: bool,
}

/// What a string is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StringPattern {
    /// The whole string.
    Exact(String),
    /// How it begins.
    Prefix(String),
    /// How it ends.
    Suffix(String),
    /// What occurs in it.
    Contains(String),
    /// The whole string matches this RE2 expression.
    Regex(String),
}

impl StringMatch {
    /// With case.
    pub fn new(pattern: StringPattern) -> Self {
        Self { pattern, ignore_case: false }
    }

    /// The whole string, with case.
    pub fn exact(text: impl Into<String>) -> Self {
        Self::new(StringPattern::Exact(text.into()))
    }
}

/// A match of one header of the request.
///
/// Of several headers of one name, each value is compared by itself, and one that holds is enough; turned round, none
/// may hold. (Envoy 1.40, in routes and in RBAC. Earlier versions joined the values by commas.)
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeaderMatch {
    /// In lower case.
    pub name: String,
    /// What its value is compared with.
    pub pattern: HeaderPattern,
    /// The result is turned round. A header that is missing never matches a pattern of the value, turned round or
    /// not, unless `missing_is_empty`.
    pub invert: bool,
    /// A header that is missing is compared like one with an empty value.
    pub missing_is_empty: bool,
}

/// What a header is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeaderPattern {
    /// It is there, with whatever value.
    Present,
    /// Its value.
    Value(StringMatch),
    /// Its value is a decimal integer of this range (the end is not in it).
    Range {
        /// First.
        start: i64,
        /// One past the last.
        end: i64,
    },
}

/// A match of one parameter of the query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueryMatch {
    /// Its name, with case.
    pub name: String,
    /// Its first value, not decoded; None: it is there.
    pub value: Option<StringMatch>,
}

/// Who sends a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SourceMatch {
    /// The namespace of the sending workload.
    pub namespace: Option<String>,
    /// Labels that the sending workload has.
    pub labels: Vec<(String, String)>,
}

impl SourceMatch {
    /// Whether it takes every sender.
    pub fn is_any(&self) -> bool {
        self.namespace.is_none() && self.labels.is_empty()
    }
}
