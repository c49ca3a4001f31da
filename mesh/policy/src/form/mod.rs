//! The intermediate form: what all dialects are read into, and all that the compiler and the evaluator know.
//!
//! The life of a request, and the files of this folder in that order:
//!
//! 1. [`Listener`]: the normalised path and authority, then the authorization policies that target the listener.
//! 2. [`VirtualHost`] by authority: exact name, then the longest `*.suffix`, then the longest `prefix.*`, then `*`.
//! 3. [`Route`]: the first one whose [`RequestMatch`] holds.
//! 4. [`Fault`], then the [`Action`]: forward, redirect or answer directly; edits of headers, path and authority.
//! 5. [`Cluster`]: one of its endpoints. If its workload is known, the authorization policies that select the
//!    workload see the request as the upstream would receive it, after all edits.
//!
//! Everything carries the [`RuleId`] of the rule that it came from; [`Policy::rules`] says what each rule is, where
//! it stands and whether it is enforced by the kernel.

mod action;
mod authorization;
mod cluster;
mod filter;
mod listener;
mod matching;
mod origin;
mod rule;

pub use action::{
    Abort, Action, AuthorityRewrite, Cors, Delay, DirectResponse, Fault, Forward, HeaderEdit, HeaderEditMode,
    HeaderEdits, Mirror, PathRewrite, PerMillion, Redirect, RedirectPath, Retry, WeightedTarget,
};
pub use authorization::{Attribute, Authorization, AuthorizationAction, AuthorizationRule, Condition, IpBlock};
pub use cluster::{
    Cluster, Discovery, Endpoint, LoadBalancing, OutlierDetection, PoolLimits, Subset, UpstreamProtocol,
};
pub use filter::{Filter, FilterKind};
pub use listener::{
    EscapedSlashes, HostPort, HttpOptions, Listener, ListenerKind, Route, Target, Unmatched, VirtualHost, Workload,
};
pub use matching::{
    HeaderMatch, HeaderPattern, PathMatch, PathPattern, QueryMatch, RequestMatch, SourceMatch, StringMatch,
    StringPattern,
};
pub use origin::Origin;
pub use rule::{Finding, Placement, Reason, Rule, RuleId, RuleKind};

use serde::Serialize;

/// One set of policies, read and linked.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Policy {
    /// Where requests come in: `mesh` for the processes of the node, one per gateway, one per listener of Envoy.
    pub listeners: Vec<Listener>,
    /// Everything that routes lead to. Names are unique.
    pub clusters: Vec<Cluster>,
    /// Who may do what, of listeners and of workloads.
    pub authorization: Vec<Authorization>,
    /// What stands in the way of requests besides routes: JWT, external authorization, code, rate limits.
    pub filters: Vec<Filter>,
    /// All rules, in the order of the documents; a [`RuleId`] is an index into it.
    pub rules: Vec<Rule>,
}

impl Policy {
    /// The rule with this name.
    ///
    /// # Panics
    ///
    /// If the id is of another policy.
    pub fn rule(&self, id: RuleId) -> &Rule {
        &self.rules[id.0 as usize]
    }

    /// The listener with this name.
    pub fn listener(&self, name: &str) -> Option<&Listener> {
        self.listeners.iter().find(|listener| listener.name == name)
    }

    /// The cluster with this name.
    pub fn cluster(&self, name: &str) -> Option<&Cluster> {
        self.clusters.iter().find(|cluster| cluster.name == name)
    }

    /// The authorization policies that a listener applies before it routes.
    pub fn authorization_of_listener<'a>(
        &'a self,
        listener: &'a Listener,
    ) -> impl Iterator<Item = &'a Authorization> + 'a {
        self.authorization.iter().filter(move |policy| policy.target.selects_listener(listener))
    }

    /// The authorization policies that a workload applies to requests that reach it.
    pub fn authorization_of_workload<'a>(
        &'a self,
        workload: &'a Workload,
    ) -> impl Iterator<Item = &'a Authorization> + 'a {
        self.authorization.iter().filter(move |policy| policy.target.selects_workload(workload))
    }
}
