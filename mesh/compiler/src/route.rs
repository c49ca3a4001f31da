//! Routes: the first one that matches, its fault, its choice of a cluster.

use std::fmt::Write;

use underdeck_mesh_policy::form::{
    Action, AuthorityRewrite, Forward, HeaderEdits, PathRewrite, PerMillion, Placement, Redirect, RedirectPath, Route,
    Target, VirtualHost, WeightedTarget,
};

use crate::access::GUARDS;
use crate::source::Maker;
use crate::surplus::SurplusReason;
use crate::text::comment;

/// Routes in one function of C.
const CHUNK: usize = 64;

/// Functions of routes, as they are written.
#[derive(Default)]
struct Blocks {
    out: String,
    calls: String,
    /// Of the function that is written now: its text, its routes, its first and last virtual host.
    body: String,
    routes: usize,
    first: usize,
    last: usize,
    /// The last virtual host has not ended.
    is_open: bool,
    functions: usize,
}

impl Blocks {
    fn open(&mut self, index: usize, host: &VirtualHost) {
        if self.body.is_empty() {
            self.first = index;
        }
        let place = comment(&host.origin.to_string());
        let _ = writeln!(self.body, "\tif (host == {index}) {{ /* {} at {place} */", comment(&host.name));
        (self.last, self.is_open) = (index, true);
    }

    /// Ends the function.
    fn finish(&mut self) {
        if self.body.is_empty() {
            return;
        }
        if self.is_open {
            self.body.push_str("\t}\n");
        }
        let (function, first, last) = (self.functions, self.first, self.last);
        let _ = writeln!(
            self.out,
            "apart int routes_{function}(struct ud_head *h never_null, int host)\n{{\n{}\treturn 0;\n}}\n",
            self.body
        );
        let _ = writeln!(
            self.calls,
            "\tif (host >= {first} && host <= {last} && routes_{function}(h, host))\n\t\tgoto routed;"
        );
        self.body.clear();
        (self.routes, self.functions, self.is_open) = (0, function + 1, false);
    }

    /// Leaves the rest of this virtual host and all that follow to Envoy.
    fn give_up(mut self, index: usize) -> (String, String) {
        let reason = SurplusReason::TooManyRoutes;
        let _ = writeln!(self.body, "\t\treturn envoy(h); /* {reason} */");
        self.finish();
        let _ = writeln!(self.calls, "\tif (host > {index}) /* {reason} */\n\t\tenvoy(h);");
        (self.out, self.calls)
    }
}

impl Maker<'_> {
    /// The functions `routes_N`, and their calls in `decide`.
    pub(crate) fn routes(&mut self, denied: usize, lost: usize) -> (String, String) {
        let mut blocks = Blocks::default();
        let hosts = &self.listener.virtual_hosts;
        for (index, host) in hosts.iter().enumerate() {
            blocks.open(index, host);
            for (at, route) in host.routes.iter().enumerate() {
                if self.has_no_room(route) {
                    let of_others = hosts[index + 1..].iter().flat_map(|host| &host.routes);
                    host.routes[at..].iter().chain(of_others).for_each(|route| self.leave(route));
                    return blocks.give_up(index);
                }
                if blocks.routes == CHUNK {
                    blocks.finish();
                    blocks.open(index, host);
                }
                blocks.body.push_str(&self.route(host, route, denied));
                blocks.routes += 1;
                self.written += 1;
            }
            let _ = writeln!(blocks.body, "\t\treturn answer(h, {lost}); /* no route */\n\t}}");
            blocks.is_open = false;
        }
        blocks.finish();
        (blocks.out, blocks.calls)
    }

    fn has_no_room(&self, route: &Route) -> bool {
        let targets = if let Action::Forward(forward) = &route.action { forward.targets.len() } else { 1 };
        // One more for an abort.
        self.written >= self.routes_max || self.actions_left() < targets + 1
    }

    /// A route that the program has no room for.
    fn leave(&mut self, route: &Route) {
        if route.rule.is_none_or(|rule| self.policy.rule(rule).placement() == Placement::Kernel) {
            self.give_up(&route.origin, SurplusReason::TooManyRoutes);
        }
    }

    fn route(&mut self, host: &VirtualHost, route: &Route, denied: usize) -> String {
        let name = route.rule.map_or("default route", |rule| self.policy.rule(rule).name.as_str()).to_owned();
        let mut out = format!("\t\t/* {} at {} */\n", comment(&name), comment(&route.origin.to_string()));
        let test = self.request(&route.matching);
        if let Some(reason) = self.placed_in_envoy(route.rule) {
            let _ = writeln!(out, "\t\tif ({})\n\t\t\treturn envoy(h); /* {reason} */", test.maybe);
            return out;
        }
        let of_rule = |target: &Target| matches!(target, Target::Rule(rule) if Some(*rule) == route.rule);
        let code = if self.filtered(of_rule) || self.policy.authorization.iter().any(|policy| of_rule(&policy.target)) {
            Err(SurplusReason::NotWritten)
        } else if !test.is_known() {
            Err(self.why_unknown(route))
        } else {
            self.act(host, route, denied, &name)
        };
        match code {
            Ok(code) => {
                self.rules.extend(route.rule);
                let _ = writeln!(out, "\t\tif ({}) {{\n{code}\t\t}}", test.certain);
            }
            Err(reason) => {
                // A default route is no rule: what it leads to is listed with its own rule.
                if route.rule.is_some() || reason != SurplusReason::Cluster {
                    self.give_up(&route.origin, reason);
                }
                let _ = writeln!(out, "\t\tif ({})\n\t\t\treturn envoy(h); /* {reason} */", test.maybe);
            }
        }
        out
    }

    /// Why a match that is placed in the kernel cannot be written.
    fn why_unknown(&mut self, route: &Route) -> SurplusReason {
        if self.automata.is_full() {
            return SurplusReason::TooManyExpressions;
        }
        let names = route.matching.headers.iter().map(|header| header.name.as_str());
        if names.clone().any(|name| !name.starts_with(':') && self.names.id(name).is_none()) {
            return if self.names.is_full() { SurplusReason::TooManyNames } else { SurplusReason::EnvoysHeader };
        }
        SurplusReason::UnknownSender
    }

    fn act(&mut self, host: &VirtualHost, route: &Route, denied: usize, name: &str) -> Result<String, SurplusReason> {
        let mut out = String::new();
        let fault = route.fault.as_ref();
        if fault.is_some_and(|fault| fault.delay.is_some()) || route.cors.is_some() {
            return Err(SurplusReason::NotWritten);
        }
        let answers = |maker: &mut Self, what: &str| {
            maker.action(format!("{name}: {what}"), route.rule, Some(route.origin.clone()), Vec::new())
        };
        if let Some(abort) = fault.and_then(|fault| fault.abort.as_ref()).filter(|abort| abort.share.0 > 0) {
            let index = answers(self, "abort");
            if abort.share < PerMillion::ALL {
                let _ = writeln!(out, "\t\t\tif (h->random % 1000000 < {})", abort.share.0);
            }
            let _ = writeln!(out, "\t\t\t\treturn answer(h, {index});");
        }
        match &route.action {
            Action::Forward(forward) => out.push_str(&self.forward(host, route, forward, denied, name)?),
            Action::Redirect(redirect) if !is_answerable(redirect) => return Err(SurplusReason::NotWritten),
            Action::Redirect(_) => {
                let index = answers(self, "redirect");
                let _ = writeln!(out, "\t\t\treturn answer(h, {index});");
            }
            Action::Direct(_) => {
                let index = answers(self, "answer");
                let _ = writeln!(out, "\t\t\treturn answer(h, {index});");
            }
            Action::Envoy => return Err(SurplusReason::NotWritten),
        }
        Ok(out)
    }

    fn forward(
        &mut self,
        host: &VirtualHost,
        route: &Route,
        forward: &Forward,
        denied: usize,
        name: &str,
    ) -> Result<String, SurplusReason> {
        let timed = forward.timeout.is_some_and(|timeout| !timeout.is_zero());
        if timed || forward.retry.is_some() || !forward.mirrors.is_empty() {
            return Err(SurplusReason::NotWritten);
        }
        if matches!(forward.authority, Some(AuthorityRewrite::Endpoint | AuthorityRewrite::Header(_)))
            || matches!(forward.path, Some(PathRewrite::Regex { .. }))
        {
            return Err(SurplusReason::NotWritten);
        }
        let targets: Vec<_> = forward.targets.iter().filter(|target| target.weight > 0).collect();
        let sum: u64 = targets.iter().map(|target| u64::from(target.weight)).sum();
        if sum == 0 || sum > u64::from(u32::MAX) {
            return Err(SurplusReason::NotWritten);
        }
        let mut out = String::new();
        if targets.len() > 1 {
            let _ = writeln!(out, "\t\t\tud_u32 share = mixed(h->random) % {sum};\n");
        }
        let mut reached = 0;
        for (at, target) in targets.iter().enumerate() {
            reached += target.weight;
            let code = self.target(host, route, forward, target, denied, name)?;
            if at + 1 < targets.len() {
                let _ = writeln!(out, "\t\t\tif (share < {reached}) {{\n{code}\t\t\t}}");
            } else {
                out.push_str(&code);
            }
        }
        Ok(out)
    }

    fn target(
        &mut self,
        host: &VirtualHost,
        route: &Route,
        forward: &Forward,
        target: &WeightedTarget,
        denied: usize,
        name: &str,
    ) -> Result<String, SurplusReason> {
        let cluster = self.cluster(&target.cluster)?;
        let of_listener = &self.listener.response_headers;
        let edits = [&target.response_headers, &route.response_headers, &host.response_headers, of_listener];
        let response_edits: Vec<HeaderEdits> = edits.into_iter().filter(|edits| !edits.is_empty()).cloned().collect();
        let to_edit = i32::from(!response_edits.is_empty());
        let label = format!("{name} -> {}", target.cluster);
        let action = self.action(label, route.rule, Some(route.origin.clone()), response_edits);
        let of_listener = &self.listener.request_headers;
        let edits = [&target.request_headers, &route.request_headers, &host.request_headers, of_listener];
        let edit = self.edit(forward, &route.matching.path, &edits)?;
        let mut out = String::new();
        let workload = self.policy.cluster(&target.cluster).and_then(|cluster| cluster.workload.as_ref());
        let policies: Vec<_> = match workload {
            Some(workload) => self.policy.authorization_of_workload(workload).collect(),
            None => Vec::new(),
        };
        if !policies.is_empty() {
            let guard = self.guard(&policies, denied)?;
            if edit.is_some() {
                // The workload sees the request as edited.
                self.checks.push((action, guard));
            } else {
                let _ = writeln!(out, "\t\t\tif (guard_{}(h, {guard}))\n\t\t\t\treturn 1;", guard / GUARDS);
            }
        }
        let _ =
            writeln!(out, "\t\t\treturn send(h, {action}, {cluster}, {to_edit}); /* {} */", comment(&target.cluster));
        if let Some(edit) = edit {
            self.edits.push((action, format!("\t\t/* {} */\n{edit}", comment(name))));
        }
        Ok(out)
    }
}

/// What the agent can answer without Envoy.
fn is_answerable(redirect: &Redirect) -> bool {
    !matches!(redirect.path, Some(RedirectPath::Rewrite(PathRewrite::Regex { .. })))
}
