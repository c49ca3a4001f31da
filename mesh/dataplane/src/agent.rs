//! The agent: takes connections over, keeps the policies in force, ends.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;
use underdeck_mesh_policy::form::HeaderEdits;

use crate::client::{self, Client};
use crate::config::{Config, ConfigError, Fail};
use crate::envoy::{Envoy, EnvoyError};
use crate::guard::{self, Guard};
use crate::kernel::{Kernel, KernelError, Program};
use crate::policies::{Policies, PolicyError};
use crate::status;
use crate::upstream::Upstreams;

/// Between looks at the files of the policies, and at Envoy.
const WATCH: Duration = Duration::from_secs(1);

/// Requests and responses of programs that are not in force any more find their meaning for so many reloads.
const GENERATIONS: usize = 8;

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The policies.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The slow path.
    #[error(transparent)]
    Envoy(#[from] EnvoyError),
    /// A socket.
    #[error("{what}: {source}")]
    Socket {
        /// Which one.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// The runtime or a signal.
    #[error("the runtime: {0}")]
    Runtime(io::Error),
    /// The configuration that was read again differs in what holds for as long as the agent runs.
    #[error("`{0}` has changed: that needs a restart of the agent")]
    Restart(&'static str),
    /// There is no listener for a service of IPv6.
    #[error("{0}: the agent does not listen on IPv6: see `listen6`")]
    NoIpv6(SocketAddr),
    /// More endpoints than the kernel's tables hold.
    #[error("there are more than {} endpoints", underdeck_mesh_compiler::abi::UD_ENDPOINTS_MAX)]
    Endpoints,
}

/// Policies in force, or that were: with their program in the kernel and their Envoy.
pub(crate) struct Generation {
    pub(crate) number: u32,
    pub(crate) policies: Policies,
    pub(crate) program: Program,
    endpoints: BTreeSet<u32>,
    /// None: others are in force. Connections that still use it keep it alive.
    pub(crate) envoy: RefCell<Option<Rc<Envoy>>>,
}

impl Generation {
    /// What is done to the responses of an action.
    pub(crate) fn edits(&self, action: u32) -> &[HeaderEdits] {
        self.policies.program.actions.get(action as usize).map_or(&[], |action| &action.response_edits)
    }
}

/// What all tasks share.
pub(crate) struct Agent {
    /// As it was read last.
    config: RefCell<Rc<Config>>,
    path: PathBuf,
    /// Where connections come to.
    addresses: Vec<SocketAddr>,
    pub(crate) kernel: Kernel,
    guard: RefCell<Option<Guard>>,
    pub(crate) upstreams: Upstreams,
    pub(crate) clients: RefCell<HashMap<u64, Rc<Client>>>,
    generations: RefCell<BTreeMap<u32, Rc<Generation>>>,
    reloading: Cell<bool>,
    /// Requests that went to Envoy.
    pub(crate) raw: Cell<u64>,
    /// Of these, the ones of connections whose sockets another program holds.
    pub(crate) foreign: Cell<u64>,
    /// Responses that the kernel left to the agent.
    pub(crate) relayed: Cell<u64>,
    /// The last error, for `mesh status`.
    pub(crate) trouble: RefCell<Option<String>>,
}

impl Agent {
    pub(crate) fn config(&self) -> Rc<Config> {
        self.config.borrow().clone()
    }

    /// The policies of a program, by its number.
    pub(crate) fn generation(&self, number: u32) -> Option<Rc<Generation>> {
        self.generations.borrow().get(&number).cloned()
    }

    /// The policies in force.
    pub(crate) fn current(&self) -> Rc<Generation> {
        let generations = self.generations.borrow();
        generations.last_key_value().map(|(_, of)| of.clone()).expect("there is one before anything is taken over")
    }

    /// Says what went wrong, and goes on.
    pub(crate) fn complain(&self, what: &str) {
        eprintln!("underdeck mesh: {what}");
        *self.trouble.borrow_mut() = Some(what.to_owned());
    }

    /// Puts policies into force, and closes connections that nobody needs any more.
    async fn enforce(self: &Rc<Self>, config: &Config, policies: Policies) -> Result<(), AgentError> {
        let result = self.switch(config, policies).await;
        if let Some((_, current)) = self.generations.borrow().last_key_value() {
            self.upstreams.use_only(self, &current.endpoints);
        }
        result
    }

    /// Envoy first, then the program beside the old one, then the switch.
    async fn switch(self: &Rc<Self>, config: &Config, policies: Policies) -> Result<(), AgentError> {
        let envoy = RefCell::new(Some(Rc::new(Envoy::start(config, &policies).await?)));
        let before = self.generations.borrow().last_key_value().map(|(_, of)| of.clone());
        let number = before.as_ref().map_or(1, |before| before.number + 1);
        let program = self.kernel.load_program(&policies.object.bytes, number)?;
        let mut endpoints = BTreeSet::new();
        for (index, name) in (0..).zip(&policies.program.clusters) {
            let mut numbers = Vec::new();
            for server in policies.endpoints(name, &config.endpoints) {
                let mut refused = None;
                let make = || self.kernel.add_endpoint().map_err(|error| refused = Some(error)).ok();
                let number = self.upstreams.number(server.address, make);
                if let Some(error) = refused {
                    return Err(error.into());
                }
                numbers.push((number.ok_or(AgentError::Endpoints)?, server.weight));
            }
            program.set_cluster(index, policies.cluster(name, &numbers))?;
            for (number, _) in numbers {
                endpoints.insert(number);
                self.upstreams.fill(self, number).await;
            }
        }
        let generation = Rc::new(Generation { number, policies, program, endpoints, envoy });
        self.generations.borrow_mut().insert(number, generation.clone());
        if let Err(error) = self.kernel.switch(&generation.program) {
            self.generations.borrow_mut().remove(&number);
            return Err(error.into());
        }
        if let Some(before) = before {
            before.envoy.take();
        }
        let mut generations = self.generations.borrow_mut();
        while generations.len() > GENERATIONS {
            generations.pop_first();
        }
        Ok(())
    }

    /// Reads the policies again, while requests go on. False: that is being done already.
    fn reload_beside(self: &Rc<Self>) -> bool {
        if self.reloading.replace(true) {
            return false;
        }
        let agent = self.clone();
        tokio::task::spawn_local(async move {
            agent.reload().await;
            agent.reloading.set(false);
        });
        true
    }

    /// Whether Envoy has ended by itself.
    fn lacks_envoy(&self) -> bool {
        self.current().envoy.borrow().as_ref().is_none_or(|envoy| envoy.has_ended())
    }

    /// Takes over what the configuration says, and nothing that only the one before said.
    fn serve_services(&self, before: &Config) -> Result<(), AgentError> {
        let config = self.config();
        for service in &config.services {
            let address = self.address_for(service).ok_or(AgentError::NoIpv6(*service))?;
            self.kernel.take_over(*service, address)?;
        }
        for gone in before.services.iter().filter(|service| !config.services.contains(service)) {
            self.kernel.leave(*gone)?;
        }
        if let Some(guard) = &*self.guard.borrow() {
            guard.set_services(&config.services)?;
        }
        Ok(())
    }

    async fn renew(self: &Rc<Self>, config: Config, policies: Policies) -> Result<(), AgentError> {
        if let Some(unreachable) = config.services.iter().find(|service| self.address_for(service).is_none()) {
            return Err(AgentError::NoIpv6(*unreachable));
        }
        // First: connections to new endpoints are made as it says.
        let before = self.config.replace(Rc::new(config));
        if let Err(error) = self.enforce(&self.config(), policies).await {
            *self.config.borrow_mut() = before;
            return Err(error);
        }
        self.serve_services(&before)
    }

    /// Where connections to a service come to.
    fn address_for(&self, service: &SocketAddr) -> Option<SocketAddr> {
        self.addresses.iter().find(|address| address.is_ipv4() == service.is_ipv4()).copied()
    }

    /// Reads the configuration and the policies again. What is in force stays if that fails.
    async fn reload(self: &Rc<Self>) {
        let (path, before) = (self.path.clone(), Config::clone(&self.config()));
        let made = tokio::task::spawn_blocking(move || {
            let config = Config::read(&path)?;
            match config.needs_restart(&before) {
                Some(field) => Err(AgentError::Restart(field)),
                None => Ok((Policies::make(&config)?, config)),
            }
        });
        let result = match made.await {
            Ok(Ok((policies, config))) => self.renew(config, policies).await,
            Ok(Err(error)) => Err(error),
            Err(error) => Err(AgentError::Runtime(io::Error::other(error))),
        };
        match result {
            Ok(()) => {
                *self.trouble.borrow_mut() = None;
                eprintln!("underdeck mesh: policies {} are in force", self.current().number);
            }
            Err(error) => self.complain(&format!("the policies before stay in force: {error}")),
        }
    }
}

/// Runs until SIGTERM or SIGINT. `ready` is called with the addresses that they come to once connections are taken over.
///
/// # Errors
///
/// See [`AgentError`]; nothing is taken over then.
pub fn run(path: &Path, ready: impl FnOnce(&[SocketAddr])) -> Result<(), AgentError> {
    let config = Config::read(path)?;
    allow_connections();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AgentError::Runtime)?;
    LocalSet::new().block_on(&runtime, start(path, config, ready))
}

/// As many connections as the system lets this process have.
fn allow_connections() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one structure, which outlives both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Where the connections come to.
struct Listeners {
    v4: TcpListener,
    /// None: there is no IPv6, and no service needs it.
    v6: Option<TcpListener>,
}

impl Listeners {
    async fn bind(config: &Config) -> Result<Self, AgentError> {
        let socket = |what: String| move |source| AgentError::Socket { what, source };
        let v4 = TcpListener::bind(config.listen).await.map_err(socket(config.listen.to_string()))?;
        let v6 = TcpListener::bind(config.listen6).await.map_err(socket(config.listen6.to_string()));
        if config.services.iter().any(SocketAddr::is_ipv6) {
            return Ok(Self { v4, v6: Some(v6?) });
        }
        Ok(Self { v4, v6: v6.ok() })
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>, AgentError> {
        let all = [Some(&self.v4), self.v6.as_ref()];
        all.into_iter().flatten().map(|of| of.local_addr().map_err(AgentError::Runtime)).collect()
    }

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match &self.v6 {
            None => self.v4.accept().await,
            Some(v6) => tokio::select! {
                accepted = self.v4.accept() => accepted,
                accepted = v6.accept() => accepted,
            },
        }
    }
}

async fn start(path: &Path, config: Config, ready: impl FnOnce(&[SocketAddr])) -> Result<(), AgentError> {
    let policies = Policies::make(&config)?;
    let listeners = Listeners::bind(&config).await?;
    let asked = Asked::bind(&config.socket)?;
    let agent = Rc::new(Agent {
        kernel: Kernel::load(&config.cgroup, config.fail == Fail::Closed)?,
        guard: RefCell::default(),
        config: RefCell::new(Rc::new(config)),
        path: path.to_owned(),
        addresses: listeners.addresses()?,
        upstreams: Upstreams::default(),
        clients: RefCell::default(),
        generations: RefCell::default(),
        reloading: Cell::new(false),
        raw: Cell::new(0),
        foreign: Cell::new(0),
        relayed: Cell::new(0),
        trouble: RefCell::default(),
    });
    let config = agent.config();
    agent.enforce(&config, policies).await?;
    agent.serve_services(&config)?;
    match config.fail {
        Fail::Closed => {
            let guard = Guard::attach(&config.cgroup, &agent.kernel, &config.services)?;
            *agent.guard.borrow_mut() = Some(guard);
        }
        // One that an earlier agent left would go on refusing when this one is gone.
        Fail::Open => drop(guard::release(&config.cgroup)?),
    }
    ready(&agent.addresses);
    let ended = serve(&agent, &listeners, &asked).await;
    // Nothing of the kernel may stay: tasks hold the agent.
    drop(asked);
    ended
}

/// The socket of `mesh status`; its file goes with it.
struct Asked {
    listener: UnixListener,
    path: PathBuf,
}

impl Asked {
    fn bind(path: &Path) -> Result<Self, AgentError> {
        let socket = |source| AgentError::Socket { what: path.display().to_string(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(socket)?;
        }
        // One that was killed leaves its file.
        if std::os::unix::net::UnixStream::connect(path).is_err() {
            let _ = std::fs::remove_file(path);
        }
        Ok(Self { listener: UnixListener::bind(path).map_err(socket)?, path: path.to_owned() })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn serve(agent: &Rc<Agent>, listeners: &Listeners, asked: &Asked) -> Result<(), AgentError> {
    let on = |kind| signal(kind).map_err(AgentError::Runtime);
    let (mut term, mut int, mut hup) =
        (on(SignalKind::terminate())?, on(SignalKind::interrupt())?, on(SignalKind::hangup())?);
    let mut watch = tokio::time::interval(WATCH);
    let mut seen = changed(agent);
    // A SIGHUP came while the policies were being read.
    let mut again = false;
    loop {
        tokio::select! {
            _ = term.recv() => return Ok(()),
            _ = int.recv() => return Ok(()),
            _ = hup.recv() => again = !agent.reload_beside(),
            _ = watch.tick() => {
                let now = changed(agent);
                if (again || now != seen || agent.lacks_envoy()) && agent.reload_beside() {
                    (seen, again) = (now, false);
                }
            }
            accepted = listeners.accept() => match accepted {
                Ok((stream, peer)) => {
                    tokio::task::spawn_local(client::serve(agent.clone(), stream, peer));
                }
                Err(error) => {
                    agent.complain(&format!("accept: {error}"));
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            },
            asker = asked.listener.accept() => {
                if let Ok((stream, _)) = asker {
                    tokio::task::spawn_local(status::answer(agent.clone(), stream));
                }
            }
        }
    }
}

/// When the configuration and files of the policies were last written.
fn changed(agent: &Agent) -> Vec<(PathBuf, SystemTime)> {
    let mut out = Vec::new();
    for path in agent.config().policies.iter().chain([&agent.path]) {
        let inside = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in inside.chain([path.clone()]) {
            if let Ok(time) = path.metadata().and_then(|metadata| metadata.modified()) {
                out.push((path, time));
            }
        }
    }
    out.sort();
    out
}
