//! `make demo`: real traffic through a plain nginx and the same nginx under Underdeck.
//!
//! `demo [--quick] [--json FILE]`. Exit code 0: every response was right; 1: one was not; 4: a tool is missing; 70: something else failed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use underdeck_bench::demo::{Verdict, save};
use underdeck_bench::measure::{Bench, Body, Side};
use underdeck_bench::report::{Case, Report, head, rows};
use underdeck_bench::run::{Run, SATURATED, spread};
use underdeck_bench::scenario::Backend;
use underdeck_bench::size::show;
use underdeck_bench::verify::verify;
use underdeck_lab::client::Front;
use underdeck_lab::proxy::{Engine, Nginx, Spec};
use underdeck_lab::tools;

/// With a backend that sends files, because one that writes has less to give than nginx can take from one CPU; 1 MiB with
/// one that writes, as applications do, too.
const BODIES: [Body; 8] = {
    const fn body(size: u64, backend: Backend) -> Body {
        Body { size, backend }
    }
    [
        body(1 << 10, Backend::Sendfile),
        body(4 << 10, Backend::Sendfile),
        body(16 << 10, Backend::Sendfile),
        body(64 << 10, Backend::Sendfile),
        body(256 << 10, Backend::Sendfile),
        body(1 << 20, Backend::Sendfile),
        body(1 << 20, Backend::Write),
        body(4 << 20, Backend::Sendfile),
    ]
};
const CONNECTIONS: usize = 64;
/// Bytes that a verification pass reads per size and side, about.
const VERIFY_BYTES: u64 = 512 << 20;

struct Options {
    pairs: usize,
    window: Duration,
    json: PathBuf,
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { pairs: 5, window: Duration::from_millis(1000), json: tools::root().join("target/demo.json") };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => (options.pairs, options.window) = (1, Duration::from_millis(400)),
            "--json" => options.json = arguments.next().ok_or("--json wants a file")?.into(),
            other => return Err(format!("{other}: unknown option; usage: demo [--quick] [--json FILE]")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    underdeck_bench::demo::run("demo", options(), demo)
}

/// Runs everything.
fn demo(options: &Options) -> Verdict {
    let mut sizes = BODIES.map(|body| body.size).to_vec();
    sizes.dedup();
    let bench = Bench::start(&Spec::Nginx(Nginx::large()), &sizes, Engine::here()?)?;
    eprintln!(
        "nginx with 16 buffers of 64 KiB, one worker on a CPU of its own, clients and backend on another; {CONNECTIONS} \
         connections;\n{} interleaved pairs of {:.1} s per size. First every response of a verification pass is \
         compared with its file, then load is measured.",
        options.pairs,
        options.window.as_secs_f64()
    );
    println!("{}", head());
    let mut report = Report { schema: 1, cases: Vec::new() };
    let (mut wrong, mut responses, mut resets) = (0, 0, 0);
    for body in BODIES {
        let size = body.size;
        let mut mismatches = [0; 2];
        for (side, count) in Side::BOTH.into_iter().zip(&mut mismatches) {
            let each = (VERIFY_BYTES / size / CONNECTIONS as u64).clamp(2, 32) as usize;
            let front = Front::from(bench.side(side).addr()?);
            let pass = || verify(&front, bench.files().folder(), body, CONNECTIONS, each);
            let verified = bench.client().within(pass)?;
            *count = verified.mismatches;
            responses += verified.responses;
        }
        let pairs = bench.pairs(body, CONNECTIONS, None, options.window, options.pairs)?;
        let mut cases = Vec::new();
        for (i, side) in Side::BOTH.into_iter().enumerate() {
            let runs: Vec<&Run> = pairs.iter().map(|pair| &pair[i]).collect();
            // An answer that could not be read is no right answer.
            let failed: u64 = runs.iter().map(|run| run.load.bad_status + run.load.failed).sum();
            resets += runs.iter().map(|run| run.resets).sum::<u64>();
            cases.push(Case::of(side, body, CONNECTIONS, &runs, mismatches[i] + failed));
        }
        let ratio = spread(pairs.iter().map(|pair| pair[1].gb_per_cpu_s() / pair[0].gb_per_cpu_s()));
        println!("{}", rows(&cases[0], &cases[1], ratio.unwrap_or_default()));
        wrong += cases.iter().map(|case| case.mismatches).sum::<u64>();
        report.cases.extend(cases);
    }
    save(&report, &options.json)?;
    bench.stop()?;
    eprintln!(
        "{responses} responses compared byte by byte, {wrong} wrong; {resets} connections reset by the engine.\n\
         backend: nginx with files; write: `sendfile off`, which is as applications send; sendfile: `sendfile on`.\n\
         GB/CPU s: body bytes per second of the proxy's CPU time. p99: closed loop. core: how much of the time the proxy \
         ran or was ready to.\nJSON: {}",
        options.json.display()
    );
    let idle: Vec<String> = report
        .cases
        .iter()
        .filter(|case| !case.is_saturated())
        .map(|case| format!("{} {} {}", show(case.body_bytes), case.backend, case.mode))
        .collect();
    if idle.is_empty() {
        eprintln!("The proxy was the bottleneck in every case.");
    } else {
        eprintln!(
            "NOT SATURATED (below {:.0} %): {}. There clients or backend were the bottleneck, or another program had \
             their CPU: do not compare these.",
            SATURATED * 100.0,
            idle.join(", ")
        );
    }
    let wrong = wrong + resets;
    Ok((wrong > 0).then(|| format!("{wrong} responses were not what the backend serves")))
}
