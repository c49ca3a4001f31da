//! The seam between `run` and the audit of the program's configuration.

use std::ffi::OsString;
use std::path::Path;

use underdeck_audit::{AuditError, Finding, Options, Outcome, Report, Severity, check_files, find_configs};

/// Findings that are printed; more are counted.
const LINES: usize = 10;

/// What the audit says about a command line before it is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Value of UNDERDECK_LEAVE_OUT: listeners and upstream servers that must be left alone, perhaps none. Without a configuration
    /// that was understood there is no value.
    pub leave_out: Option<String>,
    /// What to tell the user, a line each.
    pub messages: Vec<String>,
    /// The configuration cannot be served safely at all, or nobody knows.
    pub refused: bool,
}

/// Audits the configuration that `argv` (with the program's path first) would use in `directory`. Programs that the
/// audit does not know have none.
pub fn check(argv: &[OsString], directory: &Path, tls_is_visible: bool) -> Verdict {
    let Some(line) = find_configs(argv, directory) else { return Verdict::default() };
    if line.files.is_empty() && line.inline.is_none() {
        return Verdict::default();
    }
    judge(check_files(&line.files, &Options { tls_is_visible, ..line.options() }))
}

fn judge(result: Result<Report, AuditError>) -> Verdict {
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            let message = format!("{error}; without its configuration nobody knows what is safe");
            return Verdict { leave_out: None, messages: vec![message], refused: true };
        }
    };
    let plan = report.plan.to_string();
    Verdict { messages: messages(&report, &plan), refused: report.is_refused(), leave_out: Some(plan) }
}

fn messages(report: &Report, plan: &str) -> Vec<String> {
    let matters: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|finding| finding.outcome >= Outcome::LeftOut && finding.severity > Severity::Note)
        .collect();
    let line = |finding: &&Finding| {
        let Finding { file, line, col, outcome, code, directive, message, .. } = finding;
        format!("{file}:{line}:{col}: {}: {code} `{directive}`: {message}", outcome.words())
    };
    let mut messages: Vec<String> = matters.iter().take(LINES).map(line).collect();
    if matters.len() > LINES {
        messages.push(format!("and {} more", matters.len() - LINES));
    }
    if !plan.is_empty() {
        messages.push(format!("copied as without Underdeck: {plan}"));
    }
    if !messages.is_empty() {
        messages.push(format!("more: underdeck check {}", report.files.first().map_or("FILE", String::as_str)));
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Verdict {
        judge(underdeck_audit::check_text(text, "nginx.conf".as_ref(), &Options::default()))
    }

    fn nginx(directives: &str) -> String {
        let server = format!("listen 80; proxy_request_buffering off; proxy_next_upstream off; {directives}");
        format!("events {{}}\nhttp {{ server {{ {server} location / {{ proxy_pass http://10.0.0.5:80; }} }} }}\n")
    }

    #[test]
    fn a_clean_configuration_is_silent() {
        assert_eq!(of(&nginx("")), Verdict { leave_out: Some(String::new()), ..Verdict::default() });
    }

    #[test]
    fn what_is_looked_at_is_left_out_and_named() {
        let verdict = of(&nginx("sub_filter a b;"));
        assert!(!verdict.refused);
        assert!(verdict.leave_out.is_some_and(|plan| plan.contains("10.0.0.5:80")));
        assert!(verdict.messages[0].starts_with("nginx.conf:2:"), "{:?}", verdict.messages);
    }

    #[test]
    fn many_findings_are_counted() {
        let location = |n| format!("location /{n} {{ sub_filter a b; proxy_pass http://10.0.0.5:80; }}\n");
        let verdict = of(&nginx(&(0..30).map(location).collect::<String>()));
        assert!(verdict.messages.iter().any(|line| line == "and 20 more"), "{:?}", verdict.messages);
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_refused() {
        let verdict = of("http { server {");
        assert!(verdict.refused && verdict.leave_out.is_none());
        assert!(verdict.messages[0].starts_with("nginx.conf:"), "{:?}", verdict.messages);
    }
}
