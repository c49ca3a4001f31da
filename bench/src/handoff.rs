//! The handoff engine at a site of network namespaces: what the same server does when it relays and when it hands
//! connections over.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use underdeck_lab::download::{Client, Downloads, Object, Seen};
use underdeck_lab::fleet::{Fleet, Member, SETTLE, Setup};
use underdeck_lab::site::{Plan, Site};
use underdeck_lab::{LabError, proc};

/// Steps of an outbound handoff, in order, as the server names them.
pub const STEPS: [&str; 9] =
    ["block", "freeze", "encode", "control", "restore", "source_rule", "redirect_rule", "ready", "confirm"];

/// What one mode did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mode {
    /// `relay` or `handoff`.
    pub name: String,
    /// Bodies, in 10^6 bytes per second.
    pub mb_per_s: f64,
    /// CPU seconds of the balancer for each 10^9 bytes of bodies: its process, and the kernel's work on the packets that
    /// reach it.
    pub balancer_cpu_s_per_gb: f64,
    /// Bytes that the balancer sent for each byte that reached clients, headers included.
    pub balancer_share: f64,
    /// Milliseconds from the start of connecting to the last byte.
    pub p50_ms: f64,
    /// The same, of the slowest 1 %.
    pub p99_ms: f64,
    /// Downloads in the window and before and after it.
    pub responses: u64,
    /// Downloads with another SHA-256 than the object's.
    pub mismatches: u64,
    /// Connections that broke.
    pub broken: u64,
}

/// Times of handoffs and what became of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Handoffs {
    /// Handed out.
    pub handoffs: u64,
    /// Taken back.
    pub returned: u64,
    /// Not carried out: the connection went on at the balancer.
    pub failed: u64,
    /// Microseconds, median.
    pub handoff_us_p50: f64,
    /// Microseconds.
    pub handoff_us_p99: f64,
    /// Median microseconds of each step.
    pub steps_us: BTreeMap<String, f64>,
}

/// How clients ask.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Clients at the same time, each with one connection.
    pub clients: usize,
    /// Bytes of each object.
    pub size: usize,
    /// Requests before a connection ends; 0: never.
    pub per_connection: usize,
    /// Before it counts.
    pub warmup: Duration,
    /// What counts.
    pub window: Duration,
}

/// Downloads from a fleet with a policy, as long as `ask` says.
///
/// # Errors
/// If the fixtures fail; a download that fails is counted instead.
pub fn run(site: &Site, name: &str, policy: &str, ask: &Ask) -> Result<(Mode, Handoffs), LabError> {
    let root = tempfile::tempdir().map_err(|error| LabError::Io { what: "make a folder".to_owned(), error })?;
    let fleet = Fleet::start(site, &Setup { root: Some(root.path().to_owned()), ..Setup::new(policy) })?;
    let clients = clients(site, &fleet, ask, &objects(root.path(), ask.size)?);
    let downloads = Downloads::start(clients, None);
    downloads.measure(false);
    std::thread::sleep(ask.warmup);
    downloads.measure(true);
    let (start, before) = (Instant::now(), Mark::now(site, &fleet, &downloads)?);
    std::thread::sleep(ask.window);
    let (window, after) = (start.elapsed(), Mark::now(site, &fleet, &downloads)?);
    downloads.measure(false);
    let seen = downloads.stop();
    fleet.settled(SETTLE)?;
    let handoffs = handoffs(&fleet)?;
    fleet.stop()?;
    for reason in &seen.reasons {
        eprintln!("{name}: {reason}");
    }
    Ok((mode(name, &before, &after, window, &seen), handoffs))
}

/// Hands connections over one at a time, on links without a limit and from one client.
///
/// # Errors
/// As [`run`].
pub fn latency(handoffs_wanted: u64) -> Result<Handoffs, LabError> {
    let site = Site::new(Plan::default())?;
    let root = tempfile::tempdir().map_err(|error| LabError::Io { what: "make a folder".to_owned(), error })?;
    let fleet = Fleet::start(&site, &Setup { root: Some(root.path().to_owned()), ..Setup::new("pin") })?;
    let ask = Ask { clients: 1, size: 4096, per_connection: 1, warmup: Duration::ZERO, window: Duration::ZERO };
    let clients = clients(&site, &fleet, &ask, &objects(root.path(), ask.size)?);
    let seen = Downloads::start(clients, Some(handoffs_wanted)).join();
    fleet.settled(SETTLE)?;
    let mut handoffs = handoffs(&fleet)?;
    handoffs.failed += seen.failed + seen.mismatches;
    fleet.stop()?;
    Ok(handoffs)
}

fn objects(folder: &Path, size: usize) -> Result<Vec<Object>, LabError> {
    // A body that belongs to another request has another hash.
    (0..8).map(|seed| Object::file(folder, size, seed)).collect()
}

fn clients(site: &Site, fleet: &Fleet, ask: &Ask, objects: &[Object]) -> Vec<Client> {
    let client = |number| Client {
        place: site.client(number).clone(),
        objects: objects.to_vec(),
        per_connection: ask.per_connection,
        ..Client::new(fleet.addr())
    };
    (0..ask.clients).map(client).collect()
}

/// Counters at one end of the window.
struct Mark {
    bytes: u64,
    cpu: Duration,
    from_balancer: u64,
    to_clients: u64,
}

impl Mark {
    fn now(site: &Site, fleet: &Fleet, downloads: &Downloads) -> Result<Mark, LabError> {
        // Threads that have ended count, too: there is one for each connection.
        let times = fleet.process(Member::Balancer).map(|process| proc::user_and_system(process.pid()));
        let process = times.map_or(Duration::ZERO, |(user, system)| user + system);
        let crossed = site.crossed()?;
        Ok(Mark {
            bytes: downloads.bytes(),
            cpu: process + site.balancer_kernel_cpu(),
            from_balancer: crossed.from_balancer,
            to_clients: crossed.to_clients,
        })
    }
}

fn mode(name: &str, before: &Mark, after: &Mark, window: Duration, seen: &Seen) -> Mode {
    let bytes = (after.bytes - before.bytes) as f64;
    Mode {
        name: name.to_owned(),
        mb_per_s: bytes / 1e6 / window.as_secs_f64(),
        balancer_cpu_s_per_gb: (after.cpu - before.cpu).as_secs_f64() / (bytes / 1e9),
        balancer_share: (after.from_balancer - before.from_balancer) as f64
            / (after.to_clients - before.to_clients) as f64,
        p50_ms: seen.latency_ms(0.5),
        p99_ms: seen.latency_ms(0.99),
        responses: seen.responses,
        mismatches: seen.mismatches,
        broken: seen.failed,
    }
}

fn handoffs(fleet: &Fleet) -> Result<Handoffs, LabError> {
    let status = fleet.status(Member::Balancer)?;
    let number = |name: &str| status.get(name).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let aborted = status["handoffs"]["aborted"].as_object();
    let steps = STEPS.iter().map(|step| ((*step).to_owned(), status["steps_us"][step].as_f64().unwrap_or(0.0)));
    Ok(Handoffs {
        handoffs: fleet.count(Member::Balancer, "handoffs.out"),
        returned: fleet.count(Member::Balancer, "handoffs.back"),
        failed: aborted.map_or(0, |reasons| reasons.values().filter_map(serde_json::Value::as_u64).sum()),
        handoff_us_p50: number("handoff_us_p50"),
        handoff_us_p99: number("handoff_us_p99"),
        steps_us: steps.collect(),
    })
}
