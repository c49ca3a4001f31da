//! Sends a table of exchanges through a plain proxy and the same proxy under the engine.

use std::time::{Duration, Instant};

use underdeck_lab::backend::Backend;
use underdeck_lab::client::Front;
use underdeck_lab::engine;
use underdeck_lab::proxy::{Engine, Mode, Proxy, Spec};
use underdeck_lab::twin::{Exchange, Observation, Side, differences, judge, observe};
use underdeck_lab::{LabError, proc, tools};

use crate::payload::{Must, tell};

/// Orphaned anchors may live for 5 s; counters must have settled by then.
pub const SETTLE: Duration = Duration::from_secs(40);
const SHOWN: usize = 12;

/// A proxy, its backend and where to connect.
#[derive(Debug)]
pub struct Lane {
    /// A short name for messages.
    pub name: String,
    /// The proxy.
    pub proxy: Proxy,
    /// The backend that only this proxy uses.
    pub backend: Backend,
    /// Where clients connect.
    pub front: Front,
    engine: Option<Engine>,
}

/// The engine as the tests run it; None with `UNDERDECK_TEST_LIB=none`.
pub fn engine() -> Option<Engine> {
    if std::env::var_os("UNDERDECK_TEST_LIB").is_some_and(|it| it == "none") {
        return None;
    }
    Some(Engine::here().unwrap_or_else(|error| panic!("{error}")))
}

impl Lane {
    /// Starts a proxy with a backend of its own. `engine`: the library to preload.
    pub fn start(name: &str, spec: &Spec, engine: Option<Engine>) -> Result<Self, LabError> {
        Self::start_with(name, spec, engine, None)
    }

    /// As [`Lane::start`], with a limit of open descriptors.
    pub fn start_with(
        name: &str,
        spec: &Spec,
        engine: Option<Engine>,
        descriptors: Option<u64>,
    ) -> Result<Self, LabError> {
        let backend = Backend::start()?;
        let mode = engine.clone().map_or(Mode::Plain, Mode::Underdeck);
        let proxy = Proxy::start_with(spec, &mode, backend.addr(), &[], descriptors)?;
        let front = proxy.front()?;
        let lane = Self { name: name.to_owned(), proxy, backend, front, engine };
        if lane.has_engine() {
            lane.assert_engine_inside();
        }
        Ok(lane)
    }

    /// A plain proxy.
    pub fn plain(spec: &Spec) -> Self {
        Self::start("plain", spec, None).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The proxy under the engine.
    pub fn underdeck(spec: &Spec) -> Self {
        Self::start("underdeck", spec, engine()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The proxy under the engine with the smallest body size that it takes.
    pub fn underdeck_tiny(spec: &Spec) -> Self {
        let tiny = engine().map(|it| it.min_body(64));
        Self::start("underdeck-min-body-64", spec, tiny).unwrap_or_else(|error| panic!("{error}"))
    }

    /// For observing exchanges.
    pub fn side(&self) -> Side<'_> {
        Side { proxy: Some(&self.proxy), front: &self.front, backend: &self.backend }
    }

    /// Whether the library is preloaded.
    pub fn has_engine(&self) -> bool {
        self.engine.is_some()
    }

    fn assert_engine_inside(&self) {
        let library = tools::library().unwrap_or_else(|error| panic!("{error}"));
        for pid in self.proxy.workers() {
            assert!(proc::maps(pid, &library), "{}: process {pid} runs without the library", self.name);
        }
    }

    /// What is wrong with the engine's counters when nobody is connected: resets, panics, anything held, anything of `musts`
    /// that they do not show.
    pub fn check_counters(&self, musts: &[Must]) -> Vec<String> {
        let Some(engine) = &self.engine else { return Vec::new() };
        let counters = match engine::settled(&self.proxy, SETTLE) {
            Ok(counters) => counters,
            Err(error) => return vec![format!("{}: {error}", self.name)],
        };
        let tiny = engine.min_body.is_some();
        let mut wrong: Vec<String> = musts.iter().filter_map(|must| must.fault(&counters, tiny)).collect();
        if counters.resets != 0 || counters.panics != 0 {
            wrong.push(format!("{} resets, {} panics", counters.resets, counters.panics));
        }
        wrong.into_iter().map(|what| format!("{}: {what}", self.name)).collect()
    }

    /// What is wrong where HAProxy is to splice by itself: that it says it did not.
    pub fn check_own_splicing(&self) -> Option<String> {
        match self.proxy.spliced() {
            Ok(Some(0)) => Some(format!("{}: HAProxy was to splice by itself and did not", self.name)),
            Ok(_) => None,
            Err(error) => Some(format!("{}: {error}", self.name)),
        }
    }

    /// The engine's counters in words; nothing where it is not inside.
    fn figures(&self) -> String {
        engine::snapshot(&self.proxy).map_or_else(String::new, |it| format!("\n  {}: {}", self.name, tell(&it)))
    }

    /// Stops it; what it left behind is an error. Panics where the backend got a wrong byte, by broken exchanges, too.
    pub fn stop(self) -> Result<(), LabError> {
        let stopped = self.proxy.stop();
        assert_eq!(self.backend.wrong_uploads(), vec![], "{}", self.name);
        stopped
    }
}

/// Sends every exchange through a plain lane and two lanes under the engine; panics with all differences, and with what the
/// engine did not do of `musts`.
pub fn run(label: &str, spec: &Spec, exchanges: &[Exchange], musts: &[Must]) {
    let started = Instant::now();
    let lanes = [Lane::plain(spec), Lane::underdeck(spec), Lane::underdeck_tiny(spec)];
    let mut wrong = Vec::new();
    let only = std::env::var("UNDERDECK_TEST_ONLY").unwrap_or_default();
    for exchange in exchanges.iter().filter(|it| it.name.contains(&only)) {
        wrong.extend(compare(exchange, &lanes));
        if wrong.len() > SHOWN {
            wrong.push("… and more: the run was cut short".to_owned());
            break;
        }
    }
    let mut figures = String::new();
    for lane in &lanes {
        // Of some exchanges only, nothing follows for the whole.
        wrong.extend(lane.check_counters(if only.is_empty() { musts } else { &[] }));
        figures += &lane.figures();
        wrong.extend(lane.check_own_splicing());
        if !wrong.is_empty() {
            wrong.push(format!("{} error log: {}", lane.name, lane.proxy.error_log()));
        }
    }
    for lane in lanes {
        let name = lane.name.clone();
        if let Err(error) = lane.stop() {
            wrong.push(format!("{name}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{label}:\n{}", wrong.join("\n"));
    eprintln!("{label}: {} exchanges x 3 in {:.1} s{figures}", exchanges.len(), started.elapsed().as_secs_f64());
}

/// Sends one exchange through all lanes at once; the first lane is the one to compare with.
pub fn compare(exchange: &Exchange, lanes: &[Lane]) -> Vec<String> {
    let observed: Vec<Result<Observation, LabError>> = std::thread::scope(|scope| {
        let spawn = |lane| scope.spawn(move || observe(exchange, Lane::side(lane)));
        let threads: Vec<_> = lanes.iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panic!("a client panicked"))).collect()
    });
    let mut wrong = Vec::new();
    for (lane, result) in lanes.iter().zip(&observed) {
        match result {
            Ok(it) => wrong.extend(judge(exchange, it).into_iter().map(|what| format!("{}: {what}", lane.name))),
            Err(error) => wrong.push(format!("{}: {}: {error}", lane.name, exchange.name)),
        }
    }
    if let Some(Ok(first)) = observed.first() {
        for (lane, result) in lanes.iter().zip(&observed).skip(1) {
            let Ok(it) = result else { continue };
            wrong.extend(differences(exchange, first, it).into_iter().map(|what| format!("{}: {what}", lane.name)));
        }
    }
    wrong
}
