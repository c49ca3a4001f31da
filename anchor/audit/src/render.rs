//! A report as text for people.

use std::fmt::Write;

use crate::report::{Direction, Finding, Outcome, Report, Route, Severity};

/// Version of the JSON form of a [`Report`].
pub const SCHEMA: u32 = 1;

/// Serialises as `{"schema":1,"clean":…,"refused":…,"leave_out":"…",` and the fields of the report.
#[derive(serde::Serialize)]
struct Document<'a> {
    schema: u32,
    clean: bool,
    refused: bool,
    leave_out: String,
    #[serde(flatten)]
    report: &'a Report,
}

impl Report {
    /// The report as JSON, in a stable order, with the plan's text as `leave_out`.
    ///
    /// # Errors
    /// Never in practice: every part of a report has a JSON form.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(&Document {
            schema: SCHEMA,
            clean: self.is_clean(),
            refused: self.is_refused(),
            leave_out: self.plan.to_string(),
            report: self,
        })
    }
}

impl Outcome {
    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Untouched => "untouched",
            Self::Passed => "passed",
            Self::Materialised => "materialised",
            Self::LeftOut => "left out",
            Self::Refused => "refused",
        }
    }
}

/// The report as plain text: a table of routes, then the findings with what to do. Notes of one code are one entry,
/// unless `all` is set.
pub fn text(report: &Report, all: bool) -> String {
    let mut out = String::new();
    routes(&mut out, &report.routes, &report.findings);
    let mut told: Vec<&str> = Vec::new();
    for finding in &report.findings {
        let more = report.findings.iter().filter(|f| f.code == finding.code).count() - 1;
        let fold = finding.severity == Severity::Note && more > 0 && !all;
        if fold && told.contains(&finding.code) {
            continue;
        }
        describe(&mut out, finding, if fold { more } else { 0 }, !told.contains(&finding.code));
        told.push(finding.code);
    }
    let _ = write!(out, "{}", verdict(report));
    out
}

fn routes(out: &mut String, routes: &[Route], findings: &[Finding]) {
    if routes.is_empty() {
        return;
    }
    let width = |cells: &mut dyn Iterator<Item = usize>, least: usize| cells.max().unwrap_or(0).max(least);
    let scope = width(&mut routes.iter().map(|r| r.scope.chars().count()), 5);
    let _ = writeln!(out, "{:scope$}  {:12}  {:12}  CODES", "ROUTE", "REQUESTS", "RESPONSES");
    for route in routes {
        let mut codes: Vec<_> = route.findings.iter().map(|&i| findings[i].code).collect();
        codes.sort_unstable();
        codes.dedup();
        if is_left_out_with_another(route, findings) {
            codes.push("(shares an address with another route)");
        }
        let line = format!(
            "{:scope$}  {:12}  {:12}  {}",
            route.scope,
            route.requests.words(),
            route.responses.words(),
            codes.join(" ")
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push('\n');
}

/// Whether the route's own findings do not explain that it is left out.
fn is_left_out_with_another(route: &Route, findings: &[Finding]) -> bool {
    let own = |has: fn(Direction) -> bool| {
        let here = route.findings.iter().map(|&i| &findings[i]).filter(|f| has(f.direction));
        here.map(|f| f.outcome).max().unwrap_or(Outcome::Untouched)
    };
    let worse = |outcome: Outcome, own: Outcome| outcome >= Outcome::LeftOut && own < Outcome::LeftOut;
    worse(route.requests, own(Direction::has_requests)) || worse(route.responses, own(Direction::has_responses))
}

fn describe(out: &mut String, f: &Finding, more: usize, with_advice: bool) {
    let severity = match f.severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let others = if more > 0 { format!(" (and {more} more)") } else { String::new() };
    let _ = writeln!(out, "{}:{}:{}: {severity} {}: `{}`{others}", f.file, f.line, f.col, f.code, f.directive);
    let _ = writeln!(out, "    {}: {}", f.outcome.words(), f.scope);
    if with_advice {
        let _ = writeln!(out, "    {}\n    {}", f.message, f.advice);
    }
}

fn verdict(report: &Report) -> String {
    let warnings = report.findings.iter().filter(|f| f.severity > Severity::Note).count();
    let notes = report.findings.len() - warnings;
    let plan = report.plan.to_string();
    let left_out = if plan.is_empty() { "nothing".to_owned() } else { plan };
    let refused = if report.is_refused() { "; refused" } else { "" };
    format!("{} routes, {warnings} findings, {notes} notes{refused}; left out: {left_out}\n", report.routes.len())
}
