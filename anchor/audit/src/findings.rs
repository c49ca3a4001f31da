//! Collects findings and what they mean for the plan.

use std::collections::{BTreeSet, HashMap};

use crate::Options;
use crate::address::Address;
use crate::codes::{self, Code};
use crate::kind::ProxyKind;
use crate::plan::Plan;
use crate::position::Position;
use crate::report::{Direction, Finding, Outcome, Report, Route, Severity};

/// Something that a rule found: a code and the place of the directive.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    pub(crate) code: &'static str,
    pub(crate) at: Position,
    pub(crate) directive: String,
    pub(crate) reach: Reach,
}

/// Whose payload a hit is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// That of the route it was found on.
    Route,
    /// Requests of that route, and responses from any server: code can open connections that no route names.
    AnyUpstream,
    /// All payload of the program.
    Everything,
}

impl Hit {
    pub(crate) fn new(code: &'static str, at: &Position, directive: impl Into<String>) -> Self {
        Self { code, at: at.clone(), directive: shorten(&directive.into()), reach: Reach::Route }
    }

    /// The same with another reach.
    pub(crate) fn reaching(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }
}

/// A route as a reader of configurations describes it.
pub(crate) struct RouteParts {
    pub(crate) scope: String,
    pub(crate) at: Position,
    pub(crate) listeners: Vec<Address>,
    pub(crate) upstreams: Vec<Address>,
}

/// Grows into a [`Report`].
pub(crate) struct Collector {
    tls_is_visible: bool,
    findings: Vec<Finding>,
    seen: HashMap<(&'static str, Position), usize>,
    routes: Vec<Route>,
    plan: Plan,
}

impl Collector {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            tls_is_visible: options.tls_is_visible,
            findings: Vec::new(),
            seen: HashMap::new(),
            routes: Vec::new(),
            plan: Plan::default(),
        }
    }

    /// Adds a route with everything that was found on it.
    pub(crate) fn route(&mut self, parts: RouteParts, hits: Vec<Hit>) {
        let mut route = Route {
            scope: parts.scope,
            file: parts.at.file.to_string(),
            line: parts.at.line,
            col: parts.at.col,
            listeners: dedup(parts.listeners),
            upstreams: dedup(parts.upstreams),
            requests: Outcome::Untouched,
            responses: Outcome::Untouched,
            findings: Vec::new(),
        };
        for hit in hits {
            let index = self.finding(&hit, &route.scope);
            let (direction, outcome) = (self.findings[index].direction, self.findings[index].outcome);
            // Files for slow clients take what is over; the rest of the route's payload stays in the kernel.
            let partly = outcome == Outcome::Materialised && self.findings[index].severity == Severity::Note;
            if direction.has_requests() && !partly {
                route.requests = route.requests.max(outcome);
            }
            if direction.has_responses() && !partly {
                route.responses = route.responses.max(outcome);
            }
            if !route.findings.contains(&index) {
                route.findings.push(index);
            }
            if outcome >= Outcome::LeftOut {
                self.leave_out(direction, hit.reach, &route.listeners, &route.upstreams);
            }
        }
        self.routes.push(route);
    }

    /// Adds a finding that belongs to no single route, with the addresses that it is about.
    pub(crate) fn beside_routes(&mut self, hit: &Hit, scope: &str, listeners: &[Address], upstreams: &[Address]) {
        let index = self.finding(hit, scope);
        let (direction, outcome) = (self.findings[index].direction, self.findings[index].outcome);
        if outcome >= Outcome::LeftOut {
            self.leave_out(direction, hit.reach, listeners, upstreams);
        }
    }

    pub(crate) fn finish(mut self, kind: ProxyKind, files: Vec<String>) -> Report {
        let place = |f: &Finding| (f.file.clone(), f.line, f.col, f.code);
        let order_of = |file: &str| files.iter().position(|f| f == file);
        let mut order: Vec<usize> = (0..self.findings.len()).collect();
        order.sort_by_key(|&i| (order_of(&self.findings[i].file), place(&self.findings[i])));
        let mut moved_to = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            moved_to[old] = new;
        }
        for route in &mut self.routes {
            route.findings = route.findings.iter().map(|&old| moved_to[old]).collect();
            route.findings.sort_unstable();
            // The engine goes by address: what another route leaves out is left out here too.
            if route.listeners.iter().any(|a| !self.plan.may_anchor_requests(a)) {
                route.requests = route.requests.max(Outcome::LeftOut);
            }
            if route.upstreams.iter().any(|a| !self.plan.may_anchor_responses(a)) {
                route.responses = route.responses.max(Outcome::LeftOut);
            }
        }
        let findings = order.iter().map(|&old| self.findings[old].clone()).collect();
        Report { kind, files, findings, routes: self.routes, plan: self.plan }
    }

    fn finding(&mut self, hit: &Hit, scope: &str) -> usize {
        let code = codes::find(hit.code);
        let outcome = if code.tls && !self.tls_is_visible { Outcome::LeftOut } else { code.outcome };
        let key = (hit.code, hit.at.clone());
        if let Some(&index) = self.seen.get(&key) {
            return index;
        }
        self.findings.push(Finding {
            code: code.id,
            severity: severity(code),
            outcome,
            direction: code.direction,
            file: hit.at.file.to_string(),
            line: hit.at.line,
            col: hit.at.col,
            directive: hit.directive.clone(),
            scope: scope.to_owned(),
            message: code.message,
            advice: code.advice,
        });
        self.seen.insert(key, self.findings.len() - 1);
        self.findings.len() - 1
    }

    fn leave_out(&mut self, direction: Direction, reach: Reach, listeners: &[Address], upstreams: &[Address]) {
        let every = [Address::Every];
        let listeners = if reach == Reach::Everything { &every } else { listeners };
        let upstreams = if reach == Reach::Route { upstreams } else { &every };
        if direction.has_requests() {
            listeners.iter().for_each(|a| self.plan.leave_out_requests(a.clone()));
        }
        if direction.has_responses() {
            upstreams.iter().for_each(|a| self.plan.leave_out_responses(a.clone()));
        }
    }
}

fn severity(code: &Code) -> Severity {
    match code.outcome {
        Outcome::Refused => Severity::Error,
        _ if code.note => Severity::Note,
        _ => Severity::Warning,
    }
}

fn dedup(addresses: Vec<Address>) -> Vec<Address> {
    let mut seen = BTreeSet::new();
    addresses.into_iter().filter(|a| seen.insert(a.clone())).collect()
}

/// Keeps a directive's text readable in a table.
fn shorten(text: &str) -> String {
    const LONGEST: usize = 60;
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if one_line.chars().count() <= LONGEST {
        return one_line;
    }
    one_line.chars().take(LONGEST - 1).chain(['…']).collect()
}
