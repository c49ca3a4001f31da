//! What `underdeck mesh check` says of a set of policies.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::form::{Placement, RuleKind};
use crate::read::Reading;

/// The report; its JSON is schema 1. Documents that cannot be read are not in it, but in [`Reading::errors`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// 1.
    pub schema: u32,
    /// Sums.
    pub summary: Summary,
    /// Every rule, in the order of the documents.
    pub rules: Vec<RuleReport>,
}

/// Sums over all rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Documents, whatever their kind.
    pub documents: usize,
    /// Rules in them.
    pub rules: usize,
    /// Rules that the kernel enforces.
    pub rules_kernel: usize,
    /// Rules that Envoy enforces.
    pub rules_envoy: usize,
    /// Rules with a reason, by its code; a rule with two reasons counts in both.
    pub by_reason: BTreeMap<&'static str, usize>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleReport {
    /// `VirtualService default/reviews http[0]`.
    pub rule: String,
    /// What it is about.
    pub kind: RuleKind,
    /// Its file.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub col: u32,
    /// Where it is enforced.
    pub placement: Placement,
    /// Why that is Envoy; empty for the kernel.
    pub reasons: Vec<ReasonReport>,
    /// Other rules of this set that lead its requests to Envoy all the same.
    pub because_of: Vec<ReasonReport>,
}

/// Why a rule is Envoy's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReasonReport {
    /// The stable code.
    pub code: &'static str,
    /// What was written there.
    pub what: String,
    /// Its file.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub col: u32,
}

/// Sums up what was read.
pub fn report(reading: &Reading) -> Report {
    let mut summary = Summary {
        documents: reading.documents,
        rules: reading.policy.rules.len(),
        rules_kernel: 0,
        rules_envoy: 0,
        by_reason: BTreeMap::new(),
    };
    let mut rules = Vec::new();
    for rule in &reading.policy.rules {
        let placement = rule.own_placement();
        match placement {
            Placement::Kernel => summary.rules_kernel += 1,
            Placement::Envoy => summary.rules_envoy += 1,
        }
        let mut codes: Vec<_> = rule.findings.iter().map(|finding| finding.reason.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        for code in codes {
            *summary.by_reason.entry(code).or_default() += 1;
        }
        rules.push(RuleReport {
            rule: rule.name.clone(),
            kind: rule.kind,
            file: rule.origin.file.to_string(),
            line: rule.origin.line,
            col: rule.origin.col,
            placement,
            reasons: rule.findings.iter().map(reason).collect(),
            because_of: rule.inherited.iter().map(reason).collect(),
        });
    }
    Report { schema: 1, summary, rules }
}

fn reason(finding: &crate::form::Finding) -> ReasonReport {
    ReasonReport {
        code: finding.reason.code(),
        what: finding.what.clone(),
        file: finding.origin.file.to_string(),
        line: finding.origin.line,
        col: finding.origin.col,
    }
}
