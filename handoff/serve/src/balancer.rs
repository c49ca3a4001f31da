//! Takes clients' requests, hands connections over or relays.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use underdeck_handoff_control::keys::Role;
use underdeck_handoff_control::message::{Body, Message, Refusal};
use underdeck_handoff_control::policy::{Candidate, Policy, choose};
use underdeck_handoff_control::tls::{Channel, Identity};
use underdeck_handoff_steer::{Options, Steer, Target};

use crate::away::{self, Attempt, Away, lock};
use crate::config::{Backend, Config};
use crate::http::{self, Request};
use crate::metrics::{self, BackendReport, Metrics};
use crate::peers::{self, Pool};
use crate::{ServeError, config};

/// How often a backend is asked whether it is there, and how long it may take to say so: twice both is below a second.
const HEARTBEAT: Duration = Duration::from_millis(100);
const SILENCE: Duration = Duration::from_millis(350);

/// A route is looked up again after so long.
const ROUTE: Duration = Duration::from_secs(1);

pub struct Peer {
    config: config::Backend,
    pub pool: Pool,
    alive: AtomicBool,
    load: AtomicU32,
    target: Mutex<Option<(Instant, Target)>>,
}

impl Peer {
    /// How packets for `to`, which is at this peer, get there. Looking it up costs more than putting a rule in place.
    pub fn target(&self, to: SocketAddr) -> Result<Target, underdeck_handoff_steer::Error> {
        let mut known = lock(&self.target);
        if let Some((at, target)) = *known
            && target.address.ip() == to.ip()
            && at.elapsed() < ROUTE
        {
            return Ok(Target { address: to, ..target });
        }
        let target = Target::resolve(to)?;
        *known = Some((Instant::now(), target));
        Ok(target)
    }
}

pub struct Balancer {
    config: Config,
    pub steer: Steer,
    pub peers: Vec<Peer>,
    pub away: Mutex<HashMap<u64, Arc<Mutex<Away>>>>,
    transfers: AtomicU64,
    pub metrics: Metrics,
}

pub fn run(config: Config, ready: impl FnOnce()) -> Result<(), ServeError> {
    let identity = Identity::load(Role::Balancer, &config.authority, &config.certificate, &config.key)?;
    let options = Options { capacity: config.capacity, pin: config.pin.clone(), ..Options::default() };
    let steer = Steer::attach(&config.interfaces, &options)?;
    let peer = |backend: &Backend| Peer {
        config: backend.clone(),
        pool: Pool::new(backend.control, identity.clone(), config.step()),
        alive: AtomicBool::new(false),
        load: AtomicU32::new(0),
        target: Mutex::default(),
    };
    let peers = config.backend.iter().map(peer).collect();
    // Transfers of an earlier process are not taken for this one's.
    let first = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
    let (listen, control, status, step) = (config.listen, config.control, config.status.clone(), config.step());
    let balancer = Arc::new(Balancer {
        config,
        steer,
        peers,
        away: Mutex::default(),
        transfers: AtomicU64::new(first),
        metrics: Metrics::new(),
    });
    let listener = TcpListener::bind(listen).map_err(|source| ServeError::Listen {
        what: "listen",
        at: listen.to_string(),
        source,
    })?;
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
        std::thread::spawn(move || balancer.watch(index, &identity));
    }
    ready();
    for stream in listener.incoming().flatten() {
        let balancer = Arc::clone(&balancer);
        std::thread::spawn(move || balancer.serve(stream, Vec::new()));
    }
    Ok(())
}

impl Balancer {
    pub fn next_transfer(&self) -> u64 {
        self.transfers.fetch_add(1, Relaxed)
    }

    /// One client's connection, of which `buffer` was read already, until it is away or ends.
    pub fn serve(&self, stream: TcpStream, buffer: Vec<u8>) {
        self.metrics.here.fetch_add(1, Relaxed);
        // Errors of one client concern nobody else.
        let _ = self.requests(stream, buffer);
        self.metrics.here.fetch_sub(1, Relaxed);
    }

    fn requests(&self, mut stream: TcpStream, mut buffer: Vec<u8>) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut upstream = None;
        while let Some(request) = http::request(&mut stream, &mut buffer)? {
            let Some(backend) = choose(self.config.policy, &request.path, &self.candidates()) else {
                let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                return stream.write_all(answer);
            };
            if self.config.policy != Policy::Relay {
                // Counts until the next heartbeat brings the backend's own figure.
                self.peers[backend].load.fetch_add(1, Relaxed);
                stream = match away::hand_out(self, stream, backend, &buffer) {
                    Attempt::Kept(stream) => stream,
                    Attempt::Gone | Attempt::Lost => return Ok(()),
                };
            }
            self.relay(&mut stream, &mut upstream, backend, &request, &buffer[..request.length])?;
            buffer.drain(..request.length);
            if request.close {
                break;
            }
        }
        Ok(())
    }

    fn candidates(&self) -> Vec<Candidate> {
        let one = |peer: &Peer| Candidate {
            name: peer.config.name.clone(),
            alive: peer.alive.load(Relaxed),
            load: peer.load.load(Relaxed),
        };
        self.peers.iter().map(one).collect()
    }

    fn backends(&self) -> Vec<BackendReport> {
        let one = |peer: &Peer| BackendReport {
            name: peer.config.name.clone(),
            alive: peer.alive.load(Relaxed),
            backed_off: false,
            load: u64::from(peer.load.load(Relaxed)),
        };
        self.peers.iter().map(one).collect()
    }

    fn relay(
        &self,
        client: &mut TcpStream,
        upstream: &mut Option<(usize, TcpStream)>,
        backend: usize,
        request: &Request,
        head: &[u8],
    ) -> io::Result<()> {
        let mut server = match upstream.take() {
            Some((index, server)) if index == backend => server,
            _ => TcpStream::connect_timeout(&self.peers[backend].config.listen, self.config.step())?,
        };
        server.write_all(head)?;
        let mut buffer = Vec::new();
        let response = http::response(&mut server, &mut buffer)?;
        client.write_all(&buffer)?;
        let body = if request.head { 0 } else { response.body };
        let mut left = body.saturating_sub((buffer.len() - response.length) as u64);
        let mut bytes = vec![0; 64 << 10];
        while left > 0 {
            let room = bytes.len().min(left as usize);
            let count = server.read(&mut bytes[..room])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            client.write_all(&bytes[..count])?;
            left -= count as u64;
        }
        self.metrics.requests.fetch_add(1, Relaxed);
        self.metrics.relayed_bytes.fetch_add(body, Relaxed);
        if !request.close {
            *upstream = Some((backend, server));
        }
        Ok(())
    }

    fn control(self: &Arc<Self>, channel: &mut Channel, message: Message) -> io::Result<()> {
        let transfer = message.transfer;
        match message.body {
            Body::ServerDone(snapshot) => away::take_back(self, channel, transfer, &snapshot),
            _ => channel.send(&Message { transfer, body: Body::Refused(Refusal::Transfer) }),
        }
    }

    /// Asks a backend again and again whether it is there, and whether it is still the same process.
    fn watch(&self, index: usize, identity: &Identity) {
        let peer = &self.peers[index];
        let mut epoch = None;
        loop {
            // A connection that breaks is tried again once, at once: the backend may well live.
            let answer = identity.connect(peer.config.control, SILENCE).and_then(|mut channel| {
                loop {
                    let now = self.ask(index, &mut channel)?;
                    if epoch.replace(now).is_some_and(|before| before != now) {
                        self.bury(index);
                    }
                    peer.alive.store(true, Relaxed);
                    std::thread::sleep(HEARTBEAT);
                }
            });
            let _: io::Result<()> = answer;
            match identity.connect(peer.config.control, SILENCE).and_then(|mut channel| self.ask(index, &mut channel)) {
                Ok(now) if epoch.is_none_or(|before| before == now) => epoch = Some(now),
                _ => {
                    epoch = None;
                    self.bury(index);
                    std::thread::sleep(HEARTBEAT);
                }
            }
        }
    }

    fn ask(&self, index: usize, channel: &mut Channel) -> io::Result<u64> {
        let loads: Vec<u32> = self.peers.iter().map(|peer| peer.load.load(Relaxed)).collect();
        let mean = loads.iter().sum::<u32>() / loads.len().max(1) as u32;
        channel.send(&Message { transfer: 0, body: Body::Ping(mean) })?;
        match channel.receive()? {
            Message { transfer, body: Body::Pong(load) } => {
                self.peers[index].load.store(load, Relaxed);
                Ok(transfer)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn bury(&self, index: usize) {
        self.peers[index].alive.store(false, Relaxed);
        self.peers[index].pool.clear();
        away::end_all(self, index);
    }
}
