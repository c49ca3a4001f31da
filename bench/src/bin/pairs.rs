//! CPU per request, plain and under Underdeck, in interleaved pairs: what small bodies cost, and what a route costs on which
//! anchoring does not pay.
//!
//! `pairs [--proxy NAME] [--pairs N] [--seconds N] [--rate N] [--limit PERCENT] [SIZE…]`: default `nginx-64k`, 7 pairs of 2 s, `1k`
//! and `16k`. With `--limit`, exit code 1 if the median costs more CPU per request than that.
//!
//! Without `--rate` the loop is closed, and what limits it may be the clients: then the side that is slower lets them
//! sleep more often, and pays for waking them up. With `--rate` (requests per second, open loop) both sides do the same
//! work in the same time.
//!
//! `--proxy` takes the proxies of `underdeck bench anchor`, and two nginx with default buffers whose payload never leaves as it came:
//! `nginx-cache` writes each response to a cache, `nginx-gzip` compresses it. The engine learns that. A first pair is thrown away:
//! by then it has.

use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum as _;
use underdeck_bench::measure::{Bench, Body};
use underdeck_bench::run::spread;
use underdeck_bench::scenario::{Backend, ProxyKind};
use underdeck_bench::size;
use underdeck_lab::LabError;
use underdeck_lab::engine::{Reason, Role, RoleSnapshot, Snapshot};
use underdeck_lab::proxy::{Engine, Nginx, Spec};

const CONNECTIONS: usize = 64;

struct Options {
    proxy: Spec,
    pairs: usize,
    seconds: f64,
    rate: Option<f64>,
    limit: Option<f64>,
    sizes: Vec<u64>,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options {
        proxy: ProxyKind::Nginx64k.spec(false),
        pairs: 7,
        seconds: 2.0,
        rate: None,
        limit: None,
        sizes: Vec::new(),
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--proxy" => options.proxy = proxy(&arguments.next()?)?,
            "--pairs" => options.pairs = arguments.next()?.parse().ok().filter(|it| *it > 0)?,
            "--seconds" => {
                options.seconds = arguments.next()?.parse().ok().filter(|it: &f64| (0.01..=600.0).contains(it))?
            }
            "--rate" => {
                options.rate = Some(arguments.next()?.parse().ok().filter(|it: &f64| (1.0..=1e6).contains(it))?)
            }
            "--limit" => options.limit = Some(arguments.next()?.parse().ok()?),
            text => options.sizes.push(size::parse(text)?),
        }
    }
    if options.sizes.is_empty() {
        options.sizes = vec![1 << 10, 16 << 10];
    }
    Some(options)
}

fn proxy(name: &str) -> Option<Spec> {
    match name {
        "nginx-cache" => Some(Spec::Nginx(Nginx { cache: true, never_cached: true, ..Nginx::default() })),
        "nginx-gzip" => Some(Spec::Nginx(Nginx { gzip: true, ..Nginx::default() })),
        name => ProxyKind::from_str(name, false).ok().map(|kind| kind.spec(false)),
    }
}

fn main() -> ExitCode {
    let Some(options) = options(std::env::args().skip(1)) else {
        eprintln!("usage: pairs [--proxy NAME] [--pairs N] [--seconds N] [--rate N] [--limit PERCENT] [SIZE…]");
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
    let bench = Bench::start(&options.proxy, &options.sizes, Engine::here()?)?;
    let mut within = true;
    for size in options.sizes.iter().copied() {
        let body = Body { size, backend: Backend::Write };
        let window = Duration::from_secs_f64(options.seconds);
        bench.pairs(body, CONNECTIONS, options.rate, window, 1)?;
        let before = bench.counters().unwrap_or_default();
        let pairs = bench.pairs(body, CONNECTIONS, options.rate, window, options.pairs)?;
        let cost = |side: usize| spread(pairs.iter().map(|pair| pair[side].cpu_us_per_request())).unwrap_or_default().0;
        let extra =
            pairs.iter().map(|pair| (pair[1].cpu_us_per_request() / pair[0].cpu_us_per_request() - 1.0) * 100.0);
        let (median, low, high) = spread(extra).unwrap_or_default();
        println!(
            "{:>8}: plain {:.2} us, underdeck {:.2} us of CPU per request; {median:+.1} % ({low:+.1}..{high:+.1}), {} pairs",
            size::show(size),
            cost(0),
            cost(1),
            pairs.len()
        );
        println!("{:>8}  {}", "", payload(&before, &bench.counters().unwrap_or_default()));
        within &= options.limit.is_none_or(|limit| median <= limit);
    }
    bench.stop()?;
    Ok(within)
}

/// What became of the payload of responses meanwhile.
fn payload(before: &Snapshot, after: &Snapshot) -> String {
    let (before, after) = (before.role(Role::Connected), after.role(Role::Connected));
    let bytes = |of: fn(&RoleSnapshot) -> u64| of(after).saturating_sub(of(before));
    let all = bytes(|it| it.bytes_anchored + it.bytes_copied).max(1) as f64;
    let share = |of| bytes(of) as f64 / all * 100.0;
    format!(
        "payload: {:.2} % forwarded, {:.2} % materialised, {:.2} % copied because of that (route-learnt), {:.2} % copied",
        share(|it| it.bytes_forwarded),
        share(|it| it.bytes_materialised),
        share(|it| it.copied_by_reason[Reason::RouteLearnt as usize]),
        share(|it| it.bytes_copied - it.copied_by_reason[Reason::RouteLearnt as usize]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<Options> {
        options(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_makefile_asks_in_words_that_are_understood() {
        let makefile = std::fs::read_to_string(underdeck_lab::tools::root().join("Makefile")).expect("a Makefile");
        let (_, line) = makefile.split_once("release/pairs ").expect("it calls pairs");
        let it = read(line.lines().next().unwrap_or_default()).expect("understood");
        assert_eq!(it.sizes, [1 << 10, 16 << 10]);
    }

    #[test]
    fn sizes_may_have_units_and_nonsense_is_refused() {
        assert_eq!(read("--pairs 3 1k 16k 1m 77").expect("understood").sizes, [1 << 10, 16 << 10, 1 << 20, 77]);
        assert_eq!(read("--proxy envoy").expect("understood").proxy.name(), "envoy");
        let Spec::Nginx(nginx) = read("--proxy nginx-cache 1m").expect("understood").proxy else { panic!("not nginx") };
        assert!(nginx.cache && nginx.never_cached && !nginx.gzip);
        for wrong in [
            "1x",
            "--proxy squid",
            "--proxy",
            "--pairs",
            "--pairs 0",
            "--seconds -1 1k",
            "--limit x",
            "--rate 0",
            "--rate",
        ] {
            assert!(read(wrong).is_none(), "{wrong}");
        }
    }
}
