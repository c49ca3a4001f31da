//! `underdeck mesh check DIR|FILE…`: where each rule is enforced, and why.

use std::path::PathBuf;

use underdeck_mesh_policy::check::{Report, RuleReport, report};
use underdeck_mesh_policy::form::{Placement, Reason};
use underdeck_mesh_policy::read::{load, read};

use super::MeshError;
use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Read policies and say, rule by rule, whether the kernel can enforce them
///
/// Reads Istio, the Gateway API and static Envoy configuration. What is given together is one set: what one document
/// says of a service holds for the routes of all others. A rule is `kernel` only if the kernel enforces all of it; a
/// field that is not known makes it `envoy`. Ends with 1 when a document cannot be read.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files, or directories with all .yaml, .yml and .json files in them
    #[arg(required_unless_present = "explain", value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Print JSON (schema 1)
    #[arg(long)]
    json: bool,
    /// Explain a reason instead, such as fault-delay; "list" lists them all
    #[arg(long, value_name = "REASON", conflicts_with = "paths")]
    explain: Option<String>,
}

/// Reads, places and prints.
pub(super) fn check(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    if let Some(reason) = &args.explain {
        return explain(reason, env);
    }
    let reading = read(&load(&args.paths).map_err(MeshError::from)?);
    for error in &reading.errors {
        env.say(&error.to_string());
    }
    let report = report(&reading);
    if args.json {
        writeln!(env.out, "{}", serde_json::to_string(&report)?)?;
    } else {
        for rule in &report.rules {
            print(rule, env)?;
        }
        summary(&report, reading.errors.len(), env)?;
    }
    Ok(if reading.errors.is_empty() { Exit::Ok } else { Exit::Bad })
}

fn print(rule: &RuleReport, env: &mut Env<'_>) -> Result<(), Failure> {
    let place = format!("{}:{}:{}", rule.file, rule.line, rule.col);
    writeln!(env.out, "{place}: {} {}", rule.placement, rule.rule)?;
    for reason in &rule.reasons {
        let place = format!("{}:{}:{}", reason.file, reason.line, reason.col);
        writeln!(env.out, "    {place}: {}: {}", reason.code, reason.what)?;
    }
    for reason in &rule.because_of {
        let place = format!("{}:{}:{}", reason.file, reason.line, reason.col);
        writeln!(env.out, "    its requests go to Envoy because of {place}: {}: {}", reason.code, reason.what)?;
    }
    Ok(())
}

fn summary(report: &Report, errors: usize, env: &mut Env<'_>) -> Result<(), Failure> {
    let sums = &report.summary;
    let share = |part: usize| if sums.rules == 0 { 0.0 } else { 100.0 * part as f64 / sums.rules as f64 };
    let led = report.rules.iter().filter(|r| r.placement == Placement::Kernel && !r.because_of.is_empty()).count();
    writeln!(
        env.out,
        "{} rules in {} documents: {} kernel ({:.1} %), {} envoy",
        sums.rules,
        sums.documents,
        sums.rules_kernel,
        share(sums.rules_kernel),
        sums.rules_envoy
    )?;
    if led > 0 {
        writeln!(env.out, "{led} of the rules for the kernel lead to Envoy because of another rule of this set")?;
    }
    if errors > 0 {
        writeln!(env.out, "{errors} errors; documents with errors are in force nowhere and not counted")?;
    }
    let mut reasons: Vec<_> = sums.by_reason.iter().collect();
    reasons.sort_by_key(|(code, count)| (std::cmp::Reverse(**count), **code));
    for (code, count) in reasons {
        writeln!(env.out, "{count:6} {code}")?;
    }
    Ok(())
}

fn explain(code: &str, env: &mut Env<'_>) -> Result<Exit, Failure> {
    if code == "list" {
        for reason in Reason::ALL {
            writeln!(env.out, "{:20} {}", reason.code(), reason.text())?;
        }
        return Ok(Exit::Ok);
    }
    let reason = Reason::ALL.iter().find(|reason| reason.code() == code);
    let reason = reason.ok_or_else(|| MeshError::NoReason(code.to_owned()))?;
    writeln!(env.out, "{}", reason.text())?;
    Ok(Exit::Ok)
}
