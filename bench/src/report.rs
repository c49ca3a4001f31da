//! The table and the JSON of the demo.

use serde::Serialize;

use crate::measure::{Body, Side};
use crate::run::{Run, SATURATED, spread};
use crate::size::{amount, show};

/// `target/demo.json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// 1.
    pub schema: u32,
    /// One per body and side.
    pub cases: Vec<Case>,
}

/// Medians over the pairs of one body and side.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// `nginx`.
    pub proxy: &'static str,
    /// `plain` or `anchored`.
    pub mode: &'static str,
    /// Size of each response body.
    pub body_bytes: u64,
    /// How the backend sent it: `sendfile` or `write`.
    pub backend: String,
    /// Connections at once.
    pub connections: usize,
    /// Median requests per second.
    pub requests_per_s: f64,
    /// Median GB of body per second of proxy CPU.
    pub gb_per_cpu_s: f64,
    /// Median of the 99th percentiles, milliseconds; closed loop.
    pub p99_ms: f64,
    /// Payload bytes copied to the proxy's memory, all measured runs.
    pub bytes_copied: u64,
    /// Payload bytes that stayed in the kernel, all measured runs.
    pub bytes_anchored: u64,
    /// Responses of the verification passes that differed from the file.
    pub mismatches: u64,
    /// How busy the proxy's core was: the median of the runs. Only in the table.
    #[serde(skip)]
    pub saturation: f64,
}

impl Case {
    /// The medians of a side's runs.
    pub fn of(side: Side, body: Body, connections: usize, runs: &[&Run], mismatches: u64) -> Self {
        let median = |figure: fn(&Run) -> f64| {
            let middle = spread(runs.iter().map(|run| figure(run))).map_or(0.0, |(median, ..)| median);
            (middle * 1000.0).round() / 1000.0
        };
        Self {
            proxy: "nginx",
            mode: side.name(),
            body_bytes: body.size,
            backend: body.backend.name(),
            connections,
            requests_per_s: median(|run| run.load.requests_per_s()),
            gb_per_cpu_s: median(Run::gb_per_cpu_s),
            p99_ms: median(|run| run.load.latency_ms(0.99)),
            bytes_copied: runs.iter().map(|run| copied(side, run)).sum(),
            bytes_anchored: runs.iter().map(|run| run.bytes_anchored).sum(),
            mismatches,
            saturation: median(|run| run.saturation),
        }
    }
}

impl Case {
    /// Whether the proxy was the bottleneck.
    pub fn is_saturated(&self) -> bool {
        self.saturation >= SATURATED
    }
}

/// Without the engine nobody counts: all that was received was copied.
fn copied(side: Side, run: &Run) -> u64 {
    if side == Side::Plain { run.load.payload_bytes } else { run.bytes_copied }
}

/// The head of the table.
pub fn head() -> String {
    let line = format!(
        "{:>8}  {:>8}  {:>8}  {:>8}  {:>17}  {:>10}  {:>7}  {:>8}  {:>8}  {:>10}  {:>6}",
        "body",
        "backend",
        "mode",
        "GB/CPU s",
        "ratio (spread)",
        "requests/s",
        "p99 ms",
        "copied",
        "anchored",
        "mismatches",
        "core"
    );
    format!("{line}\n{}", "-".repeat(line.len()))
}

/// Two lines of the table: plain, anchored; the ratio is the median of the pairs' ratios.
pub fn rows(plain: &Case, anchored: &Case, ratio: (f64, f64, f64)) -> String {
    let row = |case: &Case, ratio: String| {
        format!(
            "{:>8}  {:>8}  {:>8}  {:>8.2}  {:>17}  {:>10.0}  {:>7.2}  {:>8}  {:>8}  {:>10}  {:>4.0} %{}",
            show(case.body_bytes),
            case.backend,
            case.mode,
            case.gb_per_cpu_s,
            ratio,
            case.requests_per_s,
            case.p99_ms,
            amount(case.bytes_copied),
            amount(case.bytes_anchored),
            case.mismatches,
            (case.saturation * 100.0).min(100.0),
            if case.is_saturated() { "" } else { "  NOT SATURATED" }
        )
    };
    let (median, low, high) = ratio;
    format!("{}\n{}", row(plain, String::new()), row(anchored, format!("{median:.2} ({low:.2}..{high:.2})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Backend;

    #[test]
    fn the_json_is_the_documented_one() {
        let report = Report {
            schema: 1,
            cases: vec![Case::of(Side::Plain, Body { size: 1024, backend: Backend::Write }, 64, &[], 0)],
        };
        let text = serde_json::to_string(&report).expect("JSON");
        assert_eq!(
            text,
            r#"{"schema":1,"cases":[{"proxy":"nginx","mode":"plain","body_bytes":1024,"backend":"write","connections":64,"requests_per_s":0.0,"gb_per_cpu_s":0.0,"p99_ms":0.0,"bytes_copied":0,"bytes_anchored":0,"mismatches":0}]}"#
        );
    }
}
