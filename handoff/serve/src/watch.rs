//! Which backends live.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use underdeck_handoff_control::message::{Body, Message, Ping};
use underdeck_handoff_control::tls::{Channel, Identity};
use underdeck_handoff_steer::Target;

use crate::balancer::Balancer;
use crate::config::Backend;
use crate::peers::Pool;
use crate::{away, back, lock};

/// How often a backend is asked whether it is there.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// How long a backend gets no handoffs after one has failed; twice as long after each further one.
const REST: Duration = Duration::from_millis(200);
/// How long a route is taken for granted.
const ROUTE: Duration = Duration::from_secs(1);
const MOST_REST: Duration = Duration::from_secs(10);

/// A backend.
pub struct Peer {
    pub config: Backend,
    pub pool: Pool,
    alive: AtomicBool,
    load: AtomicU32,
    /// How often it has died.
    deaths: AtomicU32,
    rest: Mutex<Rest>,
    route: Mutex<Option<(Instant, Target)>>,
}

#[derive(Default)]
struct Rest {
    failures: u32,
    until: Option<Instant>,
}

impl Peer {
    pub fn new(config: &Backend, identity: &Identity, step: Duration) -> Peer {
        Peer {
            config: config.clone(),
            pool: Pool::new(config.control, identity.clone(), step),
            alive: AtomicBool::new(false),
            load: AtomicU32::new(0),
            deaths: AtomicU32::new(0),
            rest: Mutex::default(),
            route: Mutex::default(),
        }
    }

    /// The way to an address of it, which is looked up now and then.
    ///
    /// # Errors
    /// Without a route.
    pub fn target(&self, to: SocketAddr) -> Result<Target, underdeck_handoff_steer::Error> {
        let mut route = lock(&self.route);
        match &*route {
            Some((at, target)) if at.elapsed() < ROUTE && target.address.ip() == to.ip() => {
                Ok(Target { address: to, ..*target })
            }
            _ => {
                let target = Target::resolve(to)?;
                *route = Some((Instant::now(), target));
                Ok(target)
            }
        }
    }

    pub fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }

    /// Connections that it owns.
    pub fn load(&self) -> u32 {
        self.load.load(Relaxed)
    }

    pub fn deaths(&self) -> u32 {
        self.deaths.load(Relaxed)
    }

    /// Handoffs to it have failed a moment ago.
    pub fn rests(&self) -> bool {
        lock(&self.rest).until.is_some_and(|until| Instant::now() < until)
    }

    /// A handoff worked. Counts until the next heartbeat brings the backend's own figure.
    pub fn succeeded(&self) {
        self.load.fetch_add(1, Relaxed);
        *lock(&self.rest) = Rest::default();
    }

    /// A handoff failed.
    pub fn failed(&self) {
        let mut rest = lock(&self.rest);
        let length = (REST * 2u32.saturating_pow(rest.failures.min(8))).min(MOST_REST);
        rest.failures = rest.failures.saturating_add(1);
        rest.until = Some(Instant::now() + length);
    }
}

/// Asks a backend again and again whether it is there, and whether it is still the same process.
pub fn watch(balancer: &Balancer, index: usize, identity: &Identity) {
    let peer = &balancer.peers[index];
    let dead_after = balancer.config.dead_after();
    let (mut heard, mut process, mut buried) = (Instant::now(), None, false);
    let mut channel: Option<Channel> = None;
    loop {
        let left = dead_after.saturating_sub(heard.elapsed()).max(Duration::from_millis(1));
        let had = channel.is_some();
        let asked = channel.take().map_or_else(|| identity.connect(peer.config.control, left), Ok);
        match asked.and_then(|mut channel| Ok((ask(balancer, index, &mut channel, left)?, channel))) {
            Ok((now, answered)) => {
                if process.replace(now).is_some_and(|before| before != now) {
                    bury(balancer, index);
                }
                (heard, buried, channel) = (Instant::now(), false, Some(answered));
                peer.alive.store(true, Relaxed);
            }
            // The connection broke, which a living backend may do: try another one, at once.
            Err(_) if had && heard.elapsed() < dead_after => continue,
            Err(error) => {
                let gone = error.kind() == io::ErrorKind::ConnectionRefused;
                if !buried && (gone || heard.elapsed() >= dead_after) {
                    bury(balancer, index);
                    (process, buried) = (None, true);
                }
                if buried {
                    // From now on each attempt has its time.
                    heard = Instant::now();
                }
            }
        }
        std::thread::sleep(HEARTBEAT);
    }
}

fn ask(balancer: &Balancer, index: usize, channel: &mut Channel, patience: Duration) -> io::Result<u64> {
    channel.set_patience(patience)?;
    let loads = balancer.peers.iter().filter(|peer| peer.is_alive()).map(Peer::load);
    let (count, sum) = loads.fold((0u32, 0u32), |(count, sum), load| (count + 1, sum.saturating_add(load)));
    let absent =
        balancer.peers.iter().enumerate().filter(|(at, peer)| *at != index && (!peer.is_alive() || peer.rests()));
    let ping = Ping { mean: sum / count.max(1), absent: absent.map(|(_, peer)| peer.config.name.clone()).collect() };
    channel.send(&Message { transfer: 0, body: Body::Ping(ping) })?;
    match channel.receive()? {
        Message { transfer, body: Body::Pong(load) } => {
            balancer.peers[index].load.store(load, Relaxed);
            Ok(transfer)
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Exactly the connections that it had end.
fn bury(balancer: &Balancer, index: usize) {
    let peer = &balancer.peers[index];
    peer.alive.store(false, Relaxed);
    peer.deaths.fetch_add(1, Relaxed);
    peer.load.store(0, Relaxed);
    peer.pool.clear();
    away::end_all(balancer, index);
    back::end_inherited(balancer, peer.config.listen.ip());
}
