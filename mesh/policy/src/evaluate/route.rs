//! The way of a request through a listener.

use super::matching::{self, Current};
use super::{Answer, BadPath, Outcome, Request, Step, Upstream, access, answer, headers, host, normalize, rewrite};
use crate::form::{
    Action, AuthorityRewrite, Forward, HeaderEdits, Listener, PerMillion, Policy, Route, Unmatched, VirtualHost,
    WeightedTarget,
};

type Outcomes = Vec<(u64, Outcome)>;

pub(super) fn decide(policy: &Policy, listener: &Listener, request: &Request, steps: &mut Vec<Step>) -> Outcomes {
    let current = match enter(listener, request) {
        Ok(current) => current,
        Err(answer) => return one(Outcome::Answer(answer)),
    };
    match access::allowed(policy.authorization_of_listener(listener), &current, steps) {
        Some(true) => {}
        Some(false) => return one(denied()),
        None => return unknown("authorization"),
    }
    let Some(virtual_host) = host::find(listener, &current.authority) else {
        note(steps, None, "no virtual host");
        return one(match listener.unmatched {
            Unmatched::NotFound => Outcome::Answer(Answer::plain(404, "")),
            Unmatched::OriginalDestination => Outcome::OriginalDestination,
        });
    };
    steps.push(Step {
        rule: None,
        origin: Some(virtual_host.origin.clone()),
        what: format!("virtual host {}", virtual_host.name),
    });
    for route in &virtual_host.routes {
        match matching::route(&route.matching, &current) {
            Some(true) => {
                note(steps, Some(route), "route");
                return Taken { policy, listener, virtual_host, route }.decide(&current, steps);
            }
            Some(false) => {}
            None => {
                note(steps, Some(route), "route that may match");
                return unknown("match");
            }
        }
    }
    note(steps, None, "no route matches");
    one(Outcome::Answer(Answer::plain(404, "")))
}

fn note(steps: &mut Vec<Step>, route: Option<&Route>, what: &str) {
    let name = route.map_or("", |route| route.name.as_str());
    let what = if name.is_empty() { what.to_owned() } else { format!("{what} {name}") };
    steps.push(Step { rule: route.and_then(|r| r.rule), origin: route.map(|r| r.origin.clone()), what });
}

fn one(outcome: Outcome) -> Outcomes {
    vec![(1, outcome)]
}

fn denied() -> Outcome {
    Outcome::Answer(Answer::plain(403, "RBAC: access denied"))
}

fn unknown(what: &str) -> Outcomes {
    one(Outcome::Unknown { what: what.to_owned() })
}

/// Path and authority as they are matched.
fn enter<'a>(listener: &Listener, request: &'a Request) -> Result<Current<'a>, Answer> {
    let (mut path, mut authority) = (request.target.as_str(), request.authority.as_str());
    let has_scheme = |scheme: &&str| path.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    let absolute = ["http://", "https://"].iter().find(|scheme| has_scheme(scheme)).map(|scheme| &path[scheme.len()..]);
    let rooted;
    if let Some(rest) = absolute {
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        authority = &rest[..at];
        if authority.is_empty() || authority.starts_with(':') {
            return Err(Answer::plain(400, ""));
        }
        path = &rest[at..];
        if !path.starts_with('/') {
            rooted = format!("/{path}");
            path = &rooted;
        }
    }
    if authority.is_empty() || path.contains('#') {
        return Err(Answer::plain(400, ""));
    }
    if !path.starts_with('/') {
        return Err(Answer::plain(404, ""));
    }
    let path = normalize(path, &listener.options).map_err(|bad| match bad {
        BadPath::Reject => Answer::plain(400, ""),
        BadPath::Redirect(path) => Answer { headers: vec![("location".into(), path)], ..Answer::plain(307, "") },
    })?;
    let authority = host::strip(authority, listener, request.destination.1).to_owned();
    Ok(Current { request, path, authority, headers: request.headers.clone() })
}

/// The route that was taken, and where it stands.
struct Taken<'a> {
    policy: &'a Policy,
    listener: &'a Listener,
    virtual_host: &'a VirtualHost,
    route: &'a Route,
}

impl Taken<'_> {
    fn decide(&self, current: &Current<'_>, steps: &mut Vec<Step>) -> Outcomes {
        let abort = self.route.fault.as_ref().and_then(|fault| fault.abort.as_ref());
        let share = abort.map_or(0, |abort| abort.share.0);
        let mut outcomes = Vec::new();
        if let Some(abort) = abort.filter(|_| share > 0) {
            let answer = Answer::plain(abort.status, "fault filter abort");
            outcomes.push((u64::from(share), Outcome::Answer(self.edited(answer))));
        }
        let rest = u64::from(PerMillion::ALL.0.saturating_sub(share));
        if rest > 0 {
            let others = self.act(current, steps);
            // All shares are of the same whole.
            let sum: u64 = others.iter().map(|(weight, _)| weight).sum();
            outcomes.iter_mut().for_each(|(weight, _)| *weight *= sum);
            outcomes.extend(others.into_iter().map(|(weight, outcome)| (weight * rest, outcome)));
        }
        outcomes
    }

    fn act(&self, current: &Current<'_>, steps: &mut Vec<Step>) -> Outcomes {
        match &self.route.action {
            Action::Forward(forward) => {
                let shares = forward.targets.iter().filter(|target| target.weight > 0);
                shares.map(|target| (u64::from(target.weight), self.forward(forward, target, current, steps))).collect()
            }
            Action::Redirect(redirect) => {
                let answer = answer::redirect(redirect, &self.route.matching.path, current);
                answer.map_or_else(|| unknown("redirect"), |answer| one(Outcome::Answer(self.edited(answer))))
            }
            Action::Direct(direct) => {
                let mut answer = Answer::plain(direct.status, &direct.body);
                // Envoy names the resource where the status speaks of one.
                if direct.status == 201 || (300..400).contains(&direct.status) {
                    let location = format!("http://{}{}", current.authority, current.path);
                    answer.headers.push(("location".into(), location));
                }
                one(Outcome::Answer(self.edited(answer)))
            }
            Action::Envoy => unknown("action"),
        }
    }

    /// An answer with the edits of route, virtual host and listener.
    fn edited(&self, mut answer: Answer) -> Answer {
        for edits in self.response_edits() {
            headers::apply(&mut answer.headers, edits);
        }
        answer
    }

    fn response_edits(&self) -> [&HeaderEdits; 3] {
        [&self.route.response_headers, &self.virtual_host.response_headers, &self.listener.response_headers]
    }

    fn forward(
        &self,
        forward: &Forward,
        target: &WeightedTarget,
        current: &Current<'_>,
        steps: &mut Vec<Step>,
    ) -> Outcome {
        let mut current = current.clone();
        let edits = [&target.request_headers, &self.route.request_headers, &self.virtual_host.request_headers];
        for edits in edits.into_iter().chain([&self.listener.request_headers]) {
            headers::apply(&mut current.headers, edits);
        }
        match &forward.authority {
            Some(AuthorityRewrite::Literal(authority)) => authority.clone_into(&mut current.authority),
            Some(AuthorityRewrite::Endpoint | AuthorityRewrite::Header(_)) => {
                return Outcome::Unknown { what: "authority".into() };
            }
            None => {}
        }
        if let Some(to) = &forward.path
            && !rewrite::apply(&mut current, to, &self.route.matching.path)
        {
            return Outcome::Unknown { what: "rewrite".into() };
        }
        let workload = self.policy.cluster(&target.cluster).and_then(|cluster| cluster.workload.as_ref());
        if let Some(workload) = workload {
            match access::allowed(self.policy.authorization_of_workload(workload), &current, steps) {
                Some(true) => {}
                Some(false) => return denied(),
                None => return Outcome::Unknown { what: "authorization of the workload".into() },
            }
        }
        let edits = std::iter::once(&target.response_headers).chain(self.response_edits());
        Outcome::Forward(Upstream {
            cluster: target.cluster.clone(),
            path: current.path,
            authority: current.authority,
            headers: current.headers,
            response_edits: edits.filter(|edits| !edits.is_empty()).cloned().collect(),
        })
    }
}
