//! `anchor.json`: what a run of the bench leaves.

use std::path::Path;

use serde::{Deserialize, Serialize};
use underdeck_lab::LabError;

use crate::figure::{Figure, Ratio};
use crate::machine::Machine;
use crate::stage::Mode;
use crate::syscalls::PerMib;

/// The version of the layout.
pub const SCHEMA: u32 = 1;

/// The document.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command line that made it.
    pub command: String,
    /// Pairs per case.
    pub pairs: usize,
    /// Seconds of each measured window.
    pub window_s: f64,
    /// Bytes that bodies are taken from in turn; 0: every body is the same bytes.
    pub working_set_bytes: u64,
    /// Where it ran.
    pub machine: Machine,
    /// One per proxy, mode and point.
    pub cases: Vec<Case>,
}

/// One proxy in one mode at one point. Figures are null where they cannot be had: the engine's without the engine, CPU
/// time of nobody.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// `nginx`, `nginx-64k`, `haproxy`, `haproxy-64k` or `envoy`.
    pub proxy: String,
    /// `plain`, `underdeck`, `splice`, `relay` or `direct`.
    pub mode: String,
    /// Bytes of each body.
    pub body_bytes: u64,
    /// Connections at once.
    pub connections: usize,
    /// `loopback`, `veth`, `veth-gro` or `veth-none`.
    pub network: String,
    /// `response` or `upload`.
    pub direction: String,
    /// How the backend sends the payload (the client, of an upload): `sendfile` or `write`.
    pub backend: String,
    /// `length` or `chunked`.
    pub framing: String,
    /// The command line of the subject.
    pub command: Option<String>,
    /// GB (10^9 bytes) of payload per second of the subject's CPU, see [`Run::cpu`](crate::run::Run::cpu).
    pub gb_per_cpu_s: Option<Figure>,
    /// Microseconds of the subject's CPU per request.
    pub cpu_us_per_request: Option<Figure>,
    /// Share of the CPU time that was spent in user mode.
    pub user_share: Option<Figure>,
    /// Share of the subject's CPUs that went to softirqs, whoever they were charged to.
    pub softirq_share: Option<Figure>,
    /// Requests per second, closed loop.
    pub requests_per_s: Option<Figure>,
    /// GB of payload per second, closed loop.
    pub gb_per_s: Option<Figure>,
    /// Share of the time that the subject ran or was ready to: below 0.95 it was not the bottleneck.
    pub saturation: Option<Figure>,
    /// Median latency in milliseconds, closed loop.
    pub closed_p50_ms: Option<Figure>,
    /// 99th percentile, closed loop.
    pub closed_p99_ms: Option<Figure>,
    /// Requests per second that the open loop asked for: 70 % of what the plain proxy can do.
    pub open_rate: Option<f64>,
    /// Median latency in milliseconds, open loop, from when the request was due.
    pub p50_ms: Option<Figure>,
    /// 99th percentile, open loop.
    pub p99_ms: Option<Figure>,
    /// 99.9th percentile, open loop.
    pub p999_ms: Option<Figure>,
    /// System calls per MiB of payload.
    pub system_calls_per_mib: Option<f64>,
    /// The same by call, those above 0.01.
    pub system_calls: Option<PerMib>,
    /// Payload bytes copied into the proxy's memory, per request.
    pub bytes_copied_per_request: Option<Figure>,
    /// Payload bytes that stayed in the kernel, per request.
    pub bytes_anchored_per_request: Option<Figure>,
    /// Context switches of the subject's threads per request.
    pub switches_per_request: Option<Figure>,
    /// Growth of resident memory at its peak, per connection.
    pub memory_per_connection_bytes: Option<Figure>,
    /// GB per CPU second against the plain proxy, paired.
    pub ratio_to_plain: Option<Ratio>,
    /// GB per CPU second against the bare splice relay, paired.
    pub ratio_to_relay: Option<Ratio>,
    /// GB per CPU second against HAProxy's own splicing, paired.
    pub ratio_to_splice: Option<Ratio>,
    /// Percent by which the 99th percentile of the closed loop is below the plain proxy's, paired.
    pub closed_p99_below_percent: Option<Figure>,
    /// CPU per request against the plain proxy, paired, in percent more (negative: less).
    pub extra_cpu_percent: Option<Figure>,
    /// Connections that the engine reset, all runs: must be 0.
    pub resets: u64,
    /// Answers that were not 2xx, connections that broke, requests never answered, all runs: must be 0.
    pub errors: u64,
}

impl Case {
    /// Whether it is of this mode.
    pub fn is(&self, mode: Mode) -> bool {
        self.mode == mode.name()
    }

    /// Whether the subject was the bottleneck in the closed loop. Nobody (direct) never is.
    pub fn is_saturated(&self) -> bool {
        self.saturation.is_some_and(|it| it.median >= crate::run::SATURATED)
    }

    /// What it has in common with the other modes of its point.
    pub fn point(&self) -> (&str, &str, &str, &str, &str, usize, u64) {
        let Self { network, proxy, backend, direction, framing, .. } = self;
        (network, proxy, backend, direction, framing, self.connections, self.body_bytes)
    }
}

impl Document {
    /// Writes the JSON.
    pub fn save(&self, path: &Path) -> Result<(), LabError> {
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other);
        write(path, text.map(|text| text + "\n"))
    }
}

/// Writes a file and the folders above it.
pub fn write(path: &Path, text: std::io::Result<String>) -> Result<(), LabError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let written = std::fs::create_dir_all(folder).and(text).and_then(|text| std::fs::write(path, text));
    written.map_err(|error| LabError::Io { what: format!("write {}", path.display()), error })
}
