//! Answers requests on connections that it was handed, and gives them back.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Component, Path};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use underdeck_handoff_control::keys::Role;
use underdeck_handoff_control::machine::{Event, Inbound, InboundAction};
use underdeck_handoff_control::message::{Body, Message, Refusal};
use underdeck_handoff_control::policy::{Candidate, Policy, choose, is_overloaded};
use underdeck_handoff_control::tls::{Channel, Identity};
use underdeck_handoff_steer::{Flow, Lease, Options, Ports, Steer};
use underdeck_handoff_tcp::{Snapshot, Thawing, freeze, thaw};

use crate::away::{answer, broken, lock};
use crate::config::Config;
use crate::http::{self, Request};
use crate::metrics::{self, Metrics};
use crate::peers::{self, Pool};
use crate::{ServeError, objects};

/// How long the last segments of a connection may take.
const FAREWELL: Duration = Duration::from_secs(2);

struct Backend {
    config: Config,
    identity: Identity,
    steer: Steer,
    ports: Ports,
    epoch: u64,
    /// Transfers whose connections are here.
    owned: Mutex<HashSet<u64>>,
    /// Connections per backend, as the balancer counts.
    mean: AtomicU32,
    /// One pool for each balancer.
    balancers: Mutex<std::collections::HashMap<SocketAddr, Arc<Pool>>>,
    metrics: Metrics,
}

/// A connection that was handed over.
struct Owned {
    transfer: u64,
    flow: Flow,
    balancer: SocketAddr,
    _lease: Lease,
}

pub fn run(config: Config, ready: impl FnOnce()) -> Result<(), ServeError> {
    let identity = Identity::load(Role::Backend, &config.authority, &config.certificate, &config.key)?;
    let steer = Steer::attach(&config.interfaces, &Options { capacity: config.capacity, ..Options::default() })?;
    let (listen, control, status, step) = (config.listen, config.control, config.status.clone(), config.step());
    let listener = TcpListener::bind(listen).map_err(|source| ServeError::Listen {
        what: "listen",
        at: listen.to_string(),
        source,
    })?;
    let backend = Arc::new(Backend {
        identity: identity.clone(),
        steer,
        ports: Ports::new(61_000..=65_000),
        epoch: SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64),
        owned: Mutex::default(),
        mean: AtomicU32::new(0),
        balancers: Mutex::default(),
        metrics: Metrics::new(),
        config,
    });
    let on_control = Arc::clone(&backend);
    peers::listen(control, identity, step, move |channel, message| on_control.control(channel, message))?;
    if let Some(path) = status {
        let backend = Arc::clone(&backend);
        metrics::tell(&path, move || {
            let (owned, rules) = (lock(&backend.owned).len(), backend.steer.rules().len());
            backend.metrics.report("backend", &backend.config, owned, rules, Vec::new())
        })?;
    }
    ready();
    for stream in listener.incoming().flatten() {
        let backend = Arc::clone(&backend);
        std::thread::spawn(move || backend.serve(stream, Vec::new(), None));
    }
    Ok(())
}

impl Backend {
    fn control(self: &Arc<Self>, channel: &mut Channel, message: Message) -> io::Result<()> {
        let transfer = message.transfer;
        match message.body {
            Body::Ping(mean) => {
                self.mean.store(mean, Relaxed);
                let load = lock(&self.owned).len() as u32;
                channel.send(&Message { transfer: self.epoch, body: Body::Pong(load) })
            }
            Body::BeginOffload(snapshot) => self.take(channel, transfer, &snapshot),
            _ => channel.send(&Message { transfer, body: Body::Refused(Refusal::Transfer) }),
        }
    }

    fn take(self: &Arc<Self>, channel: &mut Channel, transfer: u64, snapshot: &[u8]) -> io::Result<()> {
        if !lock(&self.owned).insert(transfer) {
            return channel.send(&Message { transfer, body: Body::Refused(Refusal::Transfer) });
        }
        let result = self.restore(channel, transfer, snapshot);
        if !matches!(result, Ok(true)) {
            lock(&self.owned).remove(&transfer);
        }
        result.map(|_| ())
    }

    /// True if the connection is here now.
    fn restore(self: &Arc<Self>, channel: &mut Channel, transfer: u64, snapshot: &[u8]) -> io::Result<bool> {
        let refuse = |channel: &mut Channel, refusal: Refusal| {
            self.metrics.abort(refusal.name());
            channel.send(&Message { transfer, body: Body::Refused(refusal) }).map(|()| false)
        };
        let start = Instant::now();
        let Ok(snapshot) = Snapshot::decode(snapshot) else { return refuse(channel, Refusal::Snapshot) };
        let (thawing, lease) = match self.thaw(&snapshot) {
            Ok(restored) => restored,
            Err(refusal) => return refuse(channel, refusal),
        };
        let thaw_ns = start.elapsed().as_nanos() as u64;
        let start = Instant::now();
        let flow = Flow { local: lease.local(), peer: snapshot.peer() };
        if self.steer.rewrite_source(&flow, snapshot.local()).is_err() {
            return refuse(channel, Refusal::Steering);
        }
        let rule_ns = start.elapsed().as_nanos() as u64;
        let ready = Message { transfer, body: Body::ServerReady { local: flow.local, thaw_ns, rule_ns } };
        let go = channel.send(&ready).map_or_else(|error| broken(&error), |()| answer(channel, transfer));
        if go != Event::Said(Body::LbReady) {
            let _ = self.steer.remove(&flow);
            self.metrics.abort("not_confirmed");
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let stream = match thawing.finish() {
            Ok(fd) => TcpStream::from(fd),
            Err(error) => {
                let _ = self.steer.remove(&flow);
                return Err(io::Error::other(error));
            }
        };
        stream.set_nonblocking(false)?;
        self.metrics.out.fetch_add(1, Relaxed);
        let balancer = SocketAddr::new(snapshot.local().ip(), self.config.balancer_port);
        let owned = Owned { transfer, flow, balancer, _lease: lease };
        let (backend, read) = (Arc::clone(self), snapshot.blob().to_vec());
        std::thread::spawn(move || backend.serve(stream, read, Some(owned)));
        Ok(true)
    }

    /// At the first free port.
    fn thaw(&self, snapshot: &Snapshot) -> Result<(Thawing, Lease), Refusal> {
        let wanted = SocketAddr::new(self.config.listen.ip(), snapshot.local().port());
        let mut taken = Vec::new();
        for _ in 0..8 {
            let lease = self.ports.lease(wanted, snapshot.peer()).map_err(|_| Refusal::Full)?;
            match thaw(snapshot, lease.local()) {
                Ok(thawing) => return Ok((thawing, lease)),
                Err(underdeck_handoff_tcp::Error::AddressInUse { .. }) => taken.push(lease),
                Err(_) => return Err(Refusal::Snapshot),
            }
        }
        Err(Refusal::Full)
    }

    /// One connection until it ends or goes back. Without `owned` it is a relaying balancer's.
    fn serve(&self, stream: TcpStream, buffer: Vec<u8>, mut owned: Option<Owned>) {
        self.metrics.here.fetch_add(1, Relaxed);
        if let Ok(Some(stream)) = self.requests(stream, buffer, &mut owned)
            && owned.is_some()
        {
            farewell(stream);
        }
        if let Some(owned) = owned {
            let _ = self.steer.remove(&owned.flow);
            // If the balancer cannot be told, it is gone, and its rules with it.
            let _ = self.done(&owned, Vec::new());
            lock(&self.owned).remove(&owned.transfer);
        }
        self.metrics.here.fetch_sub(1, Relaxed);
    }

    /// The stream, if it has ended here.
    fn requests(
        &self,
        mut stream: TcpStream,
        mut buffer: Vec<u8>,
        owned: &mut Option<Owned>,
    ) -> io::Result<Option<TcpStream>> {
        stream.set_nodelay(true)?;
        let mut served = 0;
        while let Some(request) = http::request(&mut stream, &mut buffer)? {
            if let Some(mine) = owned
                && self.goes_back(&request.path, served)
            {
                match self.give_back(stream, mine, &buffer)? {
                    Some(kept) => stream = kept,
                    None => {
                        lock(&self.owned).remove(&mine.transfer);
                        *owned = None;
                        return Ok(None);
                    }
                }
            }
            let bytes = if owned.is_some() { &self.metrics.direct_bytes } else { &self.metrics.relayed_bytes };
            self.respond(&mut stream, &request, bytes)?;
            served += 1;
            buffer.drain(..request.length);
            if request.close {
                break;
            }
        }
        Ok(Some(stream))
    }

    fn goes_back(&self, path: &str, served: u32) -> bool {
        match self.config.policy {
            Policy::Relay | Policy::Pin => false,
            Policy::PerRequest(most) => served >= most,
            Policy::LeastLoaded => served > 0 && is_overloaded(lock(&self.owned).len() as u32, self.mean.load(Relaxed)),
            Policy::Shard => {
                let all = self.config.backend.iter();
                let all: Vec<Candidate> =
                    all.map(|backend| Candidate { name: backend.name.clone(), alive: true, load: 0 }).collect();
                let owner = choose(Policy::Shard, path, &all).map(|index| &all[index].name);
                // Its own first request is answered in any case: the owner may be dead.
                served > 0 && owner != self.config.name.as_ref()
            }
        }
    }

    /// None if the balancer has the connection now, or nobody can know.
    fn give_back(&self, stream: TcpStream, owned: &Owned, read: &[u8]) -> io::Result<Option<TcpStream>> {
        self.steer.block(&owned.flow).map_err(io::Error::other)?;
        let frozen = match freeze(stream.into(), read) {
            Ok(frozen) => frozen,
            Err(error) => {
                self.steer.remove_ingress(&owned.flow).map_err(io::Error::other)?;
                self.metrics.abort("freeze");
                return Ok(Some(error.into_fd().into()));
            }
        };
        match self.done(owned, frozen.snapshot().encode()) {
            InboundAction::Resume => {
                self.steer.remove_ingress(&owned.flow).map_err(io::Error::other)?;
                self.metrics.abort("give_back");
                Ok(Some(frozen.resume().map_err(io::Error::other)?.into()))
            }
            InboundAction::Release | InboundAction::Await => {
                let _ = self.steer.remove_source(&owned.flow);
                frozen.release();
                let _ = self.steer.remove(&owned.flow);
                self.metrics.back.fetch_add(1, Relaxed);
                Ok(None)
            }
        }
    }

    /// Says SERVER_DONE and waits for the answer.
    fn done(&self, owned: &Owned, snapshot: Vec<u8>) -> InboundAction {
        let pool = Arc::clone(
            lock(&self.balancers)
                .entry(owned.balancer)
                .or_insert_with(|| Arc::new(Pool::new(owned.balancer, self.identity.clone(), self.config.step()))),
        );
        let mut state = Inbound::Offered;
        let mut channel = match pool.take() {
            Ok(channel) => channel,
            Err(_) => return state.on(&Event::PeerLost),
        };
        let message = Message { transfer: owned.transfer, body: Body::ServerDone(snapshot) };
        let said = channel.send(&message).map_or_else(|error| broken(&error), |()| Event::Done);
        match state.on(&said) {
            InboundAction::Await => {
                let event = answer(&mut channel, owned.transfer);
                if matches!(event, Event::Said(_)) {
                    pool.put(channel);
                } else {
                    pool.clear();
                }
                state.on(&event)
            }
            action => {
                pool.clear();
                action
            }
        }
    }

    fn respond(&self, stream: &mut TcpStream, request: &Request, count: &AtomicU64) -> io::Result<()> {
        self.metrics.requests.fetch_add(1, Relaxed);
        let close = if request.close { "Connection: close\r\n" } else { "" };
        let head = |status: &str, length: u64| format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{close}\r\n");
        if let Some(size) = objects::size(&request.path) {
            stream.write_all(head("200 OK", size).as_bytes())?;
            let mut sent = if request.head { size } else { 0 };
            while sent < size {
                let bytes = objects::content(sent);
                let length = bytes.len().min((size - sent) as usize);
                stream.write_all(&bytes[..length])?;
                sent += length as u64;
                count.fetch_add(length as u64, Relaxed);
            }
            return Ok(());
        }
        let file = self.config.root.as_deref().and_then(|root| open(root, &request.path));
        let Some((file, size)) = file else { return stream.write_all(head("404 Not Found", 0).as_bytes()) };
        stream.write_all(head("200 OK", size).as_bytes())?;
        if !request.head {
            let sent = io::copy(&mut file.take(size), stream)?;
            count.fetch_add(sent, Relaxed);
            if sent < size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

/// A regular file below `root`. Links are followed; `..` is not.
fn open(root: &Path, path: &str) -> Option<(std::fs::File, u64)> {
    let relative = Path::new(path.split('?').next()?.trim_start_matches('/'));
    if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return None;
    }
    let file = std::fs::File::open(root.join(relative)).ok()?;
    let about = file.metadata().ok()?;
    about.is_file().then_some((file, about.len()))
}

/// Closes, and waits until the peer has acknowledged all: then no packet needs the rules.
fn farewell(mut stream: TcpStream) {
    if stream.shutdown(std::net::Shutdown::Write).is_err() || stream.set_read_timeout(Some(FAREWELL)).is_err() {
        return;
    }
    let deadline = Instant::now() + FAREWELL;
    // What the client still sends is of no use.
    let mut bytes = [0; 4096];
    while Instant::now() < deadline && stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
    while Instant::now() < deadline && unacknowledged(&stream) {
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// The state is another one than CLOSED, so the peer owes an acknowledgement of our FIN.
fn unacknowledged(stream: &TcpStream) -> bool {
    use std::os::fd::AsRawFd;
    // TCP_INFO begins with the state in one byte.
    let (mut state, mut length) = (0u8, 1u32);
    // SAFETY: the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &mut length)
    };
    const TCP_CLOSE: u8 = 7;
    result == 0 && state != TCP_CLOSE
}
