//! Authorization policies as expressions of C.

use std::fmt::Write;
use std::net::IpAddr;

use underdeck_mesh_policy::form::{
    Attribute, Authorization, AuthorizationAction, Condition, IpBlock, Placement, StringPattern,
};

use crate::matching::{Test, constant};
use crate::source::Maker;
use crate::surplus::SurplusReason;
use crate::text::{Span, comment};

/// Workloads in one function of C.
pub(crate) const GUARDS: usize = 32;

/// More workloads with policies than these are left to Envoy.
const GUARDS_MAX: usize = 1024;

impl Maker<'_> {
    /// Code that returns with a denial or to Envoy; what passes falls through. `index` is the action of the denial.
    pub(crate) fn access(&mut self, policies: &[&Authorization], index: usize, indent: &str) -> String {
        let mut out = String::new();
        let placed = |policy: &&&Authorization| {
            policy.rules.iter().any(|rule| self.policy.rule(rule.rule).placement() == Placement::Envoy)
                || matches!(policy.action, AuthorizationAction::Custom(_) | AuthorizationAction::Audit)
        };
        if let Some(policy) = policies.iter().find(placed) {
            let _ = writeln!(out, "{indent}return envoy(h); /* {} at {} */", comment(&policy.name), policy.origin);
            return out;
        }
        self.rules.extend(policies.iter().flat_map(|policy| &policy.rules).map(|rule| rule.rule));
        let of = |action: &AuthorizationAction| -> Vec<&Authorization> {
            policies.iter().copied().filter(|policy| policy.action == *action).collect()
        };
        let (deny, allow) = (of(&AuthorizationAction::Deny), of(&AuthorizationAction::Allow));
        for policy in &deny {
            let holds = self.holds(policy);
            let _ = writeln!(out, "{indent}/* DENY {} at {} */", comment(&policy.name), policy.origin);
            let _ = writeln!(out, "{indent}if ({})\n{indent}\treturn answer(h, {index});", holds.certain);
            if !holds.is_known() {
                let _ = writeln!(out, "{indent}if ({})\n{indent}\treturn envoy(h);", holds.maybe);
            }
        }
        if !allow.is_empty() {
            for policy in &allow {
                let _ = writeln!(out, "{indent}/* ALLOW {} at {} */", comment(&policy.name), policy.origin);
            }
            let tests: Vec<_> = allow.iter().map(|policy| self.holds(policy)).collect();
            let any = Test::any(tests);
            if any.is_known() {
                let _ = writeln!(out, "{indent}if (!({}))\n{indent}\treturn answer(h, {index});", any.certain);
            } else {
                let _ = writeln!(
                    out,
                    "{indent}if (!({}))\n{indent}\treturn ({}) ? envoy(h) : answer(h, {index});",
                    any.certain, any.maybe
                );
            }
        }
        out
    }

    /// The number of the policies of a workload: a case of `guard_N`.
    pub(crate) fn guard(&mut self, policies: &[&Authorization], denied: usize) -> Result<usize, SurplusReason> {
        let code = self.access(policies, denied, "\t\t");
        if let Some(index) = self.guards.iter().position(|known| *known == code) {
            return Ok(index);
        }
        if self.guards.len() >= GUARDS_MAX {
            return Err(SurplusReason::TooManyWorkloads);
        }
        self.guards.push(code);
        Ok(self.guards.len() - 1)
    }

    /// The functions `guard_N`, and the calls of those that see an edited head.
    pub(crate) fn guard_functions(&self) -> (String, String) {
        let (mut out, mut calls) = (String::new(), String::new());
        for (function, guards) in self.guards.chunks(GUARDS).enumerate() {
            let mut cases = String::new();
            for (at, code) in guards.iter().enumerate() {
                let _ = writeln!(cases, "\tcase {}:\n{code}\t\tbreak;", function * GUARDS + at);
            }
            let _ = writeln!(
                out,
                "/* Who may reach the workload. 1: decided. */\napart int guard_{function}(struct ud_head *h never_null, \
                 ud_u32 workload)\n{{\n\tswitch (workload) {{\n{cases}\t}}\n\treturn 0;\n}}\n"
            );
        }
        for (action, guard) in &self.checks {
            let _ = writeln!(
                calls,
                "\tcase {action}:\n\t\tif (read_again(h))\n\t\t\treturn -1;\n\t\tguard_{}(h, {guard});\n\t\tbreak;",
                guard / GUARDS
            );
        }
        if !calls.is_empty() {
            calls = format!("\tswitch (h->action) {{\n{calls}\t}}\n");
        }
        (out, calls)
    }

    fn holds(&mut self, policy: &Authorization) -> Test {
        let tests: Vec<_> = policy.rules.iter().map(|rule| self.condition(&rule.condition)).collect();
        Test::any(tests)
    }

    fn condition(&mut self, condition: &Condition) -> Test {
        match condition {
            Condition::All(parts) => {
                let parts: Vec<_> = parts.iter().map(|part| self.condition(part)).collect();
                Test::all(parts)
            }
            Condition::Any(parts) => {
                let parts: Vec<_> = parts.iter().map(|part| self.condition(part)).collect();
                Test::any(parts)
            }
            Condition::Not(part) => self.condition(part).not(),
            Condition::Is(attribute) => self.attribute(attribute),
        }
    }

    fn attribute(&mut self, attribute: &Attribute) -> Test {
        let identity = self.node.sender.identity.clone();
        match attribute {
            Attribute::Path(pattern) => self.string(pattern, &Span::of("path")),
            Attribute::Header(header) => self.header(header),
            Attribute::DestinationPort { start, end } => {
                Test::known(format!("(h->destination.port >= {start} && h->destination.port < {end})"))
            }
            Attribute::DestinationIp(block) => Test::known(destination(block)),
            Attribute::SourceIp(block) => Test::constant(block.contains(self.node.sender.address)),
            Attribute::SourceIdentity(pattern) => match identity {
                None => Test::constant(false),
                Some(_) if pattern.pattern == StringPattern::Prefix(String::new()) => Test::constant(true),
                Some(identity) => constant(pattern, &identity.0),
            },
            Attribute::SourceNamespace(pattern) => match identity.as_ref().and_then(|identity| identity.namespace()) {
                None => Test::constant(false),
                Some(namespace) => constant(pattern, namespace),
            },
            Attribute::RemoteIp(_) | Attribute::Unknown { .. } => Test::unknown(),
        }
    }
}

/// IPv4 and IPv6 never mix, and an IPv4-mapped address is an IPv4 address.
fn destination(block: &IpBlock) -> String {
    let (address, mapped_bits, is_mapped) = match block.address {
        IpAddr::V4(address) => (address.to_ipv6_mapped(), 96, ""),
        IpAddr::V6(address) => (address, 0, "!"),
    };
    let bits = (u32::from(block.prefix_len) + mapped_bits).min(128);
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0).to_be_bytes();
    let mut tests = vec![format!("{is_mapped}is_ipv4(&h->destination)")];
    for (at, (address, mask)) in address.octets().chunks(4).zip(mask.chunks(4)).enumerate() {
        let word = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let (address, mask) = (word(address), word(mask));
        // The first words of an IPv4 address are known.
        if mask != 0 && (at == 3 || mapped_bits == 0) {
            tests.push(format!("(h->destination.ip[{at}] & {mask:#x}) == {:#x}", address & mask));
        }
    }
    format!("({})", tests.join(" && "))
}
