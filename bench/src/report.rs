//! The table and the JSON of the demo.

use std::path::Path;

use serde::Serialize;

use crate::measure::{Run, Side, spread};

/// `target/demo.json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// 1.
    pub schema: u32,
    /// One per size and side.
    pub cases: Vec<Case>,
}

/// Medians over the pairs of one size and side.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// `nginx`.
    pub proxy: &'static str,
    /// `plain` or `anchored`.
    pub mode: &'static str,
    /// Size of each response body.
    pub body_bytes: u64,
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
}

impl Case {
    /// The medians of a side's runs.
    pub fn of(side: Side, size: u64, connections: usize, runs: &[&Run], mismatches: u64) -> Self {
        let median = |figure: fn(&Run) -> f64| {
            let middle = spread(runs.iter().map(|run| figure(run))).map_or(0.0, |(median, ..)| median);
            (middle * 1000.0).round() / 1000.0
        };
        Self {
            proxy: "nginx",
            mode: side.name(),
            body_bytes: size,
            connections,
            requests_per_s: median(|run| run.load.requests_per_s),
            gb_per_cpu_s: median(Run::gb_per_cpu_s),
            p99_ms: median(|run| run.load.p99_ms),
            bytes_copied: runs.iter().map(|run| run.bytes_copied).sum(),
            bytes_anchored: runs.iter().map(|run| run.bytes_anchored).sum(),
            mismatches,
        }
    }
}

/// A size for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// An amount for people, decimal units.
pub fn amount(bytes: u64) -> String {
    let b = bytes as f64;
    match bytes {
        1_000_000_000.. => format!("{:.1} GB", b / 1e9),
        1_000_000.. => format!("{:.1} MB", b / 1e6),
        1000.. => format!("{:.1} kB", b / 1e3),
        _ => format!("{bytes} B"),
    }
}

/// The head of the table.
pub fn head() -> String {
    let line = format!(
        "{:>8}  {:>8}  {:>10}  {:>17}  {:>12}  {:>9}  {:>9}  {:>9}  {:>9}",
        "body", "mode", "GB/CPU s", "ratio (spread)", "requests/s", "p99 ms", "copied", "anchored", "mismatches"
    );
    format!("{line}\n{}", "-".repeat(line.len()))
}

/// Two lines of the table: plain, anchored; the ratio is the median of the pairs' ratios.
pub fn rows(plain: &Case, anchored: &Case, ratio: (f64, f64, f64)) -> String {
    let row = |case: &Case, ratio: String| {
        format!(
            "{:>8}  {:>8}  {:>10.2}  {:>17}  {:>12.0}  {:>9.2}  {:>9}  {:>9}  {:>9}",
            size(case.body_bytes),
            case.mode,
            case.gb_per_cpu_s,
            ratio,
            case.requests_per_s,
            case.p99_ms,
            amount(case.bytes_copied),
            amount(case.bytes_anchored),
            case.mismatches
        )
    };
    let (median, low, high) = ratio;
    format!("{}\n{}", row(plain, String::new()), row(anchored, format!("{median:.2} ({low:.2}..{high:.2})")))
}

impl Report {
    /// Writes the JSON.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other)?;
        std::fs::write(path, text + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_is_the_documented_one() {
        let report = Report { schema: 1, cases: vec![Case::of(Side::Plain, 1024, 64, &[], 0)] };
        let text = serde_json::to_string(&report).expect("JSON");
        assert_eq!(
            text,
            r#"{"schema":1,"cases":[{"proxy":"nginx","mode":"plain","body_bytes":1024,"connections":64,"requests_per_s":0.0,"gb_per_cpu_s":0.0,"p99_ms":0.0,"bytes_copied":0,"bytes_anchored":0,"mismatches":0}]}"#
        );
        assert_eq!((size(1024), size(1 << 22), size(1000)), ("1 KiB".into(), "4 MiB".into(), "1000 B".into()));
    }
}
