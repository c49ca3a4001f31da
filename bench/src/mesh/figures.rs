//! What was seen in all rounds, summed up. Layout of `target/demo-mesh.json`.

use serde::Serialize;

use super::drive::Driven;
use super::plane::Kind;

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Of this layout: 1.
    pub schema: u32,
    /// What the demo compares.
    pub planes: Vec<Plane>,
    /// What helps to judge it.
    pub also: Vec<Plane>,
    /// Requests per second that count as moderate load: `cpu_us_per_request` was measured there.
    pub moderate_rps: f64,
    /// Envoy's figures over Underdeck's, or the other way round for what should be high.
    pub gains: Gains,
    /// One call, one connection or more.
    pub hops: Vec<Hop>,
    /// Wrong bodies and statuses, broken connections, requests without an answer.
    pub wrong: u64,
    /// Responses that were compared.
    pub responses: u64,
}

/// A data plane.
#[derive(Debug, Serialize)]
pub struct Plane {
    /// As in [`Kind::name`].
    pub name: &'static str,
    /// Open loop.
    pub rates: Vec<Rate>,
    /// Closed loop.
    pub max_rps: f64,
    /// At moderate load: services, data plane and kernel threads, not the client.
    pub cpu_us_per_request: f64,
    /// Of these: the data plane's processes.
    pub data_plane_us_per_request: f64,
    /// Of these: kernel threads.
    pub kernel_threads_us_per_request: f64,
    /// As `cpu_us_per_request`, in the closed loop.
    pub cpu_us_per_request_at_max: f64,
    /// Of all calls: those whose request and response both went through the kernel alone.
    pub kernel_share: f64,
}

/// One rate.
#[derive(Debug, Serialize)]
pub struct Rate {
    /// Requests that were due per second.
    pub rps: f64,
    /// Median of the rounds' medians, from when a request was due.
    pub p50_us: f64,
    /// Median of the rounds' 99th percentiles.
    pub p99_us: f64,
}

/// Of pairs of the same round.
#[derive(Debug, Serialize)]
pub struct Gains {
    /// Median latency at moderate load.
    pub p50: Spread,
    /// Closed loop.
    pub max_rps: Spread,
    /// CPU at moderate load.
    pub cpu: Spread,
}

/// Of several rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// In the middle.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

impl Spread {
    /// Of some values; zeros if there are none. A slice without an answer leads to ratios that are no numbers: left out.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        Self { median: at(values.len() / 2), min: at(0), max: at(values.len().saturating_sub(1)) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} ({:.1} to {:.1})", self.median, self.min, self.max)
    }
}

/// One call on each of some connections, closed loop. Microseconds: medians of the rounds' medians.
#[derive(Debug, Serialize)]
pub struct Hop {
    /// Of the body.
    pub bytes: usize,
    /// At a time.
    pub connections: usize,
    /// Client and service connected to each other.
    pub direct_us: f64,
    /// What the engine adds, of pairs of the same round.
    pub underdeck_adds_us: Spread,
    /// The same where endpoints are reached by TCP, as on other hosts.
    pub underdeck_tcp_adds_us: Spread,
    /// What one Envoy adds.
    pub envoy_adds_us: Spread,
    /// Per second, in the same order.
    pub rps: [f64; 4],
    /// Requests per second, Underdeck's over Envoy's.
    pub rps_gain: Spread,
    /// The same by TCP.
    pub rps_gain_tcp: Spread,
}

/// Load of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Open loop, requests per second.
    Rate(f64),
    /// Closed loop.
    Max,
}

/// One slice of time.
#[derive(Debug)]
pub struct Slice {
    /// In which round.
    pub round: usize,
    /// What carried the requests.
    pub kind: Kind,
    /// The load.
    pub step: Step,
    /// What was seen.
    pub driven: Driven,
}

fn median(slices: &[&Slice], of: impl Fn(&Driven) -> f64) -> f64 {
    Spread::of(slices.iter().map(|slice| of(&slice.driven))).median
}

/// Requests of all slices that went through the kernel both ways.
fn share(slices: &[&Slice]) -> f64 {
    let ways: Vec<_> = slices.iter().filter_map(|slice| slice.driven.ways).collect();
    let kernel: u64 = ways.iter().map(|ways| ways.requests_kernel.min(ways.responses_kernel)).sum();
    let all: u64 = ways.iter().map(|ways| ways.requests).sum();
    if all == 0 { 0.0 } else { kernel as f64 / all as f64 }
}

impl Plane {
    /// Sums up one plane.
    pub fn of(kind: Kind, slices: &[Slice], moderate: f64) -> Self {
        let all: Vec<&Slice> = slices.iter().filter(|slice| slice.kind == kind).collect();
        let at = |step: Step| all.iter().copied().filter(|slice| slice.step == step).collect::<Vec<_>>();
        let mut steps: Vec<f64> = Vec::new();
        for slice in &all {
            if let Step::Rate(rps) = slice.step
                && !steps.contains(&rps)
            {
                steps.push(rps);
            }
        }
        let rate = |rps: &f64| Rate {
            rps: *rps,
            p50_us: median(&at(Step::Rate(*rps)), |it| it.seen.p50_us),
            p99_us: median(&at(Step::Rate(*rps)), |it| it.seen.p99_us),
        };
        let (calm, full) = (at(Step::Rate(moderate)), at(Step::Max));
        let part =
            |index: usize| median(&calm, |it| it.cpu[index].as_secs_f64() * 1e6 / it.seen.requests.max(1) as f64);
        Self {
            name: kind.name(),
            rates: steps.iter().map(rate).collect(),
            max_rps: median(&full, |it| it.seen.rps),
            cpu_us_per_request: median(&calm, Driven::cpu_us),
            data_plane_us_per_request: part(1),
            kernel_threads_us_per_request: part(2),
            cpu_us_per_request_at_max: median(&full, Driven::cpu_us),
            kernel_share: share(&all),
        }
    }
}

impl Gains {
    /// Of one plane against another, round by round.
    pub fn of(slices: &[Slice], slow: Kind, fast: Kind, moderate: f64) -> Self {
        let find = |round: usize, kind: Kind, step: Step| {
            slices.iter().find(|it| it.round == round && it.kind == kind && it.step == step).map(|it| &it.driven)
        };
        let rounds = slices.iter().map(|slice| slice.round + 1).max().unwrap_or(0);
        let ratio = |step: Step, of: &dyn Fn(&Driven) -> f64| {
            Spread::of(
                (0..rounds).filter_map(|round| Some(of(find(round, slow, step)?) / of(find(round, fast, step)?))),
            )
        };
        Self {
            p50: ratio(Step::Rate(moderate), &|it| it.seen.p50_us),
            max_rps: ratio(Step::Max, &|it| 1.0 / it.seen.rps),
            cpu: ratio(Step::Rate(moderate), &Driven::cpu_us),
        }
    }
}
