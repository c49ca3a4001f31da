//! `make demo-mesh`: five services that call each other, behind Envoy sidecars, the same with a bypass at Layer 4, and
//! Underdeck; then a single call.
//!
//! ```text
//! envoy      client ─> [Envoy] ─> front ─> [Envoy] ─> [Envoy] ─> timeline ─> [Envoy] ─> [Envoy] ─> user, text, media
//! envoy-l4   the same; bytes between any two of these sockets skip TCP
//! underdeck  client ─────────────> front ───────────────────────> timeline ───────────────────────> user, text, media
//! ```
//!
//! Beside these: `underdeck-tcp`, where services are reached by TCP as if they were on other hosts; `envoy-out`, with
//! sidecars only where requests leave (and one before the front); `direct`, with nothing in between.
//!
//! All planes run at the same time and are asked in turns, so that what else the machine does hits all of them. Policies are those of
//! `bench/policies`, for all. `demo-mesh [--quick | --smoke] [--plane NAME]… [--json FILE]`. Exit code 0: every byte was right; 1: not so;
//! 4: root or a tool is missing; 70: something else failed.

use std::path::PathBuf;
use std::process::ExitCode;

use underdeck_bench::demo::{Verdict, save};
use underdeck_bench::mesh::awake::Awake;
use underdeck_bench::mesh::drive::{Drive, Driven, What};
use underdeck_bench::mesh::figures::{Gains, Hop, Plane as Figures, Report, Slice, Spread, Step};
use underdeck_bench::mesh::plane::{Kind, Plane};
use underdeck_bench::size::show;
use underdeck_lab::place::Place;
use underdeck_lab::timeline::CALLS;
use underdeck_lab::{LabError, tools};

const SIZES: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const CONNECTIONS: usize = 32;
/// Shares of what Envoy sidecars can do at most; the one in the middle is the moderate load.
const SHARES: [f64; 3] = [0.2, 0.5, 0.8];
/// Of what Underdeck can do at most, where sidecars could not follow.
const BEYOND: [f64; 2] = [0.5, 0.8];

const USAGE: &str = "usage: demo-mesh [--quick | --smoke] [--plane NAME]… [--json FILE]";

struct Options {
    rounds: usize,
    window_ms: u64,
    hop_ms: u64,
    hop_connections: Vec<usize>,
    kinds: Vec<Kind>,
    json: PathBuf,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        rounds: 3,
        window_ms: 1000,
        hop_ms: 150,
        hop_connections: vec![1, 8, 64],
        kinds: Kind::ALL.to_vec(),
        json: tools::root().join("target/demo-mesh.json"),
    };
    let mut planes = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => (options.rounds, options.window_ms, options.hop_ms) = (2, 400, 100),
            "--smoke" => {
                (options.rounds, options.window_ms, options.hop_ms) = (1, 400, 100);
                options.hop_connections = vec![1];
            }
            "--plane" => {
                let name = arguments.next().ok_or("--plane wants a name")?;
                let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
                planes.push(kind.ok_or_else(|| format!("{name}: there is no such plane"))?);
            }
            "--json" => options.json = arguments.next().ok_or("--json wants a file")?.into(),
            other => {
                return Err(format!("{other}: unknown option; {USAGE}"));
            }
        }
    }
    if !planes.is_empty() {
        options.kinds = planes;
    }
    Ok(options)
}

fn main() -> ExitCode {
    underdeck_bench::demo::run("demo-mesh", options(), demo)
}

/// The client has the last CPU, everything else the others.
struct Stage {
    planes: Vec<Plane>,
    client: Place,
    /// The client has a CPU of its own.
    apart: bool,
    _awake: Awake,
}

impl Stage {
    fn new(kinds: &[Kind]) -> Result<Self, LabError> {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (client, others) = match cpus {
            1 => (Place::default(), Place::default()),
            _ => (Place::on(&[cpus - 1]), Place::on(&(0..cpus - 1).collect::<Vec<_>>())),
        };
        let start = |kind: &Kind| Plane::start(*kind, &others, &SIZES);
        let planes = kinds.iter().map(start).collect::<Result<_, _>>()?;
        Ok(Self { planes, client, apart: cpus > 1, _awake: Awake::keep(&others.cpus) })
    }

    fn plane(&self, kind: Kind) -> Option<&Plane> {
        self.planes.iter().find(|plane| plane.kind == kind)
    }

    fn timelines(&self, plane: &Plane, step: Step, window_ms: u64) -> Result<Driven, LabError> {
        let rate = match step {
            Step::Rate(rate) => Some(rate),
            Step::Max => None,
        };
        let warmup_ms = window_ms / 4;
        let (what, connections, awake) = (What::Timelines, CONNECTIONS, self.apart);
        let drive = Drive { what, connections, rate, awake, warmup_ms, window_ms };
        drive.run(plane, &self.client)
    }
}

/// Two digits.
fn round(rate: f64) -> f64 {
    let rate = rate.max(10.0);
    let unit = 10f64.powf(rate.log10().floor() - 1.0);
    (rate / unit).round() * unit
}

/// Says so if other programs want the CPUs too.
fn warn_if_busy() {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split(' ').next().and_then(|load| load.parse::<f64>().ok()).unwrap_or(0.0);
    if load > cpus as f64 * 0.7 {
        eprintln!(
            "{cpus} CPUs have a load of {load} from other programs: FIGURES WILL SAY LITTLE. With priority over them: \
             setsid -w sh -c 'echo -20 >/proc/self/autogroup; exec target/release/demo-mesh'"
        );
    }
}

/// Runs everything; gives how many responses were wrong.
fn demo(options: &Options) -> Verdict {
    warn_if_busy();
    let stage = Stage::new(&options.kinds)?;
    eprintln!(
        "five services, {CALLS} calls for each request of a client, bodies of 1 KiB; {CONNECTIONS} connections; {} rounds of {} ms",
        options.rounds, options.window_ms
    );
    let mut report = Report {
        schema: 1,
        planes: Vec::new(),
        also: Vec::new(),
        moderate_rps: 0.0,
        gains: Gains::of(&[], Kind::Envoy, Kind::Underdeck, 0.0),
        hops: Vec::new(),
        wrong: 0,
        responses: 0,
    };
    let slices = application(&stage, options, &mut report)?;
    print_planes(&report);
    drop(slices);
    hops(&stage, options, &mut report)?;
    save(&report, &options.json)?;
    for plane in stage.planes {
        plane.stop()?;
    }
    eprintln!(
        "{} responses compared byte by byte, {} wrong. JSON: {}",
        report.responses,
        report.wrong,
        options.json.display()
    );
    let wrong = report.wrong + u64::from(report.responses == 0);
    Ok((wrong > 0).then(|| format!("{wrong} responses were wrong or never came")))
}

fn count(report: &mut Report, kind: Kind, driven: &Driven) {
    report.responses += driven.seen.requests;
    report.wrong += driven.seen.wrong;
    if driven.seen.wrong > 0 {
        eprintln!("{}: {}", kind.name(), driven.seen.what_was_wrong);
    }
}

fn application(stage: &Stage, options: &Options, report: &mut Report) -> Result<Vec<Slice>, LabError> {
    // Also warms up: pools fill, caches too.
    let mut most = Vec::new();
    for plane in &stage.planes {
        let driven = stage.timelines(plane, Step::Max, options.window_ms)?;
        count(report, plane.kind, &driven);
        most.push((plane.kind, driven.seen.rps));
    }
    let most_of = |kind: Kind| most.iter().find(|(of, _)| *of == kind).map_or(0.0, |(_, rps)| *rps);
    let base =
        if most_of(Kind::Envoy) > 0.0 { most_of(Kind::Envoy) } else { most.first().map_or(0.0, |(_, rps)| *rps) };
    let rates: Vec<f64> = SHARES.iter().map(|share| round(share * base)).collect();
    let beyond: Vec<f64> = BEYOND.iter().map(|share| round(share * most_of(Kind::Underdeck))).collect();
    report.moderate_rps = rates[1];
    let mut slices = Vec::new();
    for number in 0..options.rounds {
        for step in rates.iter().chain(&beyond).map(|rate| Step::Rate(*rate)).chain([Step::Max]) {
            for plane in &stage.planes {
                // A rate that a plane cannot carry says nothing but that.
                let possible = |rate: f64| rates.contains(&rate) || rate < 0.9 * most_of(plane.kind);
                if matches!(step, Step::Rate(rate) if !possible(rate)) {
                    continue;
                }
                let driven = stage.timelines(plane, step, options.window_ms)?;
                count(report, plane.kind, &driven);
                slices.push(Slice { round: number, kind: plane.kind, step, driven });
            }
        }
    }
    for kind in &options.kinds {
        let figures = Figures::of(*kind, &slices, report.moderate_rps);
        match kind {
            Kind::Envoy | Kind::EnvoyL4 | Kind::Underdeck => report.planes.push(figures),
            Kind::UnderdeckTcp | Kind::EnvoyOut | Kind::Direct => report.also.push(figures),
        }
    }
    report.gains = Gains::of(&slices, Kind::Envoy, Kind::Underdeck, report.moderate_rps);
    Ok(slices)
}

fn print_planes(report: &Report) {
    println!(
        "plane       rate/s   p50 us   p99 us   max/s   CPU us/request (data plane, kernel threads)   in the kernel"
    );
    for plane in report.planes.iter().chain(&report.also) {
        for (index, rate) in plane.rates.iter().enumerate() {
            let name = if index == 0 { plane.name } else { "" };
            print!("{name:10} {:7.0} {:8.0} {:8.0}", rate.rps, rate.p50_us, rate.p99_us);
            if index == 0 {
                print!(
                    " {:7.0}   {:8.0} ({:.0}, {:.0}) {:24.1} %",
                    plane.max_rps,
                    plane.cpu_us_per_request,
                    plane.data_plane_us_per_request,
                    plane.kernel_threads_us_per_request,
                    plane.kernel_share * 100.0
                );
            }
            println!();
        }
    }
    let gains = &report.gains;
    println!(
        "Underdeck against Envoy sidecars at {:.0}/s: median latency {} times lower, CPU {} times lower; throughput {} times higher",
        report.moderate_rps, gains.p50, gains.cpu, gains.max_rps
    );
}

fn hops(stage: &Stage, options: &Options, report: &mut Report) -> Result<(), LabError> {
    let kinds = [Kind::Direct, Kind::Underdeck, Kind::UnderdeckTcp, Kind::Envoy];
    let planes: Option<Vec<&Plane>> = kinds.iter().map(|kind| stage.plane(*kind)).collect();
    let Some(planes) = planes else { return Ok(()) };
    println!("\none call: what a data plane adds to the median, us, and throughput over that of one Envoy");
    println!(
        "    body connections direct us   underdeck                  underdeck-tcp              envoy                      \
         throughput                 by TCP"
    );
    for &connections in &options.hop_connections {
        for bytes in SIZES {
            let drive = Drive {
                what: What::Bytes(bytes),
                connections,
                rate: None,
                awake: stage.apart,
                warmup_ms: options.hop_ms / 4,
                window_ms: options.hop_ms,
            };
            let mut rounds: Vec<Vec<Driven>> = Vec::new();
            for _ in 0..options.rounds {
                let round: Vec<Driven> =
                    planes.iter().map(|plane| drive.run(plane, &stage.client)).collect::<Result<_, _>>()?;
                kinds.iter().zip(&round).for_each(|(kind, driven)| count(report, *kind, driven));
                rounds.push(round);
            }
            let adds = |which: usize| Spread::of(rounds.iter().map(|it| it[which].seen.p50_us - it[0].seen.p50_us));
            let rps = |which: usize| Spread::of(rounds.iter().map(|it| it[which].seen.rps)).median;
            let gain = |which: usize| Spread::of(rounds.iter().map(|it| it[which].seen.rps / it[3].seen.rps));
            let hop = Hop {
                bytes,
                connections,
                direct_us: Spread::of(rounds.iter().map(|it| it[0].seen.p50_us)).median,
                underdeck_adds_us: adds(1),
                underdeck_tcp_adds_us: adds(2),
                envoy_adds_us: adds(3),
                rps: [rps(0), rps(1), rps(2), rps(3)],
                rps_gain: gain(1),
                rps_gain_tcp: gain(2),
            };
            let columns =
                [hop.underdeck_adds_us, hop.underdeck_tcp_adds_us, hop.envoy_adds_us, hop.rps_gain, hop.rps_gain_tcp];
            let columns: String = columns.iter().map(|it| format!("   {:24}", it.to_string())).collect();
            println!("{:>8} {connections:11} {:9.0}{}", show(bytes as u64), hop.direct_us, columns.trim_end());
            report.hops.push(hop);
        }
    }
    Ok(())
}
