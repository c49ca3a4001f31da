//! The RBAC filter: each policy is one rule.

use std::net::IpAddr;
use std::sync::Arc;

use super::strings;
use crate::form::{
    Attribute, Authorization, AuthorizationAction, AuthorizationRule, Condition, IpBlock, Reason, RuleKind, Target,
};
use crate::read::fields::{Fields, Notes};
use crate::read::set::Set;
use crate::read::yaml::Node;

pub(super) fn filter(set: &mut Set, file: &Arc<str>, config: &Node, listener: &str, mut shared: Notes) {
    let mut fields = Fields::of_proto(config, &mut shared, "typed_config");
    fields.pass_over(&["@type", "rules_stat_prefix", "shadow_rules_stat_prefix", "track_per_rule_stats"]);
    fields.envoy("shadow_rules", Reason::Audit, &mut shared);
    for name in ["matcher", "shadow_matcher"] {
        fields.envoy(name, Reason::MatchOther, &mut shared);
    }
    let Some(rules) = fields.take("rules") else {
        fields.finish(&mut shared);
        // Without rules, it does nothing.
        set.rule(RuleKind::Authorization, format!("listener {listener} rbac"), config.at(file), shared);
        return;
    };
    fields.finish(&mut shared);
    let mut fields = Fields::of_proto(rules, &mut shared, "rules");
    let (action, policies) = (fields.take("action"), fields.take("policies"));
    fields.envoy("audit_logging_options", Reason::Audit, &mut shared);
    fields.finish(&mut shared);
    let action = match action.map_or("ALLOW", Node::text) {
        "DENY" => AuthorizationAction::Deny,
        "LOG" => {
            shared.add(Reason::Audit, action.unwrap_or(rules), "LOG");
            AuthorizationAction::Audit
        }
        _ => AuthorizationAction::Allow,
    };
    let mut out = Vec::new();
    for (name, node) in policies.map_or(&[][..], Node::members) {
        let mut notes = Notes::with(file, &shared.findings);
        let mut fields = Fields::of_proto(node, &mut notes, "policies");
        let (permissions, principals) = (fields.take("permissions"), fields.take("principals"));
        for name in ["condition", "checked_condition", "cel_config"] {
            fields.envoy(name, Reason::MatchOther, &mut notes);
        }
        fields.finish(&mut notes);
        let mut any = |node: Option<&Node>, read: Read| {
            Condition::Any(node.map_or(&[][..], Node::items).iter().map(|item| read(item, &mut notes)).collect())
        };
        let condition = Condition::All(vec![any(permissions, permission), any(principals, principal)]);
        let origin = name.at(file);
        let title = format!("listener {listener} rbac {}", name.text());
        let rule = set.rule(RuleKind::Authorization, title, origin.clone(), notes);
        out.push(AuthorizationRule { rule, condition, origin });
    }
    if out.is_empty() {
        set.rule(RuleKind::Authorization, format!("listener {listener} rbac"), config.at(file), shared);
    }
    let (name, origin) = (format!("{listener} rbac"), config.at(file));
    set.authorization.push(Authorization {
        name,
        target: Target::Listener(listener.to_owned()),
        action,
        rules: out,
        origin,
    });
}

type ToAttribute = fn(IpBlock) -> Attribute;

type Read = fn(&Node, &mut Notes) -> Condition;

fn permission(node: &Node, notes: &mut Notes) -> Condition {
    one(node, notes, permission, ["and_rules", "or_rules", "not_rule"], "rules")
}

fn principal(node: &Node, notes: &mut Notes) -> Condition {
    one(node, notes, principal, ["and_ids", "or_ids", "not_id"], "ids")
}

/// One permission or principal: exactly one of its members is set.
fn one(node: &Node, notes: &mut Notes, read: Read, [and, or, not]: [&'static str; 3], list: &str) -> Condition {
    let mut fields = Fields::of_proto(node, notes, "rbac");
    let condition = if let Some(node) = fields.take(and) {
        Condition::All(node.get(list).map_or(&[][..], Node::items).iter().map(|item| read(item, notes)).collect())
    } else if let Some(node) = fields.take(or) {
        Condition::Any(node.get(list).map_or(&[][..], Node::items).iter().map(|item| read(item, notes)).collect())
    } else if let Some(node) = fields.take(not) {
        Condition::Not(Box::new(read(node, notes)))
    } else if fields.take("any").is_some() {
        Condition::All(Vec::new())
    } else {
        Condition::Is(attribute(&mut fields, notes))
    };
    fields.finish(notes);
    condition
}

fn attribute(fields: &mut Fields<'_>, notes: &mut Notes) -> Attribute {
    let unknown = |reason, notes: &mut Notes, node: &Node, what: &str| {
        notes.add(reason, node, what);
        Attribute::Unknown { reason, text: what.to_owned() }
    };
    if let Some(node) = fields.take("header") {
        return match strings::header(node, notes) {
            Some(header) if !header.name.starts_with(':') || [":method", ":authority"].contains(&&*header.name) => {
                Attribute::Header(header)
            }
            _ => unknown(Reason::MatchOther, notes, node, "header"),
        };
    }
    if let Some(node) = fields.take("url_path") {
        let path = node.get("path").and_then(|node| strings::string(node, notes));
        return path.map_or_else(|| unknown(Reason::InvalidValue, notes, node, "url_path"), Attribute::Path);
    }
    if let Some(node) = fields.take("destination_port") {
        let start = notes.integer(node, "destination_port").unwrap_or(0);
        return Attribute::DestinationPort { start, end: u32::from(start) + 1 };
    }
    if let Some(node) = fields.take("destination_port_range") {
        let bound = |name| node.get(name).map_or("0", Node::text).parse::<u32>().unwrap_or(0);
        let start = u16::try_from(bound("start")).unwrap_or(u16::MAX);
        return Attribute::DestinationPort { start, end: bound("end") };
    }
    let blocks: [(&'static str, ToAttribute); 3] = [
        ("destination_ip", Attribute::DestinationIp),
        ("direct_remote_ip", Attribute::SourceIp),
        ("source_ip", Attribute::SourceIp),
    ];
    for (name, to) in blocks {
        if let Some(node) = fields.take(name) {
            return block(node).map_or_else(|| unknown(Reason::InvalidValue, notes, node, name), to);
        }
    }
    if let Some(node) = fields.take("remote_ip") {
        return unknown(Reason::MatchOther, notes, node, "remote_ip");
    }
    if let Some(node) = fields.take("authenticated") {
        return unknown(Reason::MutualTls, notes, node, "authenticated");
    }
    let (key, _) = match fields.node().members().first() {
        Some(member) => member,
        None => return unknown(Reason::InvalidValue, notes, fields.node(), "empty"),
    };
    // Whatever it is: it is left to `finish` to name it.
    Attribute::Unknown { reason: Reason::UnknownField, text: key.text().to_owned() }
}

fn block(node: &Node) -> Option<IpBlock> {
    let address = node.get("address_prefix").or_else(|| node.get("addressPrefix"))?.text().parse::<IpAddr>().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let len = node.get("prefix_len").or_else(|| node.get("prefixLen"));
    let prefix_len = len.map_or(Some(0), |node| node.text().parse().ok()).filter(|len| *len <= most)?;
    Some(IpBlock { address, prefix_len })
}
