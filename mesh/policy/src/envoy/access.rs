//! Authorization policies as RBAC filters: one that denies, then one that allows.

use serde_json::{Value, json};

use super::{Bind, route};
use crate::evaluate::Identity;
use crate::form::{Attribute, Authorization, AuthorizationAction, Condition, RuleId, StringMatch, StringPattern};

const RBAC: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";

pub(super) fn filters(policies: &[&Authorization], bind: &Bind, missing: &mut Vec<RuleId>) -> Vec<Value> {
    let mut filters = Vec::new();
    for (action, name) in [(AuthorizationAction::Deny, "DENY"), (AuthorizationAction::Allow, "ALLOW")] {
        let of_action: Vec<_> = policies.iter().filter(|policy| policy.action == action).collect();
        if of_action.is_empty() {
            continue;
        }
        let mut rules = serde_json::Map::new();
        for (index, policy) in of_action.iter().enumerate() {
            for (number, rule) in policy.rules.iter().enumerate() {
                let mut known = true;
                let condition = condition(&rule.condition, bind, &mut known);
                if !known {
                    missing.push(rule.rule);
                }
                let policy_of = json!({"permissions": [condition], "principals": [{"any": true}]});
                rules.insert(format!("{index} {} {number}", policy.name), policy_of);
            }
        }
        let config = json!({"@type": RBAC, "rules": {"action": name, "policies": rules}});
        filters.push(json!({"name": "envoy.filters.http.rbac", "typed_config": config}));
    }
    let others = policies
        .iter()
        .filter(|policy| matches!(policy.action, AuthorizationAction::Custom(_) | AuthorizationAction::Audit));
    missing.extend(others.flat_map(|policy| &policy.rules).map(|rule| rule.rule));
    filters
}

fn condition(condition_: &Condition, bind: &Bind, known: &mut bool) -> Value {
    match condition_ {
        Condition::All(parts) if parts.is_empty() => constant(true),
        Condition::Any(parts) if parts.is_empty() => constant(false),
        Condition::All(parts) => {
            let parts: Vec<_> = parts.iter().map(|part| condition(part, bind, known)).collect();
            json!({"and_rules": {"rules": parts}})
        }
        Condition::Any(parts) => {
            let parts: Vec<_> = parts.iter().map(|part| condition(part, bind, known)).collect();
            json!({"or_rules": {"rules": parts}})
        }
        Condition::Not(part) => json!({"not_rule": condition(part, bind, known)}),
        Condition::Is(attribute) => is(attribute, bind, known),
    }
}

fn constant(holds: bool) -> Value {
    if holds { json!({"any": true}) } else { json!({"not_rule": {"any": true}}) }
}

/// What the connection decides is decided here.
fn is(attribute: &Attribute, bind: &Bind, known: &mut bool) -> Value {
    let identity = bind.sender.identity.as_ref();
    match attribute {
        Attribute::Path(pattern) => json!({"url_path": {"path": route::string(pattern)}}),
        Attribute::Header(header) => json!({"header": route::header(header)}),
        Attribute::DestinationPort { start, end } => {
            constant(bind.destination.1 >= *start && u32::from(bind.destination.1) < *end)
        }
        Attribute::DestinationIp(block) => constant(block.contains(bind.destination.0)),
        Attribute::SourceIp(block) => constant(block.contains(bind.sender.address)),
        Attribute::SourceIdentity(pattern) => constant(identity.is_some_and(|identity| matches(pattern, &identity.0))),
        Attribute::SourceNamespace(pattern) => {
            let namespace = identity.and_then(Identity::namespace);
            constant(namespace.is_some_and(|namespace| matches(pattern, namespace)))
        }
        Attribute::RemoteIp(_) | Attribute::Unknown { .. } => {
            *known = false;
            constant(false)
        }
    }
}

fn matches(pattern: &StringMatch, text: &str) -> bool {
    match &pattern.pattern {
        StringPattern::Exact(wanted) => text == wanted,
        StringPattern::Prefix(prefix) => text.starts_with(prefix.as_str()),
        StringPattern::Suffix(suffix) => text.ends_with(suffix.as_str()),
        StringPattern::Contains(part) => text.contains(part.as_str()),
        StringPattern::Regex(regex) => crate::regexes::whole(regex).is_ok_and(|regex| regex.is_match(text.as_bytes())),
    }
}
