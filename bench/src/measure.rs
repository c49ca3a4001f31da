//! One side of a pair: proxy CPU, requests, bytes kept in the kernel.

use std::time::Duration;

use underdeck_lab::LabError;
use underdeck_lab::engine;
use underdeck_lab::files::Files;
use underdeck_lab::proxy::{Engine, Mode, Nginx, Proxy, Spec};
use underdeck_lab::wrk::{Load, Measured};

/// The proxy's CPU.
const PROXY_CPU: usize = 0;
/// The CPU of backend and clients.
const OTHER_CPU: usize = 1;

/// A backend and the two proxies in front of it.
#[derive(Debug)]
pub struct Bench {
    files: Files,
    plain: Proxy,
    anchored: Proxy,
}

/// Which proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// As it is.
    Plain,
    /// Under Underdeck.
    Anchored,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Plain, Self::Anchored];

    /// As in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Anchored => "anchored",
        }
    }
}

/// What one run of one side showed.
#[derive(Clone, Debug)]
pub struct Run {
    /// wrk's figures.
    pub load: Measured,
    /// CPU time of the proxy during the run.
    pub cpu: Duration,
    /// Body bytes that wrk received: requests times size.
    pub body_bytes: u64,
    /// Payload bytes that the engine kept in the kernel.
    pub bytes_anchored: u64,
    /// Payload bytes copied to the proxy. Plain: all of them.
    pub bytes_copied: u64,
}

impl Run {
    /// GB (10^9 bytes) of body per second of proxy CPU.
    pub fn gb_per_cpu_s(&self) -> f64 {
        self.body_bytes as f64 / 1e9 / self.cpu.as_secs_f64().max(1e-9)
    }

    /// Microseconds of proxy CPU per request.
    pub fn cpu_us_per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.load.requests.max(1) as f64
    }
}

impl Bench {
    /// Starts the backend with files of these sizes, nginx with 64 KiB buffers, and the same under Underdeck.
    pub fn start(sizes: &[u64], engine: Engine) -> Result<Self, LabError> {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (proxy, other) = if cpus > 1 { (vec![PROXY_CPU], vec![OTHER_CPU]) } else { (vec![], vec![]) };
        let files = Files::start(sizes, &other)?;
        let spec = Spec::Nginx(Nginx { server: "access_log off;".to_owned(), ..Nginx::large() });
        let plain = Proxy::start_on(&spec, &Mode::Plain, files.addr(), &proxy)?;
        let anchored = Proxy::start_on(&spec, &Mode::Underdeck(engine), files.addr(), &proxy)?;
        Ok(Self { files, plain, anchored })
    }

    /// The proxy of a side.
    pub fn proxy(&self, side: Side) -> &Proxy {
        match side {
            Side::Plain => &self.plain,
            Side::Anchored => &self.anchored,
        }
    }

    /// The backend.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// One run of wrk against one side.
    pub fn run(&self, side: Side, size: u64, connections: usize, seconds: u64) -> Result<Run, LabError> {
        let proxy = self.proxy(side);
        let cpus = if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) > 1 {
            vec![OTHER_CPU]
        } else {
            vec![]
        };
        let counters = || engine::snapshot(proxy).map_or((0, 0), |it| engine::anchored_and_copied(&it));
        let (before, before_cpu) = (counters(), proxy.cpu());
        let load = Load { connections, seconds, cpus }.run(proxy.front()?.addr, &format!("/{size}"))?;
        let cpu = proxy.cpu() - before_cpu;
        let after = counters();
        let body_bytes = load.requests * size;
        let (bytes_anchored, bytes_copied) = match side {
            Side::Plain => (0, body_bytes),
            Side::Anchored => (after.0 - before.0, after.1 - before.1),
        };
        Ok(Run { load, cpu, body_bytes, bytes_anchored, bytes_copied })
    }

    /// Interleaved runs of both sides, the first side alternating: element `i` is pair `i`, plain first.
    pub fn pairs(&self, size: u64, connections: usize, seconds: u64, pairs: usize) -> Result<Vec<[Run; 2]>, LabError> {
        let mut all = Vec::new();
        for i in 0..pairs {
            let pair = if i % 2 == 0 {
                let plain = self.run(Side::Plain, size, connections, seconds)?;
                [plain, self.run(Side::Anchored, size, connections, seconds)?]
            } else {
                let anchored = self.run(Side::Anchored, size, connections, seconds)?;
                [self.run(Side::Plain, size, connections, seconds)?, anchored]
            };
            all.push(pair);
        }
        Ok(all)
    }

    /// Stops everything; what is left behind is an error.
    pub fn stop(self) -> Result<(), LabError> {
        self.plain.stop()?;
        self.anchored.stop()?;
        self.files.stop()
    }
}

/// The median, the smallest and the largest of some figures; None of none.
pub fn spread(figures: impl IntoIterator<Item = f64>) -> Option<(f64, f64, f64)> {
    let mut all: Vec<f64> = figures.into_iter().collect();
    all.sort_by(f64::total_cmp);
    let (first, last) = (*all.first()?, *all.last()?);
    let middle = all.len() / 2;
    let median = if all.len() % 2 == 1 { all[middle] } else { (all[middle - 1] + all[middle]) / 2.0 };
    Some((median, first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(spread([3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread([4.0, 1.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread([]), None);
    }
}
