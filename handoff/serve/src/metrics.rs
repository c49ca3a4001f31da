//! Counters and times, and the Unix socket that tells them.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ServeError;

/// Sixteen buckets for each power of two.
const BUCKETS: usize = 61 * 16;

/// The steps of an outbound handoff, in order.
pub const STEPS: [&str; 8] =
    ["block", "freeze", "encode", "control", "restore", "source_rule", "redirect_rule", "ready"];

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
    /// Connections that are served (or relayed) here.
    pub here: AtomicU64,
    /// Connections handed out (balancer) or taken (backend).
    pub out: AtomicU64,
    /// Connections taken back (balancer) or given back (backend).
    pub back: AtomicU64,
    /// Requests answered (backend) or relayed (balancer).
    pub requests: AtomicU64,
    /// Body bytes relayed (balancer) or sent to clients (backend).
    pub bytes: AtomicU64,
    /// Clients whose connection ended because its backend died.
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
            here: zero(),
            out: zero(),
            back: zero(),
            requests: zero(),
            bytes: zero(),
            reset: zero(),
            aborted: Mutex::default(),
            total: Histogram::new(),
            steps: std::array::from_fn(|_| Histogram::new()),
        }
    }

    /// Counts a handoff that did not happen.
    pub fn abort(&self, reason: &'static str) {
        *self.aborted.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).entry(reason).or_default() += 1;
    }

    /// As JSON, schema 1.
    pub fn report(&self, role: &str, away: usize, rules: usize) -> serde_json::Value {
        let steps: serde_json::Map<String, serde_json::Value> = STEPS
            .iter()
            .zip(&self.steps)
            .map(|(name, times)| (name.to_string(), serde_json::json!(times.quantile_us(0.5))))
            .collect();
        let aborted = self.aborted.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        serde_json::json!({
            "schema": 1,
            "role": role,
            "connections": {"here": self.here.load(Relaxed), "away": away},
            "handoffs": {"out": self.out.load(Relaxed), "back": self.back.load(Relaxed), "aborted": aborted},
            "requests": self.requests.load(Relaxed),
            "bytes": self.bytes.load(Relaxed),
            "reset": self.reset.load(Relaxed),
            "rules": {"tc": rules},
            "handoff_us_p50": self.total.quantile_us(0.5),
            "handoff_us_p99": self.total.quantile_us(0.99),
            "steps_us": steps,
        })
    }
}

/// Answers each connection with one report.
pub fn tell(path: &Path, report: impl Fn() -> serde_json::Value + Send + 'static) -> Result<(), ServeError> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(|source| ServeError::Listen {
        what: "status",
        at: path.display().to_string(),
        source,
    })?;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = writeln!(stream, "{}", report());
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
}
