//! Takes clients' requests, hands connections over or relays.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use underdeck_handoff_control::keys::Role;
use underdeck_handoff_control::message::{Body, Message, Refusal};
use underdeck_handoff_control::policy::{Candidate, Policy, choose};
use underdeck_handoff_control::tls::{Channel, Identity};
use underdeck_handoff_steer::{Flow, Options, Steer};

use crate::away::{self, Attempt, Away};
use crate::config::Config;
use crate::metrics::{self, BackendReport, Metrics};
use crate::past::Past;
use crate::relay::Upstream;
use crate::reset::Resets;
use crate::watch::{Bell, Peer};
use crate::{ServeError, accept, back, bind, http, lock, peers, prepare, relay, spawn, watch};

/// How many backends a connection is offered to before its request is relayed.
const OFFERS: usize = 2;

pub struct Balancer {
    pub config: Config,
    pub steer: Steer,
    pub peers: Vec<Peer>,
    pub away: Mutex<HashMap<u64, Arc<Away>>>,
    /// Redirections that an earlier process left, and where to.
    pub inherited: Mutex<HashMap<Flow, SocketAddr>>,
    /// Transfers whose connections were taken back.
    pub returned: Mutex<Past<()>>,
    transfers: AtomicU64,
    pub resets: Resets,
    pub bell: Bell,
    pub metrics: Metrics,
}

pub fn run(config: Config, ready: impl FnOnce()) -> Result<(), ServeError> {
    let identity = Identity::load(Role::Balancer, &config.authority, &config.certificate, &config.key)?;
    let listener = bind("listen", config.listen)?;
    let options = Options { capacity: config.capacity, pin: config.pin.clone(), ..Options::default() };
    let steer = Steer::attach(&config.interfaces, &options)?;
    let (control, status, step) = (config.control, config.status.clone(), config.step());
    let balancer = Arc::new(Balancer {
        steer,
        peers: config.backend.iter().map(|backend| Peer::new(backend, &identity, step)).collect(),
        away: Mutex::default(),
        inherited: Mutex::default(),
        returned: Mutex::new(Past::new()),
        // Two balancers, or two processes of one, do not have the same numbers.
        transfers: AtomicU64::new(RandomState::new().hash_one(std::process::id())),
        resets: Resets::start().map_err(ServeError::Thread)?,
        bell: Bell::default(),
        metrics: Metrics::new(),
        config,
    });
    back::inherit(&balancer).map_err(ServeError::Thread)?;
    let on_control = Arc::clone(&balancer);
    peers::listen(control, identity.clone(), step, move |channel, message| on_control.control(channel, message))?;
    if let Some(path) = status {
        let balancer = Arc::clone(&balancer);
        metrics::tell(&path, move || {
            let (away, rules) = (lock(&balancer.away).len(), balancer.steer.rules().len());
            balancer.metrics.report("balancer", &balancer.config, away, rules, balancer.backends())
        })?;
    }
    for index in 0..balancer.peers.len() {
        let (balancer, identity) = (Arc::clone(&balancer), identity.clone());
        spawn("watch", move || watch::watch(&balancer, index, &identity)).map_err(ServeError::Thread)?;
    }
    ready();
    accept(&listener, "client", move |stream| balancer.serve(stream, Vec::new()));
    Ok(())
}

impl Balancer {
    pub fn next_transfer(&self) -> u64 {
        self.transfers.fetch_add(1, Relaxed)
    }

    /// One client's connection, of which `buffer` was read already, until it is away or ends.
    pub fn serve(&self, mut stream: TcpStream, buffer: Vec<u8>) {
        let Some(_here) = self.metrics.enter(self.config.max_connections) else {
            self.metrics.abort("max_connections");
            let _ = stream.write_all(http::UNAVAILABLE);
            return;
        };
        // Errors of one client concern nobody else.
        let _ = self.requests(stream, buffer);
    }

    fn requests(&self, mut stream: TcpStream, mut buffer: Vec<u8>) -> io::Result<()> {
        prepare(&stream, &self.config)?;
        let mut upstream: Option<Upstream> = None;
        loop {
            let request = match http::request(&mut stream, &mut buffer) {
                Ok(Some(request)) => request,
                Ok(None) => return Ok(()),
                Err(error) => return stream.write_all(http::complaint(&error)),
            };
            let mut failed = Vec::new();
            while self.config.policy != Policy::Relay && failed.len() < OFFERS {
                let Some(backend) = self.choose(&request.path, &failed, true) else { break };
                stream = match away::hand_out(self, stream, backend, &buffer) {
                    Attempt::Gone | Attempt::Lost => return Ok(()),
                    Attempt::Kept(stream) => {
                        failed.push(backend);
                        stream
                    }
                    Attempt::Stays(stream) => {
                        failed.resize(OFFERS, backend);
                        stream
                    }
                };
            }
            let exchange = relay::Exchange { balancer: self, request: &request, head: &buffer[..request.length] };
            let keep = exchange.relay(&mut stream, &mut upstream, &failed)?;
            buffer.drain(..request.length);
            if request.close || !keep {
                return Ok(());
            }
        }
    }

    /// The backend for a path, none of `without`, and with `rested` none that rests after a failure.
    pub fn choose(&self, path: &str, without: &[usize], rested: bool) -> Option<usize> {
        let one = |(index, peer): (usize, &Peer)| Candidate {
            name: peer.config.name.clone(),
            alive: peer.is_alive() && !without.contains(&index) && !(rested && peer.rests()),
            load: peer.load(),
        };
        let candidates: Vec<Candidate> = self.peers.iter().enumerate().map(one).collect();
        choose(self.config.policy, path, &candidates)
    }

    fn backends(&self) -> Vec<BackendReport> {
        let one = |peer: &Peer| BackendReport {
            name: peer.config.name.clone(),
            alive: peer.is_alive(),
            backed_off: peer.rests(),
            load: u64::from(peer.load()),
        };
        self.peers.iter().map(one).collect()
    }

    fn control(self: &Arc<Self>, channel: &mut Channel, message: Message) -> io::Result<()> {
        let transfer = message.transfer;
        let body = match message.body {
            Body::ServerDone(done) => back::take_back(self, transfer, &done),
            Body::Abort(generation) => back::abort(self, transfer, generation),
            _ => Body::Refused(Refusal::Transfer),
        };
        channel.send(&Message { transfer, body })
    }
}
