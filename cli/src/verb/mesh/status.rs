//! `underdeck mesh status`, `stat` and `metrics`: what the agent counts.

use std::path::PathBuf;

use underdeck_mesh_dataplane::Fail;
use underdeck_mesh_dataplane::config::SOCKET;
use underdeck_mesh_dataplane::guard::{self, Found};
use underdeck_mesh_dataplane::status::{Status, StatusError, ask};

use super::MeshError;
use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Where the agent is.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The agent's socket: `socket` in its configuration
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// Print JSON (schema 1)
    #[arg(long)]
    json: bool,
}

fn asked(args: &Args) -> Result<Status, Failure> {
    Ok(ask(&args.socket).map_err(MeshError::from)?)
}

fn print_json(status: &Status, env: &mut Env<'_>) -> Result<Exit, Failure> {
    serde_json::to_writer_pretty(&mut *env.out, status).map_err(std::io::Error::from)?;
    writeln!(env.out)?;
    Ok(Exit::Ok)
}

/// Prints what is in force and which ways requests go.
pub(super) fn status(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let status = match ask(&args.socket) {
        Ok(status) => status,
        Err(error) => return without_agent(args, error, env),
    };
    if args.json {
        return print_json(&status, env);
    }
    let requests = &status.requests;
    let all = requests.kernel + requests.agent + requests.answered + requests.envoy;
    let share = |count: u64| if all == 0 { 0.0 } else { 100.0 * count as f64 / all as f64 };
    writeln!(env.out, "policies     {} in force, {} connections", status.generation, status.connections)?;
    let fail = match status.fail {
        Fail::Open => "open: without the agent, connections go past the policies",
        Fail::Closed => "closed: without the agent, connections are refused",
    };
    writeln!(env.out, "fails        {fail}")?;
    let paths = [
        ("kernel", requests.kernel, "decided and sent on by the kernel"),
        ("agent", requests.agent, "decided by the kernel, sent on by the agent"),
        ("answered", requests.answered, "decided by the kernel, answered by the agent"),
        ("envoy", requests.envoy, "decided by Envoy"),
    ];
    for (name, count, what) in paths {
        writeln!(env.out, "{name:<12} {count:>12} {:>6.2} %  {what}", share(count))?;
    }
    for (reason, count) in &requests.envoy_by_reason {
        writeln!(env.out, "  {reason:<10} {count:>12}")?;
    }
    let responses = &status.responses;
    writeln!(env.out, "responses    {:>12} by the kernel, {} by the agent", responses.kernel, responses.agent)?;
    for upstream in &status.upstreams {
        writeln!(env.out, "upstream     {} {} connections", upstream.address, upstream.connections)?;
    }
    if let Some(trouble) = &status.trouble {
        env.say(trouble);
        return Ok(Exit::Bad);
    }
    Ok(Exit::Ok)
}

/// What refuses connections because the agent is gone.
fn without_agent(args: &Args, error: StatusError, env: &mut Env<'_>) -> Result<Exit, Failure> {
    // Without root nobody can know.
    let mut left = guard::find().unwrap_or_default();
    left.retain(|guard| !guard.is_served);
    if left.is_empty() {
        return Err(MeshError::from(error).into());
    }
    env.say(&error.to_string());
    if args.json {
        writeln!(env.out, "{}", serde_json::json!({"schema": 1, "refused": left}))?;
        return Ok(Exit::Bad);
    }
    for Found { cgroup, services, .. } in &left {
        let services: Vec<_> = services.iter().map(ToString::to_string).collect();
        writeln!(env.out, "refused      {} to {}", cgroup.display(), services.join(", "))?;
    }
    env.say("`underdeck mesh run` takes them over, `underdeck mesh release` lets them through");
    Ok(Exit::Bad)
}

/// Prints requests by rule.
pub(super) fn stat(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let status = asked(args)?;
    if args.json {
        return print_json(&status, env);
    }
    for rule in status.rules.iter().filter(|rule| rule.requests > 0) {
        let place = rule.origin.as_deref().unwrap_or("-");
        writeln!(env.out, "{:>12} kernel  {}  {place}", rule.requests, rule.name)?;
    }
    for (reason, count) in &status.requests.envoy_by_reason {
        writeln!(env.out, "{count:>12} envoy   {reason}")?;
    }
    Ok(Exit::Ok)
}

/// Prints the counters for Prometheus.
pub(super) fn metrics(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let status = asked(args)?;
    if args.json {
        return print_json(&status, env);
    }
    let requests = &status.requests;
    writeln!(env.out, "# TYPE underdeck_mesh_requests counter")?;
    writeln!(env.out, "# HELP underdeck_mesh_requests Requests by the way they went.")?;
    let paths = [("kernel", requests.kernel), ("agent", requests.agent), ("answered", requests.answered)];
    for (path, count) in paths {
        writeln!(env.out, "underdeck_mesh_requests_total{{path=\"{path}\",reason=\"\"}} {count}")?;
    }
    for (reason, count) in &requests.envoy_by_reason {
        writeln!(env.out, "underdeck_mesh_requests_total{{path=\"envoy\",reason=\"{reason}\"}} {count}")?;
    }
    writeln!(env.out, "# TYPE underdeck_mesh_responses counter")?;
    writeln!(
        env.out,
        "# HELP underdeck_mesh_responses Responses to requests that the kernel sent on, by who moved them."
    )?;
    let responses = [("kernel", status.responses.kernel), ("agent", status.responses.agent)];
    for (path, count) in responses {
        writeln!(env.out, "underdeck_mesh_responses_total{{path=\"{path}\"}} {count}")?;
    }
    writeln!(env.out, "# TYPE underdeck_mesh_connections gauge")?;
    writeln!(env.out, "# HELP underdeck_mesh_connections Connections of applications.")?;
    writeln!(env.out, "underdeck_mesh_connections {}", status.connections)?;
    writeln!(env.out, "# EOF")?;
    Ok(Exit::Ok)
}
