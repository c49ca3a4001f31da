//! `bench anchor`: visits the points of a profile, runs every mode at each in interleaved rounds, gives the figures.

use std::time::Duration;

use underdeck_lab::LabError;
use underdeck_lab::load::Load;

use crate::figure::{Figure, Ratio};
use crate::result::Case;
use crate::run::{Run, rounds, spread};
use crate::scenario::{Direction, Framing, Net, Point};
use crate::stage::{Mode, Stage};
use crate::syscalls::{self, PerMib};

/// How every point is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds per point.
    pub pairs: usize,
    /// Load before each window.
    pub warmup: Duration,
    /// Length of each window.
    pub window: Duration,
    /// Bytes that bodies come from in turn; less than two bodies: always the same bytes.
    pub working_set: u64,
    /// Which modes.
    pub modes: Vec<Mode>,
    /// Whether latencies are measured in an open loop.
    pub open_loop: bool,
    /// Open loop only at these bodies; empty: at all.
    pub open_loop_bodies: Vec<u64>,
    /// Whether system calls are counted.
    pub system_calls: bool,
}

/// Share of the plain proxy's saturation that the open loop asks for.
const OPEN_LOOP_LOAD: f64 = 0.7;
/// Calls rarer than this per MiB are left out of the JSON.
const RARE: f64 = 0.01;

/// Measures all points; `seen` is told of each as soon as it is done.
pub fn measure(points: &[Point], plan: &Plan, mut seen: impl FnMut(&[Case])) -> Result<Vec<Case>, LabError> {
    let mut cases = Vec::new();
    for group in points.chunk_by(|a, b| (a.network, a.proxy, a.backend) == (b.network, b.proxy, b.backend)) {
        let Some(first) = group.first() else { continue };
        let stage = Stage::start(first, &plan.modes, plan.working_set)?;
        for point in group {
            let measured = at(&stage, point, plan)?;
            seen(&measured);
            cases.extend(measured);
        }
        stage.stop()?;
    }
    Ok(cases)
}

/// All modes at one point.
fn at(stage: &Stage, point: &Point, plan: &Plan) -> Result<Vec<Case>, LabError> {
    let run = |subject: usize, rate: Option<f64>| {
        let (_, subject) = &stage.subjects[subject];
        let load = Load { rate, warmup: plan.warmup, window: plan.window, ..stage.load(subject, point)? };
        Run::of(subject, &load, stage.source())
    };
    let count = stage.subjects.len();
    let closed = rounds(plan.pairs, count, |subject| run(subject, None))?;
    let mode = |wanted: Mode| stage.subjects.iter().position(|(mode, _)| *mode == wanted);
    let plain = mode(Mode::Plain);
    let saturation = plain.and_then(|plain| spread(closed.iter().map(|round| round[plain].load.requests_per_s())));
    let wanted = plan.open_loop && (plan.open_loop_bodies.is_empty() || plan.open_loop_bodies.contains(&point.body));
    let rate = saturation.map(|(median, ..)| median * OPEN_LOOP_LOAD).filter(|rate| wanted && *rate > 0.0);
    let open = match rate {
        Some(rate) => rounds(plan.pairs, count, |subject| run(subject, Some(rate)))?,
        None => Vec::new(),
    };
    let commands = stage.command_lines();
    let mut cases = Vec::new();
    for (index, (mode_of_case, subject)) in stage.subjects.iter().enumerate() {
        let calls = match plan.system_calls && *mode_of_case != Mode::Direct {
            true => {
                let load = Load { window: plan.window.min(Duration::from_millis(300)), ..stage.load(subject, point)? };
                Some(syscalls::count(subject, &load, stage.source())?)
            }
            false => None,
        };
        let (splice, relay) = (mode(Mode::Splice), mode(Mode::Relay));
        let rows = Rows { closed: &closed, open: &open, index, plain, splice, relay };
        let command = commands.iter().find(|(mode, _)| mode == mode_of_case).map(|(_, line)| line.clone());
        cases.push(rows.case(point, *mode_of_case, rate, calls, command));
    }
    Ok(cases)
}

/// The runs of one subject among those of all.
struct Rows<'a> {
    closed: &'a [Vec<Run>],
    open: &'a [Vec<Run>],
    index: usize,
    plain: Option<usize>,
    splice: Option<usize>,
    relay: Option<usize>,
}

impl Rows<'_> {
    fn figure(&self, of: impl Fn(&Run) -> f64) -> Option<Figure> {
        Figure::of(self.closed.iter().map(|round| of(&round[self.index])))
    }

    fn latency(&self, of: &[Vec<Run>], quantile: f64) -> Option<Figure> {
        Figure::of(of.iter().map(|round| round[self.index].load.latency_ms(quantile)))
    }

    fn ratio(&self, to: Option<usize>) -> Option<Ratio> {
        let to = to.filter(|to| *to != self.index)?;
        Ratio::of(self.closed.iter().map(|round| round[self.index].gb_per_cpu_s() / round[to].gb_per_cpu_s()))
    }

    fn case(
        &self,
        point: &Point,
        mode: Mode,
        rate: Option<f64>,
        calls: Option<PerMib>,
        command: Option<String>,
    ) -> Case {
        let nobody = mode == Mode::Direct;
        // CPU time and such of nobody is nothing.
        let own = |of: &dyn Fn(&Run) -> f64| if nobody { None } else { self.figure(of) };
        let per_request = |n: u64, run: &Run| n as f64 / run.load.requests.max(1) as f64;
        let engine = |of: &dyn Fn(&Run) -> f64| if mode == Mode::Underdeck { self.figure(of) } else { None };
        let copied = match mode {
            // Whoever reads and writes has every byte copied in; nobody counts them, the body is what it is.
            Mode::Plain => self.figure(|_| point.body as f64),
            Mode::Underdeck => self.figure(|run| per_request(run.bytes_copied, run)),
            Mode::Relay => self.figure(|_| 0.0),
            Mode::Splice | Mode::Direct => None,
        };
        // Percent more than plain's, round by round.
        let more = |of: &dyn Fn(&Run) -> f64| {
            let plain = self.plain.filter(|plain| *plain != self.index && !nobody)?;
            Figure::of(self.closed.iter().map(|round| (of(&round[self.index]) / of(&round[plain]) - 1.0) * 100.0))
        };
        let p99 = more(&|run| run.load.latency_ms(0.99));
        let runs = self.closed.iter().chain(self.open).map(|round| &round[self.index]);
        let (resets, errors) = runs.fold((0, 0), |(resets, errors), run| {
            (resets + run.resets, errors + run.load.bad_status + run.load.failed)
        });
        Case {
            proxy: point.proxy.name(),
            mode: mode.name(),
            body_bytes: point.body,
            connections: point.connections,
            network: point.network.name(),
            direction: point.direction.name(),
            backend: point.backend.name(),
            framing: point.framing.name(),
            command,
            gb_per_cpu_s: own(&Run::gb_per_cpu_s),
            cpu_us_per_request: own(&Run::cpu_us_per_request),
            user_share: own(&|run| run.user.as_secs_f64() / (run.user + run.system).as_secs_f64()),
            softirq_share: own(&|run| run.softirq_share),
            requests_per_s: self.figure(|run| run.load.requests_per_s()),
            gb_per_s: self.figure(|run| run.load.payload_bytes as f64 / 1e9 / run.load.window.as_secs_f64()),
            saturation: own(&|run| run.saturation.min(1.0)),
            closed_p50_ms: self.latency(self.closed, 0.5),
            closed_p99_ms: self.latency(self.closed, 0.99),
            open_rate: rate,
            p50_ms: self.latency(self.open, 0.5),
            p99_ms: self.latency(self.open, 0.99),
            p999_ms: self.latency(self.open, 0.999),
            system_calls_per_mib: calls.as_ref().map(|calls| calls.values().sum()),
            system_calls: calls.map(|calls| calls.into_iter().filter(|(_, per_mib)| *per_mib >= RARE).collect()),
            bytes_copied_per_request: copied,
            bytes_anchored_per_request: engine(&|run| per_request(run.bytes_anchored, run)),
            switches_per_request: own(&|run| per_request(run.switches, run)),
            memory_per_connection_bytes: own(&|run| run.memory as f64 / point.connections as f64),
            ratio_to_plain: self.ratio(self.plain).filter(|_| !nobody),
            ratio_to_relay: self.ratio(self.relay).filter(|_| !nobody),
            ratio_to_splice: self.ratio(self.splice).filter(|_| !nobody),
            closed_p99_below_percent: p99.map(|it| Figure { median: -it.median, min: -it.max, max: -it.min }),
            extra_cpu_percent: more(&Run::cpu_us_per_request),
            resets,
            errors,
        }
    }
}

/// What a point is called in the table.
pub fn title(point: &Case) -> String {
    let mut title = format!("{}, {}, {}", point.proxy, crate::size::show(point.body_bytes), point.backend);
    if point.direction != Direction::Response.name() {
        title += ", upload";
    }
    if point.framing != Framing::Length.name() {
        title += ", chunked";
    }
    if point.network != Net::Loopback.name() {
        title = title + ", " + &point.network;
    }
    title + &format!(", {} connections", point.connections)
}
