//! Which backends live.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
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
    heard: Mutex<Instant>,
    rest: Mutex<Rest>,
    route: Mutex<Option<(Instant, Target)>>,
}

/// Rings when a backend comes or goes: the others learn of it at once.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<u64>,
    ring: Condvar,
}

impl Bell {
    fn ring(&self) {
        *lock(&self.rung) += 1;
        self.ring.notify_all();
    }

    /// Waits for that, but not for long. `heard` is how often it had rung.
    fn wait(&self, heard: &mut u64, most: Duration) {
        let rung = lock(&self.rung);
        let waited = self.ring.wait_timeout_while(rung, most, |rung| *rung == *heard);
        *heard = *waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
    }
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
            heard: Mutex::new(Instant::now()),
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

    /// It has said something, on whatever connection.
    pub fn heard(&self) {
        *lock(&self.heard) = Instant::now();
    }

    fn silence(&self) -> Duration {
        lock(&self.heard).elapsed()
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
    let (mut process, mut buried) = (None, false);
    let mut line: Option<Line> = None;
    let mut rung = 0;
    peer.heard();
    loop {
        let left = dead_after.saturating_sub(peer.silence()).max(Duration::from_millis(1));
        let had = line.is_some();
        let asked = match line.take() {
            Some(line) => Ok(line),
            None => identity.connect(peer.config.control, left).map(|channel| Line { channel, unanswered: 0 }),
        };
        match asked.and_then(|mut line| Ok((line.ask(balancer, index)?, line))) {
            Ok((answer, kept)) => {
                line = Some(kept);
                if let Some(now) = answer {
                    if process.replace(now).is_some_and(|before| before != now) {
                        bury(balancer, index);
                    }
                    peer.heard();
                    buried = false;
                    if !peer.alive.swap(true, Relaxed) {
                        balancer.bell.ring();
                    }
                }
            }
            // The connection broke, which a living backend may do: try another one, at once.
            Err(_) if had => continue,
            Err(error) if !buried && error.kind() == io::ErrorKind::ConnectionRefused => {
                bury(balancer, index);
                (process, buried) = (None, true);
            }
            Err(_) => {}
        }
        if peer.silence() >= dead_after {
            if !buried {
                bury(balancer, index);
                (process, buried) = (None, true);
            }
            // From now on each attempt has its time.
            line = None;
            peer.heard();
        }
        balancer.bell.wait(&mut rung, HEARTBEAT);
    }
}

/// A control connection for heartbeats.
struct Line {
    channel: Channel,
    unanswered: u32,
}

impl Line {
    /// Says a ping and reads the answers that are there. One that is late does not keep the next from being said: where
    /// packets are lost, each further one helps TCP to notice.
    fn ask(&mut self, balancer: &Balancer, index: usize) -> io::Result<Option<u64>> {
        let loads = balancer.peers.iter().filter(|peer| peer.is_alive()).map(Peer::load);
        let (count, sum) = loads.fold((0u32, 0u32), |(count, sum), load| (count + 1, sum.saturating_add(load)));
        let others = balancer.peers.iter().enumerate().filter(|(at, _)| *at != index);
        let absent = others.filter(|(_, peer)| !peer.is_alive() || peer.rests());
        let absent = absent.map(|(_, peer)| peer.config.name.clone()).collect();
        self.channel.set_patience(HEARTBEAT)?;
        self.channel.send(&Message { transfer: 0, body: Body::Ping(Ping { mean: sum / count.max(1), absent }) })?;
        self.unanswered += 1;
        let mut answer = None;
        while self.unanswered > 0 {
            match self.channel.receive() {
                Ok(Message { transfer, body: Body::Pong(load) }) => {
                    balancer.peers[index].load.store(load, Relaxed);
                    self.unanswered -= 1;
                    answer = Some(transfer);
                }
                Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
                // An answer comes as one TLS record, so none of it is lost here.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(answer)
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
    balancer.bell.ring();
}
