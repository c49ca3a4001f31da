//! `underdeck-bench anchor`: what `underdeck bench anchor` runs.
//!
//! Exit codes: 0 measured; 1 something answered wrongly or was reset; 2 usage; 4 a privilege or a program is missing; 70
//! everything else.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use underdeck_bench::anchor::{Plan, measure};
use underdeck_bench::machine::Machine;
use underdeck_bench::result::{Document, SCHEMA};
use underdeck_bench::scenario::{Backend, Direction, Framing, Net, Point, Profile, ProxyKind};
use underdeck_bench::stage::{Mode, own_loopback};
use underdeck_bench::{bars, plot, size, syscalls, table};
use underdeck_lab::LabError;

/// Measures the engines side by side with what they are to be better than
#[derive(Debug, Parser)]
#[command(name = "underdeck bench", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    engine: Engine,
}

#[derive(Debug, Subcommand)]
enum Engine {
    Anchor(Anchor),
}

/// Measure proxies plain and under Underdeck, HAProxy's own splicing, a bare splice relay, and no proxy at all
///
/// Every case is run in interleaved rounds: each round runs every mode once, so that drift of the machine hits all.
/// The proxy has CPU 0, clients and backend have CPU 1. Needs root for veth networks and for strace.
#[derive(Debug, Args)]
struct Anchor {
    /// What to measure: full (hours), bars (20 minutes) or quick (4 minutes)
    #[arg(long, value_enum, default_value = "full")]
    profile: Profile,
    /// The same as `--profile quick`: a look at each axis, within 4 minutes
    #[arg(long, conflicts_with = "profile")]
    quick: bool,
    /// Only these proxies
    #[arg(long, value_enum, value_delimiter = ',')]
    proxy: Vec<ProxyKind>,
    /// Only these sizes of bodies, for instance 64k,1m
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    body: Vec<u64>,
    /// Only these numbers of connections
    #[arg(long, value_delimiter = ',')]
    connections: Vec<usize>,
    /// Only these networks
    #[arg(long, value_enum, value_delimiter = ',')]
    network: Vec<Net>,
    /// Only this direction
    #[arg(long, value_enum, value_delimiter = ',')]
    direction: Vec<Direction>,
    /// How the backend (of uploads: the client) sends payload, at every case; default: as the profile says
    ///
    /// `write`, as applications do, is what most cases of a profile have; bodies of 256 KiB and 1 MiB are also sent by
    /// `sendfile`, as servers of files do.
    #[arg(long, value_enum, value_delimiter = ',')]
    backend: Vec<Backend>,
    /// Only this framing
    #[arg(long, value_enum, value_delimiter = ',')]
    framing: Vec<Framing>,
    /// Only these modes
    #[arg(long, value_enum, value_delimiter = ',')]
    mode: Vec<Mode>,
    /// Rounds per case
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pairs: Option<u16>,
    /// Length of each measured window, milliseconds
    #[arg(long, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    window_ms: Option<u64>,
    /// Take bodies in turn from so many bytes, so that they are not in the CPU's cache; 0: always the same bytes
    #[arg(long, default_value = "64m", value_parser = parse_set)]
    working_set: u64,
    /// Measure no latencies in an open loop
    #[arg(long)]
    no_open_loop: bool,
    /// Count no system calls
    #[arg(long)]
    no_system_calls: bool,
    /// Where the JSON goes
    #[arg(long, default_value = "target/bench/anchor.json")]
    json: PathBuf,
    /// Where the plots go
    #[arg(long, default_value = "target/bench/anchor.svg")]
    svg: PathBuf,
}

fn parse_size(text: &str) -> Result<u64, String> {
    let size = size::parse(text).filter(|bytes| *bytes <= 64 << 20);
    size.ok_or_else(|| "a size of up to 64m such as 1000, 64k or 1m".to_owned())
}

fn parse_set(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    let size = size::parse(text).filter(|bytes| *bytes <= 4 << 30);
    size.ok_or_else(|| "0, or a size of up to 4g such as 256m".to_owned())
}

/// An empty list of wishes is all.
fn wanted<T: PartialEq>(wishes: &[T], value: &T) -> bool {
    wishes.is_empty() || wishes.contains(value)
}

impl Anchor {
    fn profile(&self) -> Profile {
        if self.quick { Profile::Quick } else { self.profile }
    }

    fn points(&self) -> Vec<Point> {
        let mut points = self.profile().points();
        if !self.backend.is_empty() {
            let asked = |at: Point| self.backend.iter().map(move |backend| Point { backend: *backend, ..at });
            points = points.into_iter().flat_map(asked).collect();
            points.sort_unstable();
            points.dedup();
        }
        points.retain(|at| {
            wanted(&self.proxy, &at.proxy)
                && wanted(&self.body, &at.body)
                && wanted(&self.connections, &at.connections)
                && wanted(&self.network, &at.network)
                && wanted(&self.direction, &at.direction)
                && wanted(&self.framing, &at.framing)
        });
        points
    }

    fn plan(&self) -> Plan {
        let profile = self.profile();
        // rounds, window, warm-up, bodies of the open loop
        let (pairs, window, warmup, open_loop_bodies) = match profile {
            Profile::Full => (5, 1000, 300, Vec::new()),
            Profile::Bars => (5, 600, 200, Vec::new()),
            Profile::Quick => (5, 200, 80, vec![256 << 10]),
        };
        // No bar is about what these would say, and they would take as long again.
        let all_figures = profile != Profile::Bars;
        let mut modes = vec![Mode::Plain, Mode::Underdeck, Mode::Splice, Mode::Relay];
        if all_figures || self.mode.contains(&Mode::Direct) {
            modes.push(Mode::Direct);
        }
        Plan {
            pairs: self.pairs.map_or(pairs, usize::from),
            window: Duration::from_millis(self.window_ms.unwrap_or(window)),
            warmup: Duration::from_millis(warmup),
            working_set: self.working_set,
            modes: modes.into_iter().filter(|mode| wanted(&self.mode, mode)).collect(),
            open_loop: all_figures && !self.no_open_loop,
            open_loop_bodies,
            system_calls: all_figures && !self.no_system_calls,
        }
    }
}

fn main() -> ExitCode {
    let Engine::Anchor(anchor) = Cli::parse().engine;
    match run(&anchor) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            eprintln!("underdeck bench: {wrong} answers were wrong, missing, or on connections that the engine reset");
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("underdeck bench: {error}");
            let missing = matches!(error, LabError::MissingTool { .. } | LabError::MissingLibrary(_));
            ExitCode::from(if missing { 4 } else { 70 })
        }
    }
}

/// The machine with the network settings that proxies saw.
fn machine() -> Result<Machine, LabError> {
    match own_loopback()? {
        Some(network) => network.client(&[]).within(|| Ok(Machine::here())),
        None => Ok(Machine::here()),
    }
}

/// Measures and reports; how many answers were wrong.
fn run(anchor: &Anchor) -> Result<u64, LabError> {
    let (mut points, mut plan) = (anchor.points(), anchor.plan());
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: veth networks (they need root)");
        points.retain(|at| at.network == Net::Loopback);
    }
    if plan.system_calls && !syscalls::available() {
        eprintln!("skipped: system calls (they need strace, and leave to trace)");
        plan.system_calls = false;
    }
    eprintln!("{} cases, {} rounds of {} ms for each mode", points.len(), plan.pairs, plan.window.as_millis());
    println!("{}", table::head());
    let cases = measure(&points, &plan, |cases| println!("{}", table::point(cases)))?;
    let document = Document {
        schema: SCHEMA,
        command: std::env::args().collect::<Vec<_>>().join(" "),
        pairs: plan.pairs,
        window_s: plan.window.as_secs_f64(),
        working_set_bytes: plan.working_set,
        machine: machine()?,
        cases,
    };
    println!("\n{}\n\n{}", table::LEGEND, bars::show(&bars::of(&document)));
    document.save(&anchor.json)?;
    plot::save(&document, &anchor.svg)?;
    eprintln!("{}\n{}", anchor.json.display(), anchor.svg.display());
    Ok(document.cases.iter().map(|case| case.errors + case.resets).sum())
}
