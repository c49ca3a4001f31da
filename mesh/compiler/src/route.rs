//! Routes: the first one that matches, its fault, its choice of a cluster.

use std::fmt::Write;

use underdeck_mesh_policy::form::{
    Action, AuthorityRewrite, Forward, HeaderEdits, PathRewrite, PerMillion, Redirect, RedirectPath, Route, Target,
    VirtualHost, WeightedTarget,
};

use crate::source::Maker;
use crate::text::comment;

/// Routes in one function of C.
const CHUNK: usize = 48;

/// More routes than these are left to Envoy.
const ROUTES_MAX: usize = 4096;

impl Maker<'_> {
    /// The functions `routes_N`, and their calls in `decide`.
    pub(crate) fn routes(&mut self, denied: usize, lost: usize) -> (String, String) {
        let (mut out, mut calls) = (String::new(), String::new());
        let hosts: Vec<_> = self.listener.virtual_hosts.iter().collect();
        let items: Vec<_> = (0..)
            .zip(&hosts)
            .flat_map(|(index, host)| {
                let routes = host.routes.iter().map(Some).chain([None]);
                routes.map(move |route| (index, *host, route))
            })
            .collect();
        for (chunk, items) in items.chunks(CHUNK).enumerate() {
            let _ = writeln!(out, "apart int routes_{chunk}(struct ud_head *h never_null, int host)\n{{");
            let mut inside = None;
            for (index, host, route) in items {
                if inside != Some(*index) {
                    if inside.is_some() {
                        out.push_str("\t}\n");
                    }
                    let _ = writeln!(
                        out,
                        "\tif (host == {index}) {{ /* {} at {} */",
                        comment(&host.name),
                        comment(&host.origin.to_string())
                    );
                    inside = Some(*index);
                }
                match route {
                    Some(route) => out.push_str(&self.route(host, route, denied, chunk * CHUNK)),
                    None => {
                        let _ = writeln!(out, "\t\treturn answer(h, {lost});");
                    }
                }
            }
            out.push_str("\t}\n\treturn 0;\n}\n\n");
            let (first, last) = (items[0].0, items[items.len() - 1].0);
            let _ = writeln!(
                calls,
                "\tif (host >= {first} && host <= {last} && routes_{chunk}(h, host))\n\t\tgoto routed;"
            );
        }
        (out, calls)
    }

    fn route(&mut self, host: &VirtualHost, route: &Route, denied: usize, before: usize) -> String {
        let name = route.rule.map_or("default route", |rule| self.policy.rule(rule).name.as_str()).to_owned();
        let mut out = format!("\t\t/* {} at {} */\n", comment(&name), comment(&route.origin.to_string()));
        let test = self.request(&route.matching);
        if let Some(reason) = self.placed_in_envoy(route.rule) {
            let _ = writeln!(out, "\t\tif ({})\n\t\t\treturn envoy(h); /* {reason} */", test.maybe);
            return out;
        }
        let of_rule = |target: &Target| matches!(target, Target::Rule(rule) if Some(*rule) == route.rule);
        let guarded = self.filtered(of_rule) || self.policy.authorization.iter().any(|policy| of_rule(&policy.target));
        let why = if before >= ROUTES_MAX {
            Some("there are more routes than fit into one program")
        } else if guarded {
            Some("a filter of the route needs Envoy")
        } else if !test.is_known() {
            Some("the match is too large for the kernel")
        } else {
            None
        };
        let code = match why {
            None => self.act(host, route, denied, &name),
            Some(why) => Err(why),
        };
        match code {
            Ok(code) => {
                let _ = writeln!(out, "\t\tif ({}) {{\n{code}\t\t}}", test.certain);
            }
            Err(why) => {
                self.give_up(&route.origin, why);
                let _ = writeln!(out, "\t\tif ({})\n\t\t\treturn envoy(h); /* {why} */", test.maybe);
            }
        }
        out
    }

    fn act(&mut self, host: &VirtualHost, route: &Route, denied: usize, name: &str) -> Result<String, &'static str> {
        let mut out = String::new();
        let fault = route.fault.as_ref();
        if fault.is_some_and(|fault| fault.delay.is_some()) || route.cors.is_some() {
            return Err("a delay or CORS needs Envoy");
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
            Action::Redirect(redirect) if !is_answerable(redirect) => return Err("the redirect needs Envoy"),
            Action::Redirect(_) => {
                let index = answers(self, "redirect");
                let _ = writeln!(out, "\t\t\treturn answer(h, {index});");
            }
            Action::Direct(_) => {
                let index = answers(self, "answer");
                let _ = writeln!(out, "\t\t\treturn answer(h, {index});");
            }
            Action::Envoy => return Err("only Envoy can do it"),
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
    ) -> Result<String, &'static str> {
        let timed = forward.timeout.is_some_and(|timeout| !timeout.is_zero());
        if timed || forward.retry.is_some() || !forward.mirrors.is_empty() {
            return Err("a timeout, retries or mirrors need Envoy");
        }
        if matches!(forward.authority, Some(AuthorityRewrite::Endpoint | AuthorityRewrite::Header(_)))
            || matches!(forward.path, Some(PathRewrite::Regex { .. }))
        {
            return Err("the rewrite needs Envoy");
        }
        let targets: Vec<_> = forward.targets.iter().filter(|target| target.weight > 0).collect();
        let sum: u64 = targets.iter().map(|target| u64::from(target.weight)).sum();
        if sum == 0 || sum > u64::from(u32::MAX) {
            return Err("no target has a weight");
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
    ) -> Result<String, &'static str> {
        let cluster = self.cluster(&target.cluster).ok_or("the cluster needs Envoy")?;
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
            let guard = self.guard(&policies, denied);
            if edit.is_some() {
                // The workload sees the request as edited.
                self.checks.push((action, guard));
            } else {
                let _ = writeln!(out, "\t\t\tif (guard_{guard}(h))\n\t\t\t\treturn 1;");
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
