//! The program as text: `enter`, `host_of`, `routes_N` and `edit_N` in the order of the path of a request.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use serde::Serialize;
use underdeck_mesh_policy::evaluate::Sender;
use underdeck_mesh_policy::form::{
    Cluster, Discovery, Filter, HeaderEdits, HostPort, Listener, LoadBalancing, Origin, Placement, Policy, Reason,
    RuleId, Target, Unmatched, UpstreamProtocol,
};

use crate::abi;
use crate::automaton::Automata;
use crate::names::Names;
use crate::surplus::{Surplus, SurplusReason};
use crate::text::comment;

/// No program has more routes.
pub const ROUTES_MAX: usize = 2048;

/// No program has more domains.
pub(crate) const DOMAINS_MAX: usize = 16 * 1024;

/// What is known of the node when the program is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Who sends the requests.
    pub sender: Sender,
}

/// What the kernel may do with a request: the meaning of `ud_head.action`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Action {
    /// For people: `VirtualService default/reviews http[0] -> v1`.
    pub name: String,
    /// The rule that it came from.
    pub rule: Option<RuleId>,
    /// Where that is written.
    pub origin: Option<Origin>,
    /// To be applied to the response, in this order.
    pub response_edits: Vec<HeaderEdits>,
}

/// A program, and what its numbers mean.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Program {
    /// The routes that are in it.
    pub routes: usize,
    /// The rules that it enforces.
    pub rules: BTreeSet<RuleId>,
    /// C.
    #[serde(skip)]
    pub source: String,
    /// By their numbers.
    pub actions: Vec<Action>,
    /// Names of clusters, by their numbers.
    pub clusters: Vec<String>,
    /// What is left to Envoy.
    pub surplus: Vec<Surplus>,
}

/// Makes the program of one listener.
pub fn generate(policy: &Policy, listener: &Listener, node: &Node) -> Program {
    generate_within(policy, listener, node, ROUTES_MAX)
}

/// The same with fewer routes than [`ROUTES_MAX`]; the others are left to Envoy.
pub fn generate_within(policy: &Policy, listener: &Listener, node: &Node, routes_max: usize) -> Program {
    let mut maker = Maker {
        policy,
        listener,
        node,
        names: Names::new(),
        automata: Automata::default(),
        actions: Vec::new(),
        clusters: HashMap::new(),
        edits: Vec::new(),
        guards: Vec::new(),
        checks: Vec::new(),
        surplus: Vec::new(),
        routes_max: routes_max.min(ROUTES_MAX),
        written: 0,
        rules: BTreeSet::new(),
    };
    let denied = maker.action("authorization: denied".into(), None, None, Vec::new());
    let lost = maker.action("no route".into(), None, None, Vec::new());
    let enter = maker.enter(denied);
    let hosts = maker.hosts();
    let (routes, calls) = maker.routes(denied, lost);
    let (edits, edit_calls) = maker.edit_functions();
    let (guards, checks) = maker.guard_functions();
    let unmatched = match listener.unmatched {
        Unmatched::NotFound => format!("return answer(h, {lost}), 0;"),
        Unmatched::OriginalDestination => "return envoy(h), 0;".to_owned(),
    };
    let mut source = format!(
        "/* Made by Underdeck from the policies of the listener {}. Do not edit. */\n#include \"forward.bpf.h\"\n#include \
         \"trial.bpf.h\"\n#include \"decision.bpf.h\"\n\n",
        comment(&listener.name)
    );
    source.push_str(&maker.names.source());
    source.push_str(&maker.automata.source());
    let _ = write!(
        source,
        "{enter}{hosts}{guards}{routes}{edits}apart int decide(struct ud_head *h never_null)\n{{\n\tint host;\n\n\tif (enter(h))\n\t\treturn 0;\n\
         \thost = host_of(h);\n\tif (host == -2)\n\t\treturn 0;\n\tif (host < 0)\n\t\t{unmatched}\n{calls}\treturn 0;\nrouted:\n\
         \tif (h->verdict != UD_FORWARD)\n\t\treturn 0;\n{edit_calls}{checks}\treturn 0;\n}}\n"
    );
    let mut clusters: Vec<_> = maker.clusters.into_iter().collect();
    clusters.sort_by_key(|(_, index)| *index);
    let clusters = clusters.into_iter().map(|(name, _)| name).collect();
    Program {
        routes: maker.written,
        rules: maker.rules,
        source,
        actions: maker.actions,
        clusters,
        surplus: maker.surplus,
    }
}

/// What one program is made with.
pub(crate) struct Maker<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) listener: &'a Listener,
    pub(crate) node: &'a Node,
    pub(crate) names: Names,
    pub(crate) automata: Automata,
    actions: Vec<Action>,
    clusters: HashMap<String, usize>,
    /// Code that edits heads, by action.
    pub(crate) edits: Vec<(usize, String)>,
    /// Code that asks the policies of a workload.
    pub(crate) guards: Vec<String>,
    /// Guards that see the edited head, by action.
    pub(crate) checks: Vec<(usize, usize)>,
    surplus: Vec<Surplus>,
    pub(crate) routes_max: usize,
    /// Routes that are in the program.
    pub(crate) written: usize,
    /// Rules that are in the program.
    pub(crate) rules: BTreeSet<RuleId>,
}

impl Maker<'_> {
    /// A number for an action.
    pub(crate) fn action(
        &mut self,
        name: String,
        rule: Option<RuleId>,
        origin: Option<Origin>,
        response_edits: Vec<HeaderEdits>,
    ) -> usize {
        self.actions.push(Action { name, rule, origin, response_edits });
        self.actions.len() - 1
    }

    pub(crate) fn actions_left(&self) -> usize {
        (abi::UD_ACTIONS_MAX as usize).saturating_sub(self.actions.len())
    }

    /// A number for a cluster.
    pub(crate) fn cluster(&mut self, name: &str) -> Result<usize, SurplusReason> {
        let cluster = self.policy.cluster(name).filter(|cluster| self.in_kernel(cluster));
        if cluster.is_none() {
            return Err(SurplusReason::Cluster);
        }
        if let Some(index) = self.clusters.get(name) {
            return Ok(*index);
        }
        let index = self.clusters.len();
        if index >= abi::UD_CLUSTERS_MAX as usize {
            return Err(SurplusReason::TooManyClusters);
        }
        self.clusters.insert(name.to_owned(), index);
        self.rules.extend(cluster.iter().flat_map(|cluster| &cluster.rules));
        Ok(index)
    }

    fn in_kernel(&self, cluster: &Cluster) -> bool {
        let balanced = matches!(
            cluster.balancing,
            LoadBalancing::RoundRobin | LoadBalancing::LeastRequest { .. } | LoadBalancing::Random
        );
        let rules = cluster.rules.iter().all(|rule| self.policy.rule(*rule).own_placement() == Placement::Kernel);
        let workload = cluster.workload.as_ref();
        let filtered = self.filtered(|target| workload.is_some_and(|workload| target.selects_workload(workload)));
        balanced
            && rules
            && !filtered
            && cluster.protocol == UpstreamProtocol::Http1
            && cluster.discovery != Discovery::OriginalDestination
    }

    /// Whether a filter that is Envoy's stands in the way of some targets.
    pub(crate) fn filtered(&self, wanted: impl Fn(&Target) -> bool) -> bool {
        let envoys = |filter: &&Filter| {
            wanted(&filter.target) && self.policy.rule(filter.rule).own_placement() == Placement::Envoy
        };
        self.policy.filters.iter().any(|filter| envoys(&filter))
    }

    pub(crate) fn give_up(&mut self, origin: &Origin, reason: SurplusReason) {
        self.surplus.push(Surplus { origin: origin.clone(), reason });
    }

    /// What holds for all requests of the listener.
    fn enter(&mut self, denied: usize) -> String {
        let mut out = String::from(
            "/* What holds for every request of the listener. 1: decided. */\n\
             apart int enter(struct ud_head *h never_null)\n{\n",
        );
        let listener = self.listener;
        let domains: usize = listener.virtual_hosts.iter().map(|host| host.domains.len()).sum();
        if domains > DOMAINS_MAX {
            self.give_up(&listener.origin, SurplusReason::TooManyDomains);
            let _ = writeln!(out, "\treturn envoy(h); /* {} */\n}}\n", SurplusReason::TooManyDomains);
            return out;
        }
        if self.filtered(|target| target.selects_listener(listener)) {
            out.push_str("\treturn envoy(h); /* a filter that needs Envoy */\n}\n\n");
            return out;
        }
        match listener.options.host_port {
            HostPort::Keep => {}
            HostPort::Ignore => out.push_str("\tif (!without_port(h))\n\t\treturn envoy(h);\n"),
            HostPort::StripMatching | HostPort::StripAny => {
                out.push_str("\tif (has_port(h))\n\t\treturn envoy(h); /* the port would be taken off */\n");
            }
        }
        let policies: Vec<_> = self.policy.authorization_of_listener(listener).collect();
        out.push_str(&self.access(&policies, denied, "\t"));
        out.push_str("\treturn 0;\n}\n\n");
        out
    }

    /// The reason of a rule that is placed in Envoy, for a comment.
    pub(crate) fn placed_in_envoy(&self, rule: Option<RuleId>) -> Option<Reason> {
        let rule = self.policy.rule(rule?);
        rule.findings.iter().chain(&rule.inherited).next().map(|finding| finding.reason)
    }
}
