//! Authorization policies: DENY before ALLOW, and a default of no where there are ALLOW policies.

use super::Step;
use super::matching::{self, Current, all, any};
use crate::form::{Attribute, Authorization, AuthorizationAction, Condition, StringPattern};

/// Whether a request is let in; None: only Envoy knows.
pub(super) fn allowed<'a>(
    policies: impl Iterator<Item = &'a Authorization>,
    current: &Current<'_>,
    steps: &mut Vec<Step>,
) -> Option<bool> {
    let policies: Vec<_> = policies.collect();
    let of = |action: AuthorizationAction| policies.iter().copied().filter(move |policy| policy.action == action);
    let mut unknown = policies.iter().any(|policy| matches!(policy.action, AuthorizationAction::Custom(_)));
    for policy in of(AuthorizationAction::Deny) {
        match holds(policy, current, steps, "denied") {
            Some(true) => return Some(false),
            Some(false) => {}
            None => unknown = true,
        }
    }
    let (mut any_allow, mut let_in) = (false, false);
    for policy in of(AuthorizationAction::Allow) {
        any_allow = true;
        match holds(policy, current, steps, "allowed") {
            Some(true) => {
                let_in = true;
                break;
            }
            Some(false) => {}
            None => unknown = true,
        }
    }
    match (unknown, any_allow, let_in) {
        (true, ..) => None,
        (false, true, false) => {
            let what = "denied: no ALLOW policy holds".to_owned();
            steps.push(Step {
                rule: None,
                origin: of(AuthorizationAction::Allow).next().map(|p| p.origin.clone()),
                what,
            });
            Some(false)
        }
        _ => Some(true),
    }
}

fn holds(policy: &Authorization, current: &Current<'_>, steps: &mut Vec<Step>, verdict: &str) -> Option<bool> {
    let mut known = Some(false);
    for rule in &policy.rules {
        match condition(&rule.condition, current) {
            Some(true) => {
                let what = format!("{verdict} by {}", policy.name);
                steps.push(Step { rule: Some(rule.rule), origin: Some(rule.origin.clone()), what });
                return Some(true);
            }
            Some(false) => {}
            None => known = None,
        }
    }
    known
}

fn condition(condition_: &Condition, current: &Current<'_>) -> Option<bool> {
    match condition_ {
        Condition::All(parts) => all(parts.iter().map(|part| condition(part, current))),
        Condition::Any(parts) => any(parts.iter().map(|part| condition(part, current))),
        Condition::Not(part) => condition(part, current).map(|holds| !holds),
        Condition::Is(attribute) => is(attribute, current),
    }
}

fn is(attribute: &Attribute, current: &Current<'_>) -> Option<bool> {
    let request = current.request;
    let identity = request.source.identity.as_ref();
    match attribute {
        Attribute::Path(pattern) => matching::string(pattern, current.path_only()),
        Attribute::Header(header) => matching::header(header, current),
        Attribute::DestinationPort { start, end } => {
            Some(request.destination.1 >= *start && u32::from(request.destination.1) < *end)
        }
        Attribute::DestinationIp(block) => Some(block.contains(request.destination.0)),
        Attribute::SourceIp(block) => Some(block.contains(request.source.address)),
        Attribute::SourceIdentity(pattern) => {
            let Some(identity) = identity else { return Some(false) };
            // `*` asks for any identity.
            if pattern.pattern == StringPattern::Prefix(String::new()) {
                return Some(true);
            }
            matching::string(pattern, &identity.0)
        }
        Attribute::SourceNamespace(pattern) => {
            let Some(namespace) = identity.and_then(|identity| identity.namespace()) else { return Some(false) };
            matching::string(pattern, namespace)
        }
        Attribute::RemoteIp(_) | Attribute::Unknown { .. } => None,
    }
}
