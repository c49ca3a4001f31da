//! Answers requests on connections that it was handed, and on those of balancers that relay.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use underdeck_handoff_control::keys::Role;
use underdeck_handoff_control::message::{Body, Message, Ping, Refusal};
use underdeck_handoff_control::policy::{Candidate, Policy, choose, is_overloaded};
use underdeck_handoff_control::tls::{Channel, Identity};
use underdeck_handoff_steer::{Options, Ports, Steer};

use crate::config::Config;
use crate::give::{Given, Unsaid};
use crate::metrics::{self, Metrics};
use crate::peers::{self, Pool};
use crate::take::{Owned, Transfers};
use crate::{ServeError, accept, bind, farewell, give, http, lock, prepare, spawn};

/// How long the last segments of a connection may take.
const FAREWELL: Duration = Duration::from_secs(2);

pub struct Backend {
    pub config: Config,
    identity: Identity,
    pub steer: Steer,
    pub ports: Ports,
    /// Tells this process from others.
    process: u64,
    pub transfers: Transfers,
    /// What a balancer said last.
    ping: Mutex<Ping>,
    /// One pool for each balancer.
    balancers: Mutex<HashMap<SocketAddr, Arc<Pool>>>,
    pub unsaid: Unsaid,
    pub metrics: Metrics,
}

pub fn run(config: Config, ready: impl FnOnce()) -> Result<(), ServeError> {
    let identity = Identity::load(Role::Backend, &config.authority, &config.certificate, &config.key)?;
    let listener = bind("listen", config.listen)?;
    let steer = Steer::attach(&config.interfaces, &Options { capacity: config.capacity, ..Options::default() })?;
    let (control, status, step) = (config.control, config.status.clone(), config.step());
    let (unsaid, to_say) = Unsaid::new();
    let backend = Arc::new(Backend {
        identity: identity.clone(),
        steer,
        ports: Ports::new(61_000..=65_000),
        process: RandomState::new().hash_one(std::process::id()),
        transfers: Transfers::new(),
        ping: Mutex::new(Ping { mean: 0, absent: Vec::new() }),
        balancers: Mutex::default(),
        unsaid,
        metrics: Metrics::new(),
        config,
    });
    let teller = Arc::clone(&backend);
    spawn("unsaid", move || give::say_again(&teller, &to_say)).map_err(ServeError::Thread)?;
    let on_control = Arc::clone(&backend);
    peers::listen(control, identity, step, move |channel, message| on_control.control(channel, message))?;
    if let Some(path) = status {
        let backend = Arc::clone(&backend);
        metrics::tell(&path, move || {
            let (owned, rules) = (backend.transfers.owned() as usize, backend.steer.rules().len());
            backend.metrics.report("backend", &backend.config, owned, rules, Vec::new())
        })?;
    }
    ready();
    accept(&listener, "relayed", move |stream| {
        let Some(_here) = backend.metrics.enter(backend.config.max_connections) else { return };
        // Errors of one balancer concern nobody else.
        let _ = backend.requests(&mut Some(stream), Vec::new(), &mut None);
    });
    Ok(())
}

impl Backend {
    fn control(self: &Arc<Self>, channel: &mut Channel, message: Message) -> io::Result<()> {
        let transfer = message.transfer;
        let mut say = |body| channel.send(&Message { transfer, body });
        match message.body {
            Body::Ping(ping) => {
                *lock(&self.ping) = ping;
                channel.send(&Message { transfer: self.process, body: Body::Pong(self.transfers.owned()) })
            }
            Body::BeginOffload(snapshot) => self.take(channel, transfer, &snapshot),
            Body::Abort(_) => say(self.transfers.abort(transfer)),
            _ => say(Body::Refused(Refusal::Transfer)),
        }
    }

    /// The control connections to a balancer.
    pub fn pool(&self, balancer: SocketAddr) -> Arc<Pool> {
        let new = || Arc::new(Pool::new(balancer, self.identity.clone(), self.config.step()));
        Arc::clone(lock(&self.balancers).entry(balancer).or_insert_with(new))
    }

    /// A connection that was handed over, until it ends or goes back.
    pub fn serve(&self, stream: TcpStream, read: Vec<u8>, owned: Owned) {
        let _here = self.metrics.enter(u32::MAX);
        let (mut stream, mut owned) = (Some(stream), Some(owned));
        // Errors of one client concern nobody else.
        let _ = self.requests(&mut stream, read, &mut owned);
        if let Some(stream) = stream {
            // The rules go only when no packet needs them any more.
            farewell::farewell(stream, FAREWELL);
        }
    }

    /// Takes the stream away if the connection is not here any more. Without `owned` it is a relaying balancer's.
    fn requests(
        &self,
        stream: &mut Option<TcpStream>,
        mut buffer: Vec<u8>,
        owned: &mut Option<Owned>,
    ) -> io::Result<()> {
        let mut served = 0;
        if let Some(stream) = stream {
            prepare(stream, &self.config)?;
        }
        while let Some(mut client) = stream.take() {
            let request = match http::request(&mut client, &mut buffer) {
                Ok(request) => request,
                Err(error) => {
                    let complained = io::Write::write_all(&mut client, http::complaint(&error));
                    *stream = Some(client);
                    return complained;
                }
            };
            let Some(request) = request else {
                *stream = Some(client);
                return Ok(());
            };
            if let Some(mine) = owned
                && mine.stays.is_none_or(|until| until <= Instant::now())
                && self.goes_back(&request.path, served)
            {
                match self.give_back(client, mine, &buffer) {
                    Given::Kept(kept) => client = kept,
                    Given::Gone => return Ok(()),
                }
            }
            let metrics = &self.metrics;
            let bytes = if owned.is_some() { &metrics.direct_bytes } else { &metrics.relayed_bytes };
            let responded = self.respond(&mut client, &request, bytes);
            *stream = Some(client);
            responded?;
            metrics.requests.fetch_add(1, Relaxed);
            served += 1;
            buffer.drain(..request.length);
            if request.close {
                return Ok(());
            }
        }
        Ok(())
    }

    fn goes_back(&self, path: &str, served: u32) -> bool {
        match self.config.policy {
            Policy::Relay | Policy::Pin => false,
            Policy::PerRequest(most) => served >= most,
            Policy::LeastLoaded => served > 0 && is_overloaded(self.transfers.owned(), lock(&self.ping).mean),
            Policy::Shard => {
                let ping = lock(&self.ping);
                let one = |backend: &crate::config::Backend| Candidate {
                    name: backend.name.clone(),
                    alive: !ping.absent.contains(&backend.name),
                    load: 0,
                };
                let all: Vec<Candidate> = self.config.backend.iter().map(one).collect();
                let owner = choose(Policy::Shard, path, &all).map(|index| &all[index].name);
                // Its own first request is answered in any case: the balancer knows best who lives.
                served > 0 && owner != self.config.name.as_ref()
            }
        }
    }
}
