//! Counters and times, and the Unix socket that tells them.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{Config, ServeError, lock};

/// Sixteen buckets for each power of two.
const BUCKETS: usize = 61 * 16;

/// The steps of an outbound handoff, in order.
/// The last one, until the backend has confirmed, is no part of the whole: the backend serves already.
pub const STEPS: [&str; 9] =
    ["block", "freeze", "encode", "control", "restore", "source_rule", "redirect_rule", "ready", "confirm"];

/// Times in nanoseconds.
pub struct Histogram {
    buckets: Vec<AtomicU64>,
}

impl Histogram {
    fn new() -> Histogram {
        Histogram { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts one.
    pub fn add(&self, ns: u64) {
        let ns = ns.max(16);
        let power = ns.ilog2();
        let index = (power as usize - 4) * 16 + (ns >> (power - 4) & 15) as usize;
        self.buckets[index].fetch_add(1, Relaxed);
    }

    /// With one bucket for each power of two from 1 us to 8 s.
    fn report(&self, name: &str) -> TimesReport {
        let mut report = TimesReport {
            name: name.to_owned(),
            count: 0,
            sum_us: 0.0,
            p50_us: self.quantile_us(0.5).unwrap_or(0.0),
            p99_us: self.quantile_us(0.99).unwrap_or(0.0),
            buckets: Vec::new(),
        };
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        for (power, counts) in counts.chunks(16).enumerate() {
            let middle = |step: usize| (16.5 + step as f64) * 2f64.powi(power as i32) / 1000.0;
            report.count += counts.iter().sum::<u64>();
            report.sum_us += counts.iter().enumerate().map(|(step, count)| middle(step) * *count as f64).sum::<f64>();
            if (5..29).contains(&power) {
                report.buckets.push((2f64.powi(power as i32 + 5) / 1000.0, report.count));
            }
        }
        report
    }

    /// The middle of the bucket that holds this share, in microseconds. None if it is empty.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let wanted = (total as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let index = counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        let (power, step) = (index / 16 + 4, index % 16);
        Some((16.5 + step as f64) * 2f64.powi(power as i32 - 4) / 1000.0)
    }
}

/// What one process counts.
pub struct Metrics {
    started: Instant,
    /// Connections that are served (or relayed) here.
    pub here: AtomicU64,
    /// Connections handed out (balancer) or taken (backend).
    pub out: AtomicU64,
    /// Connections taken back (balancer) or given back (backend).
    pub back: AtomicU64,
    /// Requests answered (backend) or relayed (balancer).
    pub requests: AtomicU64,
    /// Body bytes sent to clients whose connection is here by a handoff.
    pub direct_bytes: AtomicU64,
    /// Body bytes that crossed a balancer on their way.
    pub relayed_bytes: AtomicU64,
    /// Clients whose connection was ended with a reset.
    pub reset: AtomicU64,
    /// Handoffs that did not happen, by reason.
    pub aborted: Mutex<BTreeMap<&'static str, u64>>,
    /// Whole outbound handoffs.
    pub total: Histogram,
    /// Their steps.
    pub steps: [Histogram; STEPS.len()],
}

impl Metrics {
    pub fn new() -> Metrics {
        let zero = || AtomicU64::new(0);
        Metrics {
            started: Instant::now(),
            here: zero(),
            out: zero(),
            back: zero(),
            requests: zero(),
            direct_bytes: zero(),
            relayed_bytes: zero(),
            reset: zero(),
            aborted: Mutex::default(),
            total: Histogram::new(),
            steps: std::array::from_fn(|_| Histogram::new()),
        }
    }

    /// Counts a connection that is served here, until what is returned is dropped. None if there are `most` already.
    pub fn enter(&self, most: u32) -> Option<Here<'_>> {
        let here = self.here.fetch_update(Relaxed, Relaxed, |here| (here < u64::from(most)).then_some(here + 1));
        here.is_ok().then(|| Here(&self.here))
    }

    /// Counts a handoff that did not happen.
    pub fn abort(&self, reason: &'static str) {
        *lock(&self.aborted).entry(reason).or_default() += 1;
    }

    /// All of it. The caller knows the rest.
    pub fn report(
        &self,
        role: &str,
        config: &Config,
        away: usize,
        rules: usize,
        backends: Vec<BackendReport>,
    ) -> Report {
        let all = std::iter::once(("handoff", &self.total)).chain(STEPS.into_iter().zip(&self.steps));
        let (direct_bytes, relayed_bytes) = (self.direct_bytes.load(Relaxed), self.relayed_bytes.load(Relaxed));
        Report {
            schema: 1,
            role: role.to_owned(),
            pid: std::process::id(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            policy: config.policy.to_string(),
            connections: Connections { here: self.here.load(Relaxed), away: away as u64 },
            handoffs: Handoffs {
                out: self.out.load(Relaxed),
                back: self.back.load(Relaxed),
                aborted: lock(&self.aborted).iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect(),
            },
            requests: self.requests.load(Relaxed),
            bytes: direct_bytes + relayed_bytes,
            direct_bytes,
            relayed_bytes,
            reset: self.reset.load(Relaxed),
            rules: Rules { tc: rules as u64, capacity: u64::from(config.capacity) },
            handoff_us_p50: self.total.quantile_us(0.5),
            handoff_us_p99: self.total.quantile_us(0.99),
            steps_us: STEPS.iter().zip(&self.steps).map(|(name, h)| ((*name).to_owned(), h.quantile_us(0.5))).collect(),
            times: all.map(|(name, histogram)| histogram.report(name)).collect(),
            backends,
        }
    }
}

/// A connection that is served here.
pub struct Here<'a>(&'a AtomicU64);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// What a server says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// 1.
    pub schema: u32,
    /// `balancer` or `backend`.
    pub role: String,
    /// Its process.
    pub pid: u32,
    /// Milliseconds since its start.
    pub uptime_ms: u64,
    /// As configured.
    pub policy: String,
    /// Connections by place.
    pub connections: Connections,
    /// Handoffs.
    pub handoffs: Handoffs,
    /// Requests answered (backend) or relayed (balancer).
    pub requests: u64,
    /// Body bytes, the sum of the next two.
    pub bytes: u64,
    /// Body bytes sent straight to clients.
    pub direct_bytes: u64,
    /// Body bytes that crossed the balancer.
    pub relayed_bytes: u64,
    /// Connections of clients that were ended with a reset.
    pub reset: u64,
    /// Rules by tier.
    pub rules: Rules,
    /// Median time of a whole outbound handoff (balancer).
    pub handoff_us_p50: Option<f64>,
    /// The same, 99th percentile.
    pub handoff_us_p99: Option<f64>,
    /// Median time of each step.
    pub steps_us: BTreeMap<String, Option<f64>>,
    /// The whole (`handoff`), then each step, in order.
    pub times: Vec<TimesReport>,
    /// On a balancer: its backends.
    pub backends: Vec<BackendReport>,
}

/// Connections by place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Connections {
    /// Served or relayed by this process.
    pub here: u64,
    /// On a balancer: with a backend. On a backend: of `here`, those of a balancer.
    pub away: u64,
}

/// Handoffs since the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Handoffs {
    /// Handed out (balancer) or taken (backend).
    pub out: u64,
    /// Taken back (balancer) or given back (backend).
    pub back: u64,
    /// Did not happen, by reason.
    pub aborted: BTreeMap<String, u64>,
}

/// Flows with rules.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rules {
    /// In the eBPF tier.
    pub tc: u64,
    /// How many flows can have rules.
    pub capacity: u64,
}

/// A histogram.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimesReport {
    /// `handoff` or a step.
    pub name: String,
    /// How many there were.
    pub count: u64,
    /// Their sum in microseconds, as precise as the buckets.
    pub sum_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Upper bounds in microseconds, and how many were at most that long.
    pub buckets: Vec<(f64, u64)>,
}

/// A backend as its balancer sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendReport {
    /// Its name in the configuration.
    pub name: String,
    /// It answers heartbeats.
    pub alive: bool,
    /// Handoffs to it have failed; for a while it gets none.
    pub backed_off: bool,
    /// Connections that it owns.
    pub load: u64,
}

/// Answers each connection with one report.
pub fn tell(path: &Path, report: impl Fn() -> Report + Send + 'static) -> Result<(), ServeError> {
    let refused = |source| ServeError::Listen { what: "status", at: path.display().to_string(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(refused)?;
    }
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(refused)?;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // Somebody who does not read must not keep the others waiting.
            let limited = stream.set_write_timeout(Some(Duration::from_secs(1)));
            if let (Ok(()), Ok(text)) = (limited, serde_json::to_string(&report())) {
                let _ = writeln!(stream, "{text}");
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_bucket() {
        let times = Histogram::new();
        assert_eq!(times.quantile_us(0.5), None);
        (1..=1000).for_each(|us| times.add(us * 1000));
        let (middle, high) = (times.quantile_us(0.5).unwrap(), times.quantile_us(0.99).unwrap());
        assert!((470.0..530.0).contains(&middle) && (930.0..1050.0).contains(&high), "{middle} {high}");
        times.add(u64::MAX);
    }

    #[test]
    fn a_connection_that_finds_no_room_does_not_count() {
        let metrics = Metrics::new();
        let first = metrics.enter(1);
        assert!(first.is_some() && metrics.enter(1).is_none());
        assert_eq!(metrics.here.load(Relaxed), 1);
        drop(first);
        assert_eq!(metrics.here.load(Relaxed), 0);
    }

    #[test]
    fn buckets_are_cumulative_and_close() {
        let times = Histogram::new();
        (1..=1000).for_each(|us| times.add(us * 1000));
        let report = times.report("handoff");
        assert_eq!(report.count, 1000);
        assert!((490_000.0..510_000.0).contains(&report.sum_us), "{}", report.sum_us);
        assert!(report.buckets.is_sorted() && report.buckets.last().unwrap().1 == 1000);
        let (bound, below) = report.buckets.iter().find(|(bound, _)| *bound > 500.0).unwrap();
        assert!((*below as f64 - bound).abs() < 2.0, "{bound} {below}");
    }
}
