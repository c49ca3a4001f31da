//! What Envoy would do with one request: the oracle for the compiler, and what `mesh explain` prints.
//!
//! Where chance decides (weights, faults), every outcome is there with its share. What only Envoy knows (a claim of a
//! token, the labels of the sender) makes an outcome unknown, never a guess.

mod access;
mod answer;
mod headers;
mod host;
mod matching;
mod path;
mod request;
mod rewrite;
mod route;

pub use headers::apply;
pub use path::{BadPath, normalize};
pub use request::{Identity, ParseError, Request, Sender, parse};

use serde::Serialize;

use crate::form::{HeaderEdits, Listener, Origin, Policy, RuleId};

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// What was decided on the way, in order.
    pub steps: Vec<Step>,
    /// What may happen, each with its share of all shares.
    pub outcomes: Vec<(u64, Outcome)>,
}

/// One thing that was decided.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// The rule that decided it, if one did.
    pub rule: Option<RuleId>,
    /// Where that is written.
    pub origin: Option<Origin>,
    /// For people: `virtual host default/reviews`.
    pub what: String,
}

/// How a request ends.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It goes to a cluster.
    Forward(Upstream),
    /// It is answered.
    Answer(Answer),
    /// It goes on unchanged to where the connection was meant to go.
    OriginalDestination,
    /// Only Envoy knows.
    Unknown {
        /// What it is that is not known.
        what: String,
    },
}

/// A request as the upstream receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Upstream {
    /// Name of the cluster.
    pub cluster: String,
    /// The path with the query.
    pub path: String,
    /// The authority.
    pub authority: String,
    /// Without pseudo-headers and `host`; names in lower case.
    pub headers: Vec<(String, String)>,
    /// To be applied to the response, in this order; see [`apply`].
    pub response_edits: Vec<HeaderEdits>,
}

/// An answer without an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Those that the policy determines; `content-length`, `date` and `server` are not among them.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Answer {
    /// A status and a body in plain text.
    pub(crate) fn plain(status: u16, body: &str) -> Self {
        let headers = if body.is_empty() { Vec::new() } else { vec![("content-type".into(), "text/plain".into())] };
        Self { status, headers, body: body.to_owned() }
    }
}

/// Evaluates a request at a listener.
pub fn evaluate(policy: &Policy, listener: &Listener, request: &Request) -> Decision {
    let mut steps = Vec::new();
    let outcomes = route::decide(policy, listener, request, &mut steps);
    Decision { steps, outcomes }
}
