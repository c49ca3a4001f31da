//! `underdeck mesh explain FILE --request '…'`: what happens to one request, rule by rule.

use std::path::PathBuf;

use underdeck_mesh_policy::evaluate::{Decision, Outcome, Request, Step, evaluate, parse};
use underdeck_mesh_policy::form::{HeaderEdits, Placement, Policy};
use underdeck_mesh_policy::read::{load, read};

use super::MeshError;
use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Say which rule takes a request, what happens to it, and where
///
/// The request is written as `METHOD PATH name=value…`. The names host, port, source (the identity of the sender),
/// source-ip, source-label and destination-ip have a meaning of their own, every other one is a header.
/// Example: 'GET /api/v1 host=reviews x-user=jason source=cluster.local/ns/a/sa/b'
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files, or directories with all .yaml, .yml and .json files in them
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<PathBuf>,
    /// The request
    #[arg(long, value_name = "REQUEST")]
    request: String,
    /// Where it comes in: mesh, "gateway NAMESPACE/NAME", or the name of a listener of Envoy; all if not given
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
}

/// Reads, evaluates and prints.
pub(super) fn explain(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let request = parse(&args.request).map_err(MeshError::from)?;
    let reading = read(&load(&args.paths).map_err(MeshError::from)?);
    for error in &reading.errors {
        env.say(&error.to_string());
    }
    let policy = &reading.policy;
    let listeners = super::listeners(policy, args.listener.as_deref(), &args.paths)?;
    for listener in listeners {
        writeln!(env.out, "{}: listener {}", listener.origin, listener.name)?;
        let decision = evaluate(policy, listener, &request);
        for step in &decision.steps {
            print_step(policy, step, env)?;
        }
        print_outcomes(policy, &decision, &request, env)?;
    }
    Ok(if reading.errors.is_empty() { Exit::Ok } else { Exit::Bad })
}

fn print_step(policy: &Policy, step: &Step, env: &mut Env<'_>) -> Result<(), Failure> {
    let place = step.origin.as_ref().map(|origin| format!("{origin}: ")).unwrap_or_default();
    let Some(rule) = step.rule.map(|id| policy.rule(id)) else {
        writeln!(env.out, "  {place}{}", step.what)?;
        return Ok(());
    };
    writeln!(env.out, "  {place}{} ({})", step.what, rule.name)?;
    for finding in rule.findings.iter().chain(&rule.inherited) {
        writeln!(env.out, "    {}: {}: {}", finding.origin, finding.reason, finding.what)?;
    }
    Ok(())
}

fn print_outcomes(policy: &Policy, decision: &Decision, request: &Request, env: &mut Env<'_>) -> Result<(), Failure> {
    let rules = decision.steps.iter().filter_map(|step| step.rule).map(|id| policy.rule(id));
    let in_kernel = rules.clone().all(|rule| rule.placement() == Placement::Kernel);
    let is_known = !decision.outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Unknown { .. }));
    let place = if in_kernel && is_known { Placement::Kernel } else { Placement::Envoy };
    let sum: u64 = decision.outcomes.iter().map(|(weight, _)| weight).sum();
    for (weight, outcome) in &decision.outcomes {
        let share = if decision.outcomes.len() > 1 {
            format!("{:.2} %: ", 100.0 * *weight as f64 / sum.max(1) as f64)
        } else {
            String::new()
        };
        write!(env.out, "  {share}")?;
        print_outcome(outcome, request, env)?;
    }
    writeln!(env.out, "  enforced by: {place}")?;
    Ok(())
}

fn print_outcome(outcome: &Outcome, request: &Request, env: &mut Env<'_>) -> Result<(), Failure> {
    match outcome {
        Outcome::Forward(upstream) => {
            writeln!(env.out, "forwarded to {}", upstream.cluster)?;
            writeln!(env.out, "    {} {} host={}", request.method, upstream.path, upstream.authority)?;
            for (name, value) in &upstream.headers {
                writeln!(env.out, "    {name}: {value}")?;
            }
            for edits in &upstream.response_edits {
                print_edits(edits, env)?;
            }
        }
        Outcome::Answer(answer) => {
            writeln!(env.out, "answered with {}", answer.status)?;
            for (name, value) in &answer.headers {
                writeln!(env.out, "    {name}: {value}")?;
            }
            if !answer.body.is_empty() {
                writeln!(env.out, "    {}", answer.body)?;
            }
        }
        Outcome::OriginalDestination => writeln!(env.out, "passed on unchanged to where it was meant to go")?,
        Outcome::Unknown { what } => writeln!(env.out, "only Envoy knows: {what}")?,
    }
    Ok(())
}

fn print_edits(edits: &HeaderEdits, env: &mut Env<'_>) -> Result<(), Failure> {
    for name in &edits.remove {
        writeln!(env.out, "    response: remove {name}")?;
    }
    for edit in &edits.add {
        writeln!(env.out, "    response: {} {}: {}", mode(edit), edit.name, edit.value)?;
    }
    Ok(())
}

fn mode(edit: &underdeck_mesh_policy::form::HeaderEdit) -> &'static str {
    use underdeck_mesh_policy::form::HeaderEditMode::{AddIfAbsent, Append, Set, SetIfPresent};
    match edit.mode {
        Append => "add",
        Set => "set",
        AddIfAbsent => "add if absent",
        SetIfPresent => "set if present",
    }
}
