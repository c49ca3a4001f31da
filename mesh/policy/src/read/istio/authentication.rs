//! PeerAuthentication: the mode and each mode of a port is one rule. RequestAuthentication: each entry of `jwtRules`.

use super::target;
use crate::form::{Filter, FilterKind, Reason, RuleKind};
use crate::read::fields::Fields;
use crate::read::set::{Document, Set};
use crate::read::yaml::Node;

pub(in crate::read) fn peer_authentication(set: &mut Set, document: &Document<'_>) {
    let mut shared = document.notes();
    let mut spec = document.spec(&mut shared);
    let targets = target(document, &mut spec, &mut shared);
    let (whole, ports) = (spec.take("mtls"), spec.take("portLevelMtls"));
    spec.finish(&mut shared);
    let mut modes = Vec::new();
    if let Some(node) = whole {
        modes.push((format!("{} mtls", document.title()), node));
    }
    for (port, node) in ports.map_or(&[][..], Node::members) {
        modes.push((format!("{} portLevelMtls[{}]", document.title(), port.text()), node));
    }
    if modes.is_empty() {
        set.rule(RuleKind::Authentication, document.title(), document.at(document.node), shared);
        return;
    }
    for (title, node) in modes {
        let mut notes = document.notes_with(&shared.findings);
        let mut fields = Fields::of(node, &mut notes, "mtls");
        let mode = fields.take("mode");
        fields.finish(&mut notes);
        match mode.map_or("UNSET", Node::text) {
            // Clear text is let in: nothing is asked of it.
            "PERMISSIVE" | "DISABLE" | "UNSET" => {}
            "STRICT" => notes.add(Reason::MutualTls, mode.unwrap_or(node), "mode STRICT"),
            other => notes.add(Reason::InvalidValue, mode.unwrap_or(node), other),
        }
        let origin = document.at(node);
        let needs_envoy = !notes.findings.is_empty();
        let rule = set.rule(RuleKind::Authentication, title, origin.clone(), notes);
        if needs_envoy {
            let filter = |target| Filter { rule, target, kind: FilterKind::MutualTls, origin: origin.clone() };
            set.filters.extend(targets.iter().cloned().map(filter));
        }
    }
}

pub(in crate::read) fn request_authentication(set: &mut Set, document: &Document<'_>) {
    let mut shared = document.notes();
    let mut spec = document.spec(&mut shared);
    let targets = target(document, &mut spec, &mut shared);
    let rules = spec.take("jwtRules").map(|node| shared.list(node, "jwtRules")).unwrap_or_default();
    spec.finish(&mut shared);
    if rules.is_empty() {
        set.rule(RuleKind::Authentication, document.title(), document.at(document.node), shared);
        return;
    }
    for (index, node) in rules.iter().enumerate() {
        let mut notes = document.notes_with(&shared.findings);
        notes.add(Reason::Jwt, node, "jwtRules");
        let origin = document.at(node);
        let title = format!("{} jwtRules[{index}]", document.title());
        let rule = set.rule(RuleKind::Authentication, title, origin.clone(), notes);
        let filter = |target| Filter { rule, target, kind: FilterKind::Jwt, origin: origin.clone() };
        set.filters.extend(targets.iter().cloned().map(filter));
    }
}
