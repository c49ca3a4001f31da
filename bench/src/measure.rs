//! The demo's subjects: the same proxy plain and under Underdeck, in front of nginx that serves files.

use std::time::Duration;

use underdeck_lab::LabError;
use underdeck_lab::engine::{self, Snapshot};
use underdeck_lab::files::{Files, targets};
use underdeck_lab::load::{Ask, HOST, Load, Source};
use underdeck_lab::network::Network;
use underdeck_lab::place::Place;
use underdeck_lab::proxy::{Engine, Mode, Nginx, Proxy, Spec, Surroundings};

use crate::run::{Run, rounds};
use crate::scenario::Backend;
use crate::stage::own_loopback;
use crate::subject::Subject;

/// Load before each measured window: connections open, buffers and pipes get their size.
const WARMUP: Duration = Duration::from_millis(300);

/// The CPUs of a measurement: the proxy has one to itself, clients and backend share another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// The proxy's.
    pub proxy: Vec<usize>,
    /// Everybody else's.
    pub others: Vec<usize>,
}

impl Cpus {
    /// Of this machine; on one with a single CPU nobody is pinned.
    pub fn here() -> Self {
        match std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
            1 => Self { proxy: Vec::new(), others: Vec::new() },
            _ => Self { proxy: vec![0], others: vec![1] },
        }
    }
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

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    /// Bytes.
    pub size: u64,
    /// How the backend sends it.
    pub backend: Backend,
}

/// A backend and the two proxies in front of it.
#[derive(Debug)]
pub struct Bench {
    files: Files,
    sides: [Subject; 2],
    client: Place,
    /// Of each request.
    fields: &'static str,
    // Last: the namespace goes when everything in it has ended.
    _network: Option<Network>,
}

impl Bench {
    /// Starts the backend with files of these sizes, a proxy, and the same under Underdeck.
    pub fn start(proxy: &Spec, sizes: &[u64], engine: Engine) -> Result<Self, LabError> {
        let cpus = Cpus::here();
        let network = own_loopback()?;
        let (client, middle, backend) = match &network {
            Some(it) => (it.client(&cpus.others), it.proxy(&cpus.proxy), it.backend(&cpus.others)),
            None => (Place::on(&cpus.others), Place::on(&cpus.proxy), Place::on(&cpus.others)),
        };
        let files = Files::start_at(sizes, &backend)?;
        let surroundings = Surroundings { place: middle, descriptors: None, access_log: false };
        let start = |mode| Proxy::start_at(proxy, &mode, files.addr(), &surroundings).map(Box::new).map(Subject::Proxy);
        let sides = [start(Mode::Plain)?, start(Mode::Underdeck(engine))?];
        let fields = match proxy {
            Spec::Nginx(Nginx { gzip: true, .. }) => "Accept-Encoding: gzip\r\n",
            _ => "",
        };
        Ok(Self { files, sides, client, fields, _network: network })
    }

    /// One side.
    pub fn side(&self, side: Side) -> &Subject {
        &self.sides[side as usize]
    }

    /// The backend.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Where clients are.
    pub fn client(&self) -> &Place {
        &self.client
    }

    /// One run against one side; `rate` is requests per second, of an open loop.
    fn run(
        &self,
        side: Side,
        body: Body,
        connections: usize,
        rate: Option<f64>,
        window: Duration,
    ) -> Result<Run, LabError> {
        let load = Load {
            addr: self.side(side).addr()?,
            connections,
            ask: Ask::Get(targets(body.size, body.backend.sending()).collect()),
            host: HOST.to_owned(),
            fields: self.fields,
            expect: Vec::new(),
            rate,
            warmup: WARMUP,
            window,
            place: self.client.clone(),
            spin: false,
        };
        Run::of(self.side(side), &load, &Source::empty())
    }

    /// What the engine has counted so far; None if it is not in the other side.
    pub fn counters(&self) -> Option<Snapshot> {
        match self.side(Side::Anchored) {
            Subject::Proxy(proxy) => engine::snapshot(proxy),
            _ => None,
        }
    }

    /// Interleaved runs of both sides, the first side alternating: element `i` is pair `i`, plain first.
    pub fn pairs(
        &self,
        body: Body,
        connections: usize,
        rate: Option<f64>,
        window: Duration,
        pairs: usize,
    ) -> Result<Vec<Vec<Run>>, LabError> {
        rounds(pairs, 2, |side| self.run(Side::BOTH[side], body, connections, rate, window))
    }

    /// Stops everything; what is left behind is an error.
    pub fn stop(self) -> Result<(), LabError> {
        for side in self.sides {
            side.stop()?;
        }
        self.files.stop()
    }
}
