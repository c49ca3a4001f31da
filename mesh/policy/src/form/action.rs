//! What happens to a request that a route took.

use std::time::Duration;

use serde::Serialize;

use super::matching::StringMatch;

/// What a route does.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// To a cluster.
    Forward(Box<Forward>),
    /// An answer with `location`.
    Redirect(Redirect),
    /// An answer without an upstream.
    Direct(DirectResponse),
    /// Something that only Envoy does (CONNECT, internal redirects …): the rule says what.
    Envoy,
}

/// Forwarding to one of some clusters.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Forward {
    /// At least one; a single one has the weight 1.
    pub targets: Vec<WeightedTarget>,
    /// The path that the upstream sees.
    pub path: Option<PathRewrite>,
    /// The authority that the upstream sees.
    pub authority: Option<AuthorityRewrite>,
    /// For the whole response; None: the dialect's default (Istio and Gateway API: none, Envoy: 15 s). Zero: none.
    pub timeout: Option<Duration>,
    /// Requests that failed are sent again.
    pub retry: Option<Retry>,
    /// Copies to other clusters.
    pub mirrors: Vec<Mirror>,
}

/// A cluster with its share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WeightedTarget {
    /// Name of the cluster.
    pub cluster: String,
    /// Its share of the sum of all weights.
    pub weight: u32,
    /// Edits of requests to it, before those of the route.
    pub request_headers: HeaderEdits,
    /// Edits of responses from it, before those of the route.
    pub response_headers: HeaderEdits,
}

/// A new path; the query stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathRewrite {
    /// The part of the path that matched (prefix), or all of it (any other match), is replaced by this.
    Matched(String),
    /// The segments that [`super::PathPattern::Segments`] matched are replaced by this, without slashes at its end; if
    /// nothing is left of it, by `/`, with all slashes that follow.
    Segments(String),
    /// The whole path becomes this.
    Whole(String),
    /// Every match of the RE2 expression is replaced; `\1` in the substitution is the first group.
    Regex {
        /// What is replaced.
        pattern: String,
        /// By what.
        substitution: String,
    },
}

/// A new authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthorityRewrite {
    /// This one.
    Literal(String),
    /// The host name of the endpoint (`auto_host_rewrite`).
    Endpoint,
    /// The value of this header, if it is there.
    Header(String),
}

/// Changes of headers. Removals come first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HeaderEdits {
    /// Names, in lower case.
    pub remove: Vec<String>,
    /// In order.
    pub add: Vec<HeaderEdit>,
}

impl HeaderEdits {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }
}

/// One header that is added or set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeaderEdit {
    /// In lower case.
    pub name: String,
    /// Literal; `%` commands of Envoy are not in it (they make the rule one for Envoy).
    pub value: String,
    /// What happens to one that is there.
    pub mode: HeaderEditMode,
}

/// What happens to a header that is already there. (Envoy's `append_action`.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeaderEditMode {
    /// It stays, another one of that name is added.
    Append,
    /// All of that name are replaced by one.
    Set,
    /// It stays, nothing is added.
    AddIfAbsent,
    /// All of that name are replaced by one; where there is none, nothing is added.
    SetIfPresent,
}

/// An answer that leads elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
    /// None: the request's.
    pub scheme: Option<String>,
    /// None: the request's.
    pub host: Option<String>,
    /// None: the request's port, unless scheme or host change: then none is named where the request's port is the
    /// default of its own scheme.
    pub port: Option<u16>,
    /// None: the request's.
    pub path: Option<RedirectPath>,
    /// The query is left out.
    pub strip_query: bool,
}

/// The path of a redirect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RedirectPath {
    /// This path; the request's query follows unless this has one itself.
    Whole(String),
    /// The request's, rewritten.
    Rewrite(PathRewrite),
}

/// An answer without an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DirectResponse {
    /// The status. With 201 and 3xx goes a `location`: the URI of the request.
    pub status: u16,
    /// The body; with one goes `content-type: text/plain` unless an edit sets another.
    pub body: String,
}

/// A share of requests, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PerMillion(pub u32);

impl PerMillion {
    /// Every request.
    pub const ALL: Self = Self(1_000_000);
}

/// Faults that are injected for tests.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Fault {
    /// An answer instead of the action.
    pub abort: Option<Abort>,
    /// A delay before the action.
    pub delay: Option<Delay>,
}

/// An answer instead of the action, with the body `fault filter abort`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Abort {
    /// The status.
    pub status: u16,
    /// The share of requests.
    pub share: PerMillion,
}

/// A delay before the action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Delay {
    /// How long.
    pub delay: Duration,
    /// The share of requests.
    pub share: PerMillion,
}

/// Sending failed requests again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Retry {
    /// After the first try.
    pub attempts: u32,
    /// Per try.
    pub per_try_timeout: Option<Duration>,
    /// Envoy's conditions, separated by commas.
    pub on: String,
}

/// Copies of requests whose responses are dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mirror {
    /// Name of the cluster.
    pub cluster: String,
    /// The share of requests.
    pub share: PerMillion,
}

/// Cross-origin resource sharing: preflights are answered, responses get headers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Cors {
    /// Origins that are let in.
    pub origins: Vec<StringMatch>,
    /// `access-control-allow-methods`.
    pub methods: Vec<String>,
    /// `access-control-allow-headers`.
    pub headers: Vec<String>,
    /// `access-control-expose-headers`.
    pub expose: Vec<String>,
    /// `access-control-max-age`.
    pub max_age: Option<Duration>,
    /// `access-control-allow-credentials`.
    pub credentials: bool,
}
