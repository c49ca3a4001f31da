//! Reading the fields of a document so that none is passed over in silence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::yaml::{Node, Value};
use crate::form::{Finding, Origin, Reason};

/// What was found while a rule was read.
#[derive(Debug)]
pub(super) struct Notes {
    file: Arc<str>,
    pub(super) findings: Vec<Finding>,
}

impl Notes {
    pub(super) fn new(file: &Arc<str>) -> Self {
        Self { file: file.clone(), findings: Vec::new() }
    }

    /// With what holds for the whole document.
    pub(super) fn with(file: &Arc<str>, findings: &[Finding]) -> Self {
        Self { file: file.clone(), findings: findings.to_vec() }
    }

    pub(super) fn add(&mut self, reason: Reason, at: &Node, what: impl Into<String>) {
        self.findings.push(Finding { reason, origin: at.at(&self.file), what: what.into() });
    }

    pub(super) fn at(&self, node: &Node) -> Origin {
        node.at(&self.file)
    }

    fn invalid<T>(&mut self, at: &Node, what: &str, wanted: &str) -> Option<T> {
        self.add(Reason::InvalidValue, at, format!("{what}: {wanted} is expected here"));
        None
    }

    pub(super) fn text(&mut self, node: &Node, what: &str) -> Option<String> {
        match &node.value {
            Value::Text(text) => Some(text.clone()),
            _ => self.invalid(node, what, "a string"),
        }
    }

    pub(super) fn integer<T: std::str::FromStr>(&mut self, node: &Node, what: &str) -> Option<T> {
        let parsed = match &node.value {
            Value::Number(text) | Value::Text(text) => text.parse().ok(),
            _ => None,
        };
        parsed.or_else(|| self.invalid(node, what, "a whole number in range"))
    }

    pub(super) fn boolean(&mut self, node: &Node, what: &str) -> Option<bool> {
        match &node.value {
            Value::Bool(value) => Some(*value),
            _ => self.invalid(node, what, "true or false"),
        }
    }

    /// `1.5s`, `100ms`, `1h2m3s`.
    pub(super) fn duration(&mut self, node: &Node, what: &str) -> Option<Duration> {
        let parsed = if let Value::Text(text) = &node.value { duration(text) } else { None };
        parsed.or_else(|| self.invalid(node, what, "a duration such as 2s"))
    }

    pub(super) fn list<'a>(&mut self, node: &'a Node, what: &str) -> &'a [Node] {
        if !matches!(node.value, Value::List(_)) {
            self.invalid::<()>(node, what, "a list");
        }
        node.items()
    }

    pub(super) fn texts(&mut self, node: &Node, what: &str) -> Vec<String> {
        self.list(node, what).iter().filter_map(|item| self.text(item, what)).collect()
    }

    /// A map of strings, such as labels.
    pub(super) fn labels(&mut self, node: &Node, what: &str) -> BTreeMap<String, String> {
        if !matches!(node.value, Value::Map(_)) {
            self.invalid::<()>(node, what, "a map");
        }
        let pair = |(key, value): &(Node, Node)| Some((key.text().to_owned(), self.text(value, what)?));
        node.members().iter().filter_map(pair).collect()
    }

    /// The value is missing where the field must be.
    pub(super) fn missing(&mut self, at: &Node, what: &str) {
        self.add(Reason::InvalidValue, at, format!("{what} is missing"));
    }
}

/// Go's notation of durations, and protobuf's.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (mut rest, mut total) = (text.trim(), Duration::ZERO);
    if rest == "0" {
        return Some(total);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let amount: f64 = rest[..digits].parse().ok()?;
        let unit_len = rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        let seconds = match &rest[digits..digits + unit_len] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(amount * seconds).ok()?)?;
        rest = &rest[digits + unit_len..];
    }
    (!text.trim().is_empty()).then_some(total)
}

/// The members of a map, each taken by name; what was not taken is a finding.
pub(super) struct Fields<'a> {
    node: &'a Node,
    taken: Vec<&'static str>,
    /// Protobuf's JSON names are taken in both spellings.
    both_cases: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn of(node: &'a Node, notes: &mut Notes, what: &str) -> Self {
        if !matches!(node.value, Value::Map(_)) && !node.is_null() {
            notes.invalid::<()>(node, what, "a map");
        }
        Self { node, taken: Vec::new(), both_cases: false }
    }

    /// With protobuf's names: `prefix_rewrite` takes `prefixRewrite` too.
    pub(super) fn of_proto(node: &'a Node, notes: &mut Notes, what: &str) -> Self {
        Self { both_cases: true, ..Self::of(node, notes, what) }
    }

    pub(super) fn node(&self) -> &'a Node {
        self.node
    }

    /// The value; None where it is absent or null.
    pub(super) fn take(&mut self, name: &'static str) -> Option<&'a Node> {
        self.taken.push(name);
        let found = self.node.get(name);
        if found.is_some() || !self.both_cases {
            return found;
        }
        self.node.get(&camel(name))
    }

    /// Fields that describe and do not act.
    pub(super) fn pass_over(&mut self, names: &[&'static str]) {
        self.taken.extend(names);
    }

    /// The field makes the rule Envoy's.
    pub(super) fn envoy(&mut self, name: &'static str, reason: Reason, notes: &mut Notes) {
        if let Some(node) = self.take(name) {
            notes.add(reason, node, name);
        }
    }

    /// What is left is unknown.
    pub(super) fn finish(self, notes: &mut Notes) {
        for (key, _) in self.node.members() {
            let name = key.text();
            let known = |taken: &&str| *taken == name || (self.both_cases && camel(taken) == name);
            if !self.taken.iter().any(known) {
                notes.add(Reason::UnknownField, key, name);
            }
        }
    }
}

/// `static_resources` as `staticResources`.
fn camel(name: &str) -> String {
    let mut upper = false;
    let mut out = String::new();
    for c in name.chars() {
        match c {
            '_' => upper = true,
            c if upper => {
                out.push(c.to_ascii_uppercase());
                upper = false;
            }
            c => out.push(c),
        }
    }
    out
}
