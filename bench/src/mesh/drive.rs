//! A client in the control group of a plane: load from a process of its own, every byte of every response compared.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use underdeck_lab::LabError;
use underdeck_lab::load::{Ask, Edge, Load, Source};
use underdeck_lab::place::Place;
use underdeck_lab::timeline::{IDS, blob, expected, host};

use super::plane::{Plane, Ways, kernel_threads};

/// What the client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Timelines, from the front.
    Timelines,
    /// So many bytes, from a service that calls no other.
    Bytes(usize),
}

/// Load for a while.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Drive {
    /// What.
    pub what: What,
    /// Connections, all kept alive.
    pub connections: usize,
    /// Requests per second, open loop. None: closed loop.
    pub rate: Option<f64>,
    /// The client has a CPU of its own, on which it never sleeps.
    pub awake: bool,
    /// Milliseconds before the window.
    pub warmup_ms: u64,
    /// Milliseconds of the window.
    pub window_ms: u64,
}

/// What the client has seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Answered per second.
    pub rps: f64,
    /// Answered in the window.
    pub requests: u64,
    /// Latency, microseconds.
    pub p50_us: f64,
    /// The same.
    pub p99_us: f64,
    /// Wrong bodies and statuses, broken connections, requests without an answer.
    pub wrong: u64,
    /// In words.
    pub what_was_wrong: String,
}

/// What was seen, and what it cost.
#[derive(Clone, Debug)]
pub struct Driven {
    /// By the client.
    pub seen: Seen,
    /// CPU time of services, data plane and kernel threads in the window.
    pub cpu: [Duration; 3],
    /// Requests through the engine in the window, if it is there.
    pub ways: Option<Ways>,
}

impl Driven {
    /// Microseconds of CPU time for each request of the client, of everything but the client.
    pub fn cpu_us(&self) -> f64 {
        self.cpu.iter().sum::<Duration>().as_secs_f64() * 1e6 / self.seen.requests.max(1) as f64
    }
}

impl What {
    fn service(self) -> &'static str {
        match self {
            Self::Timelines => "front",
            Self::Bytes(_) => "media",
        }
    }

    fn targets(self) -> Vec<(String, Vec<u8>)> {
        match self {
            Self::Timelines => (0..IDS).map(|id| (format!("/timeline/{id}"), expected(id))).collect(),
            Self::Bytes(size) => vec![(format!("/bytes/{size}"), blob(size))],
        }
    }
}

fn failed(what: &str, error: impl Into<std::io::Error>) -> LabError {
    LabError::Io { what: what.to_owned(), error: error.into() }
}

impl Drive {
    /// Drives a plane from a process in its group, on the CPUs of `place`.
    pub fn run(&self, plane: &Plane, place: &Place) -> Result<Driven, LabError> {
        let mut command = Command::new(super::plane::helper()?);
        let json = serde_json::to_string(self).map_err(|error| failed("write JSON", error))?;
        command.args(["load", &plane.entry(self.what.service()).to_string(), &json]).stdout(Stdio::piped());
        place.apply(&mut command);
        plane.group().apply(&mut command)?;
        let mut child = command.spawn().map_err(|error| failed("start the client", error))?;
        let mut edges = Vec::new();
        let mut last = String::new();
        let lines = BufReader::new(child.stdout.take().ok_or_else(|| failed("read", std::io::ErrorKind::BrokenPipe))?);
        for line in lines.lines() {
            let line = line.map_err(|error| failed("read from the client", error))?;
            match line.as_str() {
                "begin" | "end" => {
                    let (services, data_plane) = plane.cpu();
                    edges.push(([services, data_plane, kernel_threads()], plane.ways()));
                }
                _ => last = line,
            }
        }
        let status = child.wait().map_err(|error| failed("wait for the client", error))?;
        let ([(before, ways_before), (after, ways_after)], Ok(seen)) = (&edges[..], serde_json::from_str(&last)) else {
            return Err(LabError::Failed {
                command: "mesh-lab load".to_owned(),
                status: status.to_string(),
                output: last,
            });
        };
        let ways = ways_before.zip(*ways_after).map(|(before, after)| Ways {
            requests: after.requests - before.requests,
            requests_kernel: after.requests_kernel - before.requests_kernel,
            responses_kernel: after.responses_kernel - before.responses_kernel,
        });
        Ok(Driven { seen, cpu: [0, 1, 2].map(|i| after[i].saturating_sub(before[i])), ways })
    }

    /// The client's own part: `tell` is called with `begin` and `end` at the edges of the window.
    pub fn load(&self, addr: SocketAddr, mut tell: impl FnMut(&str) + Send) -> Result<Seen, LabError> {
        let (targets, bodies): (Vec<_>, Vec<_>) = self.what.targets().into_iter().unzip();
        let load = Load {
            addr,
            connections: self.connections,
            ask: Ask::Get(targets),
            host: host(self.what.service()),
            fields: "",
            expect: bodies.into_iter().map(Into::into).collect(),
            rate: self.rate,
            warmup: Duration::from_millis(self.warmup_ms),
            window: Duration::from_millis(self.window_ms),
            place: Place::default(),
            spin: self.awake,
        };
        let measured = load.run(&Source::empty(), |edge| tell(if edge == Edge::Begin { "begin" } else { "end" }))?;
        Ok(Seen {
            rps: measured.requests_per_s(),
            requests: measured.requests,
            p50_us: measured.latency_ms(0.5) * 1e3,
            p99_us: measured.latency_ms(0.99) * 1e3,
            wrong: measured.bad_status + measured.mismatches + measured.failed,
            what_was_wrong: format!(
                "{self:?}: {} statuses, {} bodies, {} broken or never answered, of {}",
                measured.bad_status, measured.mismatches, measured.failed, measured.requests
            ),
        })
    }
}
