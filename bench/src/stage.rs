//! Everything that runs while one proxy is measured on one network with one backend: that, the proxy in its modes, the relay.

use std::net::SocketAddr;

use underdeck_lab::LabError;
use underdeck_lab::load::{Ask, HOST, Load, Source};
use underdeck_lab::network::Network;
use underdeck_lab::origin::Origin;
use underdeck_lab::place::Place;
use underdeck_lab::proxy::{Engine, Mode as Preload, Proxy, Surroundings};
use underdeck_lab::relay::Relay;

use crate::measure::Cpus;
use crate::scenario::{CHUNK, Direction, Framing, Net, Point, ProxyKind};
use crate::subject::Subject;

/// Who moves the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Mode {
    /// The proxy as it is.
    Plain,
    /// The proxy under Underdeck.
    Underdeck,
    /// HAProxy with `option splice-auto`, `splice-request` and `splice-response`.
    Splice,
    /// The bare splice relay: no HTTP, the ceiling.
    Relay,
    /// Nobody.
    Direct,
}

impl Mode {
    /// As on the command line and in the JSON.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The largest body that a stage can serve.
const LARGEST: u64 = 64 << 20;

/// What runs.
#[derive(Debug)]
pub struct Stage {
    /// Who is measured, plain first.
    pub subjects: Vec<(Mode, Subject)>,
    origin: Origin,
    client: Place,
    source: Source,
    working_set: u64,
    // Last: the namespaces go when everything in them has ended.
    _network: Option<Network>,
}

impl Stage {
    /// Starts backend, proxies and relay as a point wants them. Bodies come from `working_set` bytes, at least the largest
    /// body.
    pub fn start(point: &Point, modes: &[Mode], working_set: u64) -> Result<Self, LabError> {
        let Point { proxy, network: net, backend: sent_by, .. } = *point;
        let cpus = Cpus::here();
        let network = match net.offload() {
            Some(offload) => Some(Network::links(offload)?),
            None => own_loopback()?,
        };
        let (client, middle, backend) = match &network {
            Some(it) => (it.client(&cpus.others), it.proxy(&cpus.proxy), it.backend(&cpus.others)),
            None => (Place::on(&cpus.others), Place::on(&cpus.proxy), Place::on(&cpus.others)),
        };
        let origin = Origin::start(&backend, working_set.max(LARGEST), sent_by.sending())?;
        let mut subjects = Vec::new();
        for mode in modes {
            // Namespaces have no route from the clients to the backend, on purpose.
            let possible = match mode {
                Mode::Splice => proxy.splices(),
                Mode::Direct => net == Net::Loopback,
                Mode::Plain | Mode::Underdeck | Mode::Relay => true,
            };
            if possible {
                subjects.push((*mode, subject(*mode, proxy, &middle, origin.addr())?));
            }
        }
        let source = Source::new(1, LARGEST, sent_by.sending())
            .map_err(|error| LabError::Io { what: "make the payload of uploads".to_owned(), error })?;
        Ok(Self { subjects, origin, client, source, working_set, _network: network })
    }

    /// The load of a point on one subject, closed loop, without times.
    pub fn load(&self, subject: &Subject, point: &Point) -> Result<Load, LabError> {
        Ok(Load {
            addr: subject.addr()?,
            connections: point.connections,
            ask: self.ask(point),
            host: HOST.to_owned(),
            fields: "",
            expect: Vec::new(),
            rate: None,
            warmup: std::time::Duration::ZERO,
            window: std::time::Duration::ZERO,
            place: self.client.clone(),
            spin: false,
        })
    }

    /// The payload of uploads.
    pub fn source(&self) -> &Source {
        &self.source
    }

    fn ask(&self, point: &Point) -> Ask {
        let chunk = (point.framing == Framing::Chunked).then_some(CHUNK);
        match point.direction {
            Direction::Upload => Ask::Post { len: point.body, chunk },
            Direction::Response => {
                let count = (self.working_set / point.body).clamp(1, 4096);
                let framing = chunk.map(|size| format!("&chunk={size}")).unwrap_or_default();
                Ask::Get((0..count).map(|i| format!("/{}?from={}{framing}", point.body, i * point.body)).collect())
            }
        }
    }

    /// The command lines of what runs, by mode.
    pub fn command_lines(&self) -> Vec<(Mode, String)> {
        let line = |pid: u32| {
            let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ")
        };
        let first = |subject: &Subject| subject.pids().first().map(|pid| line(*pid)).unwrap_or_default();
        self.subjects
            .iter()
            .map(|(mode, subject)| (*mode, first(subject)))
            .filter(|(_, line)| !line.is_empty())
            .collect()
    }

    /// Stops everything; what is left behind is an error.
    pub fn stop(self) -> Result<(), LabError> {
        for (_, subject) in self.subjects {
            subject.stop()?;
        }
        self.origin.stop();
        Ok(())
    }
}

/// A loopback of our own, for those who may make one.
pub fn own_loopback() -> Result<Option<Network>, LabError> {
    rustix::process::getuid().is_root().then(Network::loopback).transpose()
}

fn subject(mode: Mode, proxy: ProxyKind, place: &Place, backend: SocketAddr) -> Result<Subject, LabError> {
    let surroundings = Surroundings { place: place.clone(), descriptors: None, access_log: false };
    let start = |splice, preload| {
        let proxy = Proxy::start_at(&proxy.spec(splice), &preload, backend, &surroundings)?;
        Ok(Subject::Proxy(Box::new(proxy)))
    };
    match mode {
        Mode::Plain => start(false, Preload::Plain),
        Mode::Underdeck => start(false, Preload::Underdeck(Engine::here()?)),
        Mode::Splice => start(true, Preload::Plain),
        Mode::Relay => Relay::start(&Relay::program()?, backend, place).map(Subject::Relay),
        Mode::Direct => Ok(Subject::Direct(backend)),
    }
}
