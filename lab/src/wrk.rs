//! wrk: closed-loop load. Its latencies are those of a closed loop and hide queueing that a person would feel.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::While;
use crate::process::{Process, pin};
use crate::tools::Tool;
use crate::{LabError, wait};

/// One run.
#[derive(Clone, Debug)]
pub struct Load {
    /// Connections.
    pub connections: usize,
    /// Length, in whole seconds.
    pub seconds: u64,
    /// CPUs to run on.
    pub cpus: Vec<usize>,
}

/// What wrk measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Requests answered.
    pub requests: u64,
    /// Requests per second.
    pub requests_per_s: f64,
    /// 99th percentile of the latency, milliseconds.
    pub p99_ms: f64,
    /// Bytes read, heads included, as wrk rounds them.
    pub bytes: f64,
    /// Connect, read, write and timeout errors.
    pub socket_errors: u64,
    /// Answers that were not 2xx or 3xx.
    pub bad_status: u64,
}

impl Load {
    /// Sends `GET path` to `addr` for the length of the run.
    pub fn run(&self, addr: SocketAddr, path: &str) -> Result<Measured, LabError> {
        let dir = tempfile::tempdir().doing(|| "create a temporary directory".to_owned())?;
        let mut command = Command::new(Tool::Wrk.path()?);
        command.args(["-t1", "--latency", "--timeout", "20s"]);
        command.arg(format!("-c{}", self.connections)).arg(format!("-d{}s", self.seconds));
        command.arg(format!("http://{addr}{path}"));
        pin(&mut command, &self.cpus);
        let mut process = Process::spawn("wrk", dir.path(), command)?;
        let within = Duration::from_secs(self.seconds + 30);
        let status = wait::until("wrk ends", within, || process.exited())?;
        let output = read(&dir.path().join("wrk.stdout"));
        match parse(&output) {
            Some(measured) if status.success() => Ok(measured),
            _ => {
                let output = output + &read(&dir.path().join("wrk.stderr"));
                Err(LabError::Failed { command: "wrk".to_owned(), status: status.to_string(), output })
            }
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn parse(output: &str) -> Option<Measured> {
    let mut it = Measured::default();
    for line in output.lines().map(str::trim) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["99%", latency] => it.p99_ms = unit(latency, &[("us", 1e-3), ("ms", 1.0), ("s", 1e3), ("m", 6e4)])?,
            [count, "requests", "in", _, bytes, "read"] => {
                it.requests = count.parse().ok()?;
                let scales = [("KB", 1024.0), ("MB", 1_048_576.0), ("GB", 1_073_741_824.0), ("TB", 1.1e12), ("B", 1.0)];
                it.bytes = unit(bytes, &scales)?;
            }
            ["Requests/sec:", rate] => it.requests_per_s = rate.parse().ok()?,
            ["Socket", "errors:", rest @ ..] => {
                it.socket_errors = rest.iter().filter_map(|w| w.trim_end_matches(',').parse::<u64>().ok()).sum();
            }
            ["Non-2xx", .., count] => it.bad_status = count.parse().ok()?,
            _ => {}
        }
    }
    (it.requests_per_s > 0.0).then_some(it)
}

/// Units with a longer name must come first where one ends in another.
fn unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (name, scale) = units.iter().find(|(name, _)| text.ends_with(name))?;
    text.strip_suffix(name)?.parse::<f64>().ok().map(|value| value * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_read() {
        let text = "  Latency Distribution\n     50%    1.23ms\n     99%   12.50ms\n  1234 requests in 3.00s, 1.50GB read\n\
                    \x20 Socket errors: connect 0, read 2, write 0, timeout 1\n  Non-2xx or 3xx responses: 7\n\
                    Requests/sec:    411.33\nTransfer/sec:    512.00MB\n";
        let it = parse(text).expect("measured");
        assert_eq!((it.requests, it.p99_ms, it.socket_errors, it.bad_status), (1234, 12.5, 3, 7));
        assert_eq!(it.bytes, 1.5 * 1_073_741_824.0);
        assert_eq!(parse("nothing"), None);
        assert_eq!(unit("3.00s", &[("us", 1e-3), ("ms", 1.0), ("s", 1e3)]), Some(3000.0));
    }
}
