//! CPU per request of small bodies, plain and under Underdeck, in interleaved pairs.
//!
//! `pairs [--pairs N] [--seconds N] [--limit PERCENT] [SIZE…]`: default 7 pairs of 2 s, 1024 and 16384 bytes. With
//! `--limit`, exit code 1 if the median costs more CPU per request than that.

use std::process::ExitCode;

use underdeck_bench::measure::{Bench, spread};
use underdeck_bench::report;
use underdeck_lab::LabError;
use underdeck_lab::proxy::Engine;

const CONNECTIONS: usize = 64;

struct Options {
    pairs: usize,
    seconds: u64,
    limit: Option<f64>,
    sizes: Vec<u64>,
}

fn options() -> Option<Options> {
    let mut options = Options { pairs: 7, seconds: 2, limit: None, sizes: Vec::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--pairs" => options.pairs = arguments.next()?.parse().ok()?,
            "--seconds" => options.seconds = arguments.next()?.parse().ok()?,
            "--limit" => options.limit = Some(arguments.next()?.parse().ok()?),
            size => options.sizes.push(size.parse().ok()?),
        }
    }
    if options.sizes.is_empty() {
        options.sizes = vec![1024, 16_384];
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: pairs [--pairs N] [--seconds N] [--limit PERCENT] [SIZE…]");
        return ExitCode::from(2);
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("pairs: {error}");
            ExitCode::from(70)
        }
    }
}

fn run(options: &Options) -> Result<bool, LabError> {
    let bench = Bench::start(&options.sizes, Engine::here()?)?;
    let mut within = true;
    for size in options.sizes.iter().copied() {
        let pairs = bench.pairs(size, CONNECTIONS, options.seconds, options.pairs)?;
        let cost = |side: usize| spread(pairs.iter().map(|pair| pair[side].cpu_us_per_request())).unwrap_or_default().0;
        let extra = pairs
            .iter()
            .map(|[plain, anchored]| (anchored.cpu_us_per_request() / plain.cpu_us_per_request() - 1.0) * 100.0);
        let (median, low, high) = spread(extra).unwrap_or_default();
        println!(
            "{:>8}: plain {:.2} us, underdeck {:.2} us of CPU per request; {median:+.1} % ({low:+.1}..{high:+.1}), {} pairs",
            report::size(size),
            cost(0),
            cost(1),
            pairs.len()
        );
        within &= options.limit.is_none_or(|limit| median <= limit);
    }
    bench.stop()?;
    Ok(within)
}
