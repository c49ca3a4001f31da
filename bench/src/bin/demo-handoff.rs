//! `make demo-handoff`: the same server relays downloads, then hands the clients' connections to its backends.
//!
//! ```text
//!   clients                     router                    balancer
//! ┌─────────┐   8 links    ┌─────────────┐             ┌──────────┐
//! │         ├──────────────┤             ├─────────────┤          │  relay:   backend -> balancer -> client
//! │         ├──────────────┤             │             └──────────┘  handoff: backend -> client; only the client's
//! │    …    │      …       │             │   ┌──────────┐                    requests and acknowledgements still go
//! │         ├──────────────┤             ├───┤ backend0 │                    by way of the balancer
//! └─────────┘              │             │   └──────────┘ …
//!                          │             │   ┌──────────┐
//!                          │             ├───┤ backend3 │
//!                          └─────────────┘   └──────────┘
//! ```
//!
//! Each is a network namespace of its own, every link has the same rate in both directions, TCP is the kernel's. Clients
//! have eight links, so that theirs are not the limit. `demo-handoff [--quick] [--json FILE]`. Exit code 0: every byte
//! was right and no handoff failed; 1: not so; 4: root or a tool is missing; 70: something else failed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use underdeck_bench::demo::{Verdict, save};
use underdeck_bench::handoff::{Ask, Handoffs, Mode, STEPS, latency, run};
use underdeck_bench::size::show;
use underdeck_lab::network::Offload;
use underdeck_lab::site::{Plan, Site};
use underdeck_lab::{LabError, tools};

/// Five links of this rate are far less than two CPUs of any recent machine can carry: links are the limit.
const RATE_MBIT: u32 = 200;
const CLIENT_LINKS: u8 = 8;
const CLIENTS: usize = 32;
const OBJECT: usize = 1 << 20;
const HANDOFFS: u64 = 1000;
const CROSSOVER: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// What the paper measured, with network cards: microseconds of a step, and what its table calls the step.
const PAPER: [(&str, &str, u32); 6] = [
    ("block", "block", 4),
    ("freeze", "TCP dump", 11),
    ("control", "RPC", 89),
    ("restore", "restore", 59),
    ("redirect_rule", "redirect rule", 4),
    ("ready", "ready", 56),
];
const PAPER_TOTAL: u32 = 225;
/// What follows when the backend owns the connection. Not a part of the whole.
const AFTERWARDS: &str = "confirm";

#[derive(Serialize)]
struct Report {
    schema: u32,
    rate_mbit: u32,
    object_bytes: usize,
    modes: Vec<Mode>,
    /// The same on links without a limit.
    modes_unlimited: Vec<Mode>,
    handoffs: u64,
    failed: u64,
    handoff_us_p50: f64,
    handoff_us_p99: f64,
    steps_us: std::collections::BTreeMap<String, f64>,
    per_request: Vec<Crossing>,
}

/// Every request migrates, against relaying.
#[derive(Serialize)]
struct Crossing {
    object_bytes: usize,
    relay_mb_per_s: f64,
    handoff_mb_per_s: f64,
}

struct Options {
    window: Duration,
    json: PathBuf,
}

fn options() -> Result<Options, String> {
    let mut options = Options { window: Duration::from_secs(6), json: tools::root().join("target/demo-handoff.json") };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => options.window = Duration::from_secs(2),
            "--json" => options.json = arguments.next().ok_or("--json wants a file")?.into(),
            other => return Err(format!("{other}: unknown option; usage: demo-handoff [--quick] [--json FILE]")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    underdeck_bench::demo::run("demo-handoff", options(), demo)
}

/// Runs everything. True if nothing was wrong.
fn demo(options: &Options) -> Verdict {
    let plan = Plan {
        client_links: CLIENT_LINKS,
        rate_mbit: Some(RATE_MBIT),
        offload: Offload::All,
        accounted: true,
        ..Plan::default()
    };
    let site = Site::new(plan)?;
    eprintln!(
        "4 backends, 1 balancer, {CLIENT_LINKS} client links, each {RATE_MBIT} Mbit/s in both directions (tc {}); {CLIENTS} clients, \
         objects of {}, one request for each connection",
        site.shaper().unwrap_or("none"),
        show(OBJECT as u64),
    );
    let ask =
        Ask { clients: CLIENTS, size: OBJECT, per_connection: 1, warmup: options.window / 3, window: options.window };
    let (relay, _) = run(&site, "relay", "relay", &ask)?;
    let (handoff, of_demo) = run(&site, "handoff", "pin", &ask)?;
    print_modes(&relay, &handoff, &of_demo);
    let per_request = crossover(&site, options)?;
    drop(site);
    let unlimited = unlimited(plan, &ask)?;
    let quiet = latency(HANDOFFS)?;
    print_steps(&quiet);
    let right = [&relay, &handoff]
        .into_iter()
        .chain(&unlimited)
        .all(|mode| mode.mismatches + mode.broken == 0 && mode.responses > 0)
        && of_demo.failed + quiet.failed == 0;
    let report = Report {
        schema: 1,
        rate_mbit: RATE_MBIT,
        object_bytes: OBJECT,
        modes: vec![relay, handoff],
        modes_unlimited: unlimited,
        handoffs: of_demo.handoffs + quiet.handoffs,
        failed: of_demo.failed + quiet.failed,
        handoff_us_p50: quiet.handoff_us_p50,
        handoff_us_p99: quiet.handoff_us_p99,
        steps_us: quiet.steps_us,
        per_request,
    };
    save(&report, &options.json)?;
    eprintln!("JSON: {}", options.json.display());
    Ok((!right).then(|| "a byte was wrong, a connection broke, or a handoff failed: see above".to_owned()))
}

/// A slow link makes relaying dear: bytes come in small pieces, each of which wakes a thread. Here the CPUs are the limit,
/// pieces are large, and what a byte costs the balancer is its best case.
fn unlimited(plan: Plan, ask: &Ask) -> Result<Vec<Mode>, LabError> {
    let site = Site::new(Plan { rate_mbit: None, ..plan })?;
    let (relay, _) = run(&site, "relay", "relay", ask)?;
    let (handoff, _) = run(&site, "handoff", "pin", ask)?;
    println!(
        "\nthe same on links without a limit, where all share this machine's CPUs: balancer's CPU {:.2} s/GB relaying, {:.2} \
         handing over: 1/{:.1}",
        relay.balancer_cpu_s_per_gb,
        handoff.balancer_cpu_s_per_gb,
        relay.balancer_cpu_s_per_gb / handoff.balancer_cpu_s_per_gb
    );
    Ok(vec![relay, handoff])
}

fn print_modes(relay: &Mode, handoff: &Mode, handoffs: &Handoffs) {
    println!("mode       MB/s  sent by balancer  balancer CPU s/GB   p50 ms   p99 ms  downloads  wrong  broken");
    for mode in [relay, handoff] {
        println!(
            "{:8} {:6.1} {:15.1} % {:18.2} {:8.0} {:8.0} {:10} {:6} {:7}",
            mode.name,
            mode.mb_per_s,
            mode.balancer_share * 100.0,
            mode.balancer_cpu_s_per_gb,
            mode.p50_ms,
            mode.p99_ms,
            mode.responses,
            mode.mismatches,
            mode.broken
        );
    }
    let carried = handoff.mb_per_s / (4.0 * f64::from(RATE_MBIT) / 8.0);
    let limit = match carried {
        0.85.. => "links, not CPUs, are the limit",
        _ => "CPUs or another program were the limit: DO NOT COMPARE",
    };
    println!("bodies handed over fill {:.0} % of the backends' links: {limit}", carried * 100.0);
    println!(
        "throughput {:.2} times, balancer's CPU per byte 1/{:.1}; {} handoffs, {} failed; under this load, with control messages \
         queueing behind downloads, a handoff took {:.0} us (p50), {:.0} us (p99)",
        handoff.mb_per_s / relay.mb_per_s,
        relay.balancer_cpu_s_per_gb / handoff.balancer_cpu_s_per_gb,
        handoffs.handoffs,
        handoffs.failed,
        handoffs.handoff_us_p50,
        handoffs.handoff_us_p99,
    );
}

fn print_steps(quiet: &Handoffs) {
    println!("\n{} handoffs one by one on links without a limit, median microseconds:", quiet.handoffs);
    let us = |step: &str| quiet.steps_us.get(step).copied().unwrap_or(0.0);
    for step in STEPS.into_iter().filter(|step| *step != AFTERWARDS) {
        let paper = PAPER.iter().find(|(name, ..)| *name == step);
        let paper = paper.map_or_else(String::new, |(_, name, us)| format!("paper: {name} {us}"));
        println!("  {step:14} {:7.1}   {paper}", us(step));
    }
    println!("  {:14} {:7.1}   paper: {PAPER_TOTAL}", "all, p50", quiet.handoff_us_p50);
    println!("  {:14} {:7.1}", "all, p99", quiet.handoff_us_p99);
    println!(
        "  {AFTERWARDS:14} {:7.1}   the backend's word that it has the connection, while it already answers",
        us(AFTERWARDS)
    );
}

/// Every request migrates: from which size on is that faster than relaying?
fn crossover(site: &Site, options: &Options) -> Result<Vec<Crossing>, LabError> {
    println!("\nevery request migrates, {CLIENTS} connections kept alive, same links:");
    println!("   object  relay MB/s  handoff MB/s");
    let mut all: Vec<Crossing> = Vec::new();
    for size in CROSSOVER {
        // The largest take more than a second each, and all begin together.
        let (warmup, window) = (Duration::from_secs(2), options.window / 2);
        let ask = Ask { clients: CLIENTS, size, per_connection: 0, warmup, window };
        let (relay, _) = run(site, "relay", "relay", &ask)?;
        let (handoff, _) = run(site, "per-request 1", "per-request 1", &ask)?;
        println!("{:>9} {:11.1} {:13.1}", show(size as u64), relay.mb_per_s, handoff.mb_per_s);
        all.push(Crossing { object_bytes: size, relay_mb_per_s: relay.mb_per_s, handoff_mb_per_s: handoff.mb_per_s });
    }
    let slower = all.iter().rposition(|it| it.handoff_mb_per_s <= it.relay_mb_per_s);
    match slower.map_or(all.first(), |at| all.get(at + 1)) {
        Some(first) => println!("faster than relaying from {} on", show(first.object_bytes as u64)),
        None => println!("not faster than relaying at any of these sizes"),
    }
    Ok(all)
}
