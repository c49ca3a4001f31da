//! AuthorizationPolicy: each entry of `rules` is one rule; a policy without rules is one rule, too.

use std::net::IpAddr;

use super::target;
use crate::form::{
    Attribute, Authorization, AuthorizationAction, AuthorizationRule, Condition, HeaderMatch, HeaderPattern, IpBlock,
    Reason, RuleKind, StringMatch, StringPattern,
};
use crate::read::fields::{Fields, Notes};
use crate::read::set::{Document, Set};
use crate::read::yaml::Node;

pub(in crate::read) fn authorization_policy(set: &mut Set, document: &Document<'_>) {
    let mut shared = document.notes();
    let mut spec = document.spec(&mut shared);
    let targets = target(document, &mut spec, &mut shared);
    let (list, action) = (spec.take("rules"), spec.take("action"));
    let provider = spec.take("provider").and_then(|node| node.get("name")).map_or("", Node::text).to_owned();
    spec.finish(&mut shared);
    let action = match action.map_or("ALLOW", Node::text) {
        "ALLOW" => AuthorizationAction::Allow,
        "DENY" => AuthorizationAction::Deny,
        "AUDIT" => {
            shared.add(Reason::Audit, action.unwrap_or(document.node), "AUDIT");
            AuthorizationAction::Audit
        }
        "CUSTOM" => {
            shared.add(Reason::ExtAuthz, action.unwrap_or(document.node), "CUSTOM");
            AuthorizationAction::Custom(provider)
        }
        other => {
            shared.add(Reason::InvalidValue, action.unwrap_or(document.node), other);
            AuthorizationAction::Deny
        }
    };
    let mut rules = Vec::new();
    for (index, node) in list.map(|node| shared.list(node, "rules")).unwrap_or_default().iter().enumerate() {
        let mut notes = document.notes_with(&shared.findings);
        let condition = rule(node, &mut notes);
        let origin = document.at(node);
        let title = format!("{} rules[{index}]", document.title());
        let rule = set.rule(RuleKind::Authorization, title, origin.clone(), notes);
        rules.push(AuthorizationRule { rule, condition, origin });
    }
    if rules.is_empty() {
        set.rule(RuleKind::Authorization, document.title(), document.at(document.node), shared);
    }
    for target in targets {
        set.authorization.push(Authorization {
            name: format!("{}/{}", document.namespace, document.name),
            target,
            action: action.clone(),
            rules: rules.clone(),
            origin: document.at(document.node),
        });
    }
}

/// One of `from`, one of `to` and all of `when`; what is not there holds.
fn rule(node: &Node, notes: &mut Notes) -> Condition {
    let mut fields = Fields::of(node, notes, "rules");
    let mut all = Vec::new();
    for (list, member) in [("from", "source"), ("to", "operation")] {
        let Some(items) = fields.take(list).map(|node| notes.list(node, list)) else { continue };
        let mut any = Vec::new();
        for item in items {
            let mut outer = Fields::of(item, notes, list);
            let inner = outer.take(member);
            outer.finish(notes);
            any.push(match inner {
                Some(node) if member == "source" => source(node, notes),
                Some(node) => operation(node, notes),
                // Neither a source nor an operation: no restriction.
                None => Condition::All(Vec::new()),
            });
        }
        if !any.is_empty() {
            all.push(Condition::Any(any));
        }
    }
    for item in fields.take("when").map(|node| notes.list(node, "when")).unwrap_or_default() {
        all.push(when(item, notes));
    }
    fields.finish(notes);
    Condition::All(all)
}

type ToAttribute = fn(&Node, &str, &mut Notes) -> Attribute;

fn source(node: &Node, notes: &mut Notes) -> Condition {
    let parts: [(&str, &str, ToAttribute); 7] = [
        ("principals", "notPrincipals", |_, text, _| Attribute::SourceIdentity(pattern(text))),
        ("namespaces", "notNamespaces", |_, text, _| Attribute::SourceNamespace(pattern(text))),
        ("ipBlocks", "notIpBlocks", |node, text, notes| ip_block(node, text, notes, Attribute::SourceIp)),
        ("remoteIpBlocks", "notRemoteIpBlocks", remote_ip),
        ("requestPrincipals", "notRequestPrincipals", |node, text, notes| {
            unknown(Reason::Jwt, "requestPrincipals", node, text, notes)
        }),
        ("serviceAccounts", "notServiceAccounts", |_, text, _| {
            let (namespace, name) = text.split_once('/').unwrap_or(("*", text));
            let text = format!("cluster.local/ns/{namespace}/sa/{name}");
            Attribute::SourceIdentity(pattern(&text))
        }),
        ("trustDomains", "notTrustDomains", |node, text, notes| {
            unknown(Reason::MutualTls, "trustDomains", node, text, notes)
        }),
    ];
    of_lists(node, "source", &parts, notes)
}

fn operation(node: &Node, notes: &mut Notes) -> Condition {
    let parts: [(&str, &str, ToAttribute); 4] = [
        ("hosts", "notHosts", |_, text, _| {
            let value = StringMatch { ignore_case: true, ..pattern(text) };
            Attribute::Header(header(":authority", text, value))
        }),
        ("ports", "notPorts", port),
        ("methods", "notMethods", |_, text, _| Attribute::Header(header(":method", text, pattern(text)))),
        ("paths", "notPaths", |node, text, notes| {
            if text.contains('{') {
                return unknown(Reason::MatchOther, "paths", node, text, notes);
            }
            Attribute::Path(pattern(text))
        }),
    ];
    of_lists(node, "operation", &parts, notes)
}

/// Lists of patterns: one of each list must hold, none of each negated list.
fn of_lists(
    node: &Node,
    what: &str,
    parts: &[(&'static str, &'static str, ToAttribute)],
    notes: &mut Notes,
) -> Condition {
    let mut fields = Fields::of(node, notes, what);
    let mut all = Vec::new();
    for (name, negated, to_attribute) in parts {
        for (name, is_negated) in [(name, false), (negated, true)] {
            let Some(list) = fields.take(name) else { continue };
            let mut any = Vec::new();
            for item in notes.list(list, name) {
                if let Some(text) = notes.text(item, name) {
                    any.push(Condition::Is(to_attribute(item, &text, notes)));
                }
            }
            let any = Condition::Any(any);
            all.push(if is_negated { Condition::Not(Box::new(any)) } else { any });
        }
    }
    fields.finish(notes);
    Condition::All(all)
}

/// `{key, values, notValues}`.
fn when(node: &Node, notes: &mut Notes) -> Condition {
    let mut fields = Fields::of(node, notes, "when");
    let (key, values, not_values) = (fields.take("key"), fields.take("values"), fields.take("notValues"));
    fields.finish(notes);
    let Some(key) = key else {
        notes.missing(node, "key");
        return Condition::All(Vec::new());
    };
    let mut all = Vec::new();
    for (list, is_negated) in [(values, false), (not_values, true)] {
        let Some(list) = list else { continue };
        let mut any = Vec::new();
        for item in notes.list(list, "values") {
            if let Some(text) = notes.text(item, "values") {
                any.push(Condition::Is(keyed(key, item, &text, notes)));
            }
        }
        let any = Condition::Any(any);
        all.push(if is_negated { Condition::Not(Box::new(any)) } else { any });
    }
    Condition::All(all)
}

fn keyed(key: &Node, node: &Node, text: &str, notes: &mut Notes) -> Attribute {
    match key.text() {
        "source.ip" => ip_block(node, text, notes, Attribute::SourceIp),
        "remote.ip" => remote_ip(node, text, notes),
        "destination.ip" => ip_block(node, text, notes, Attribute::DestinationIp),
        "destination.port" => port(node, text, notes),
        "source.namespace" => Attribute::SourceNamespace(pattern(text)),
        "source.principal" => Attribute::SourceIdentity(pattern(text)),
        other => {
            let name = other.strip_prefix("request.headers[").and_then(|rest| rest.strip_suffix(']'));
            match name {
                Some(name) if !name.is_empty() && !name.starts_with(':') && !name.eq_ignore_ascii_case("host") => {
                    Attribute::Header(header(&name.to_ascii_lowercase(), text, pattern(text)))
                }
                None if other.starts_with("request.auth.") => unknown(Reason::Jwt, other, key, text, notes),
                _ => unknown(Reason::MatchOther, other, key, text, notes),
            }
        }
    }
}

fn header(name: &str, text: &str, value: StringMatch) -> HeaderMatch {
    let pattern = if text == "*" { HeaderPattern::Present } else { HeaderPattern::Value(value) };
    HeaderMatch { name: name.to_owned(), pattern, invert: false, missing_is_empty: false }
}

/// `*`, `suffix` behind a star, `prefix` before one, or the whole string.
fn pattern(text: &str) -> StringMatch {
    StringMatch::new(match (text.strip_prefix('*'), text.strip_suffix('*')) {
        (Some(suffix), _) if !suffix.is_empty() => StringPattern::Suffix(suffix.to_owned()),
        (_, Some(prefix)) => StringPattern::Prefix(prefix.to_owned()),
        _ => StringPattern::Exact(text.to_owned()),
    })
}

/// The client's address may come from `x-forwarded-for`, as Envoy is configured elsewhere.
fn remote_ip(node: &Node, text: &str, notes: &mut Notes) -> Attribute {
    notes.add(Reason::MatchOther, node, format!("remote.ip {text}"));
    ip_block(node, text, notes, Attribute::RemoteIp)
}

fn ip_block(node: &Node, text: &str, notes: &mut Notes, to: fn(IpBlock) -> Attribute) -> Attribute {
    let (address, len) = text.split_once('/').map_or((text, None), |(address, len)| (address, Some(len)));
    let block = address.parse::<IpAddr>().ok().and_then(|address| {
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = len.map_or(Some(most), |len| len.parse().ok()).filter(|len| *len <= most)?;
        Some(IpBlock { address, prefix_len })
    });
    block.map_or_else(|| unknown(Reason::InvalidValue, "an IP block", node, text, notes), to)
}

fn port(node: &Node, text: &str, notes: &mut Notes) -> Attribute {
    match text.parse::<u16>() {
        Ok(start) => Attribute::DestinationPort { start, end: u32::from(start) + 1 },
        Err(_) => unknown(Reason::InvalidValue, "a port", node, text, notes),
    }
}

fn unknown(reason: Reason, what: &str, node: &Node, text: &str, notes: &mut Notes) -> Attribute {
    notes.add(reason, node, what);
    Attribute::Unknown { reason, text: text.to_owned() }
}
