//! What a check finds.

use serde::Serialize;

use crate::address::Address;
use crate::kind::ProxyKind;
use crate::plan::Plan;

/// What happens to payload; ordered from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It stays in the kernel.
    Untouched,
    /// The engine leaves the connection alone by itself, as it is encrypted or not HTTP/1: copied as without the engine.
    Passed,
    /// The engine sees where it goes and puts the real bytes back: correct, without a gain.
    Materialised,
    /// The listener or upstream server must not be anchored: copied as without the engine.
    LeftOut,
    /// The program must not be run under the engine.
    Refused,
}

/// Which payload a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Bodies of requests, received from clients.
    Requests,
    /// Bodies of responses, received from upstream servers.
    Responses,
    /// Both of them.
    Both,
}

impl Direction {
    pub(crate) fn has_requests(self) -> bool {
        self != Self::Responses
    }

    pub(crate) fn has_responses(self) -> bool {
        self != Self::Requests
    }
}

/// How much a finding wants attention; ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing looks at the payload, but (some of) it is copied all the same.
    Note,
    /// Something looks at the payload.
    Warning,
    /// The program must not be run under the engine without `--force`.
    Error,
}

/// One directive that touches payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable code, as in [`crate::CODES`].
    pub code: &'static str,
    /// How much it wants attention.
    pub severity: Severity,
    /// What happens to the payload.
    pub outcome: Outcome,
    /// Which payload.
    pub direction: Direction,
    /// The file as the configuration names it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub col: u32,
    /// The directive as written, shortened.
    pub directive: String,
    /// The first server, listener or route that it applies to.
    pub scope: String,
    /// What it does to the payload.
    pub message: &'static str,
    /// What to do about it.
    pub advice: &'static str,
}

/// One way through the proxy: from listeners, by one location, backend or route, to upstream servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Route {
    /// Server and location, frontend and backend, or listener and route.
    pub scope: String,
    /// The file where it is defined.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub col: u32,
    /// Where clients connect to.
    pub listeners: Vec<Address>,
    /// Where responses come from; empty: the configuration does not say, or there is no upstream.
    pub upstreams: Vec<Address>,
    /// The worst that happens to bodies of requests. It may be worse than the route's own findings say, as the engine
    /// goes by address: a route that shares a listener or an upstream server with one that is left out is so too.
    pub requests: Outcome,
    /// The worst that happens to bodies of responses.
    pub responses: Outcome,
    /// Indices into [`Report::findings`].
    pub findings: Vec<usize>,
}

/// Everything that a check says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Which proxy the configuration is for.
    pub kind: ProxyKind,
    /// All files that were read, in order.
    pub files: Vec<String>,
    /// By position.
    pub findings: Vec<Finding>,
    /// Only those that proxy, or that something was found on.
    pub routes: Vec<Route>,
    /// For the engine.
    pub plan: Plan,
}

impl Report {
    /// Whether nothing looks at payload: there are no findings above [`Severity::Note`].
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|f| f.severity == Severity::Note)
    }

    /// Whether the program must not be run under the engine (without force).
    pub fn is_refused(&self) -> bool {
        self.findings.iter().any(|f| f.outcome == Outcome::Refused)
    }
}
