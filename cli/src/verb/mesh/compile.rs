//! `underdeck mesh compile DIR|FILE… -o OUT`: policies as one eBPF program per listener.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;
use underdeck_mesh_compiler::{
    Cache, FitError, Node, Object, Program, Timing, build, fit, generate, include_files, samples, time,
    verified_instructions,
};
use underdeck_mesh_policy::evaluate::{Identity, Sender};
use underdeck_mesh_policy::form::{Listener, Policy};
use underdeck_mesh_policy::read::{load, read};

use super::MeshError;
use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Make one eBPF program per listener from policies
///
/// Writes policy.json (what was read, in one form) and, for each listener, a folder with policy.bpf.c (the program; each
/// part names the place in the policies that it came from), policy.bpf.o and program.json (what the numbers in it mean,
/// and what is left to Envoy). Objects are kept in a cache by the hash of all that goes into them. Needs clang-19.
/// Ends with 1 when a document cannot be read.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files, or directories with all .yaml, .yml and .json files in them
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Where to write
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Only this listener: mesh, "gateway NAMESPACE/NAME", or the name of a listener of Envoy
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Who sends the requests: cluster.local/ns/NAMESPACE/sa/NAME; no identity if not given
    #[arg(long, value_name = "IDENTITY")]
    source: Option<String>,
    /// From which address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    source_ip: IpAddr,
    /// Where objects are kept [default: XDG_CACHE_HOME/underdeck/mesh or HOME/.cache/underdeck/mesh]
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Load each program and print what it costs; needs root
    #[arg(long)]
    stats: bool,
    /// Print JSON (schema 1)
    #[arg(long)]
    json: bool,
}

/// One listener, as it is printed.
#[derive(Debug, Serialize)]
struct Compiled {
    listener: String,
    folder: PathBuf,
    hash: String,
    cached: bool,
    object_bytes: usize,
    #[serde(flatten)]
    program: Program,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Stats>,
}

#[derive(Debug, Serialize)]
struct Stats {
    verified_instructions: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<Timing>,
}

/// Reads, compiles, writes and prints.
pub(super) fn compile(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let reading = read(&load(&args.paths).map_err(MeshError::from)?);
    for error in &reading.errors {
        env.say(&error.to_string());
    }
    let policy = &reading.policy;
    let listeners = super::listeners(policy, args.listener.as_deref(), &args.paths)?;
    let node = Node {
        sender: Sender {
            identity: args.source.as_deref().map(|id| Identity(id.trim_start_matches("spiffe://").to_owned())),
            labels: None,
            address: args.source_ip,
        },
    };
    let cache = Cache(args.cache.clone().or_else(|| default_cache(env)));
    write(&args.output.join("policy.json"), &serde_json::to_vec_pretty(&Form { schema: 1, policy })?)?;
    for (name, text) in include_files() {
        write(&args.output.join("include").join(name), text.as_bytes())?;
    }
    let (mut taken, mut all) = (BTreeSet::from(["include".to_owned()]), Vec::new());
    for listener in listeners {
        let folder = args.output.join(folder_name(&listener.name, &mut taken));
        let (program, object, stats) = make(policy, listener, &node, &cache, args.stats)?;
        write(&folder.join("policy.bpf.c"), program.source.as_bytes())?;
        write(&folder.join("policy.bpf.o"), &object.bytes)?;
        let (hash, cached, object_bytes) = (object.hash, object.cached, object.bytes.len());
        let compiled = Compiled { listener: listener.name.clone(), folder, hash, cached, object_bytes, program, stats };
        write(&compiled.folder.join("program.json"), &serde_json::to_vec_pretty(&compiled)?)?;
        if !args.json {
            print(&compiled, env)?;
        }
        all.push(compiled);
    }
    if args.json {
        writeln!(env.out, "{}", serde_json::to_string(&serde_json::json!({"schema": 1, "listeners": all}))?)?;
    }
    Ok(if reading.errors.is_empty() { Exit::Ok } else { Exit::Bad })
}

#[derive(Serialize)]
struct Form<'a> {
    schema: u32,
    policy: &'a Policy,
}

fn make(
    policy: &Policy,
    listener: &Listener,
    node: &Node,
    cache: &Cache,
    stats: bool,
) -> Result<(Program, Object, Option<Stats>), MeshError> {
    let of_build = |source| MeshError::Build { listener: listener.name.clone(), source };
    let of_load = |source| MeshError::Trial { listener: listener.name.clone(), source };
    if !stats {
        let program = generate(policy, listener, node);
        let object = build(&program.source, cache).map_err(of_build)?;
        return Ok((program, object, None));
    }
    let mut fitted = fit(policy, listener, node, cache).map_err(|error| match error {
        FitError::Build(source) => of_build(source),
        FitError::Load(source) => of_load(source),
    })?;
    let verified_instructions = verified_instructions(&fitted.object.bytes).map_err(of_load)?;
    let decision = time(&mut fitted.trial, &samples(listener)).map_err(of_load)?;
    Ok((fitted.program, fitted.object, Some(Stats { verified_instructions, decision })))
}

fn print(compiled: &Compiled, env: &mut Env<'_>) -> Result<(), Failure> {
    let Compiled { listener, folder, program, .. } = compiled;
    writeln!(
        env.out,
        "{}: listener {listener}: {} routes, {} actions, {} clusters, {} bytes{}",
        folder.join("policy.bpf.o").display(),
        program.routes,
        program.actions.len(),
        program.clusters.len(),
        compiled.object_bytes,
        if compiled.cached { ", from the cache" } else { "" },
    )?;
    for surplus in &program.surplus {
        writeln!(env.out, "    {}: left to Envoy: {}: {}", surplus.origin, surplus.reason, surplus.reason.text())?;
    }
    if let Some(stats) = &compiled.stats {
        writeln!(env.out, "    {} instructions verified", stats.verified_instructions)?;
        if let Some(Timing { requests, min_ns, median_ns, max_ns }) = stats.decision {
            writeln!(
                env.out,
                "    {median_ns} ns for one request (median of {requests} requests, {min_ns} to {max_ns} ns)"
            )?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), MeshError> {
    let written = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(path, bytes));
    written.map_err(|source| MeshError::Write { path: path.to_owned(), source })
}

/// `gateway demo/edge` becomes `gateway-demo-edge`.
fn folder_name(listener: &str, taken: &mut BTreeSet<String>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let name: String = listener.chars().map(plain).collect();
    let mut free = name.clone();
    for number in 2.. {
        if taken.insert(free.clone()) {
            break;
        }
        free = format!("{name}-{number}");
    }
    free
}

fn default_cache(env: &Env<'_>) -> Option<PathBuf> {
    let of_home = || env.var("HOME").map(|home| Path::new(home).join(".cache"));
    Some(env.var("XDG_CACHE_HOME").map(PathBuf::from).or_else(of_home)?.join("underdeck/mesh"))
}
