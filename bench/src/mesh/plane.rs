//! The same five services behind different data planes. Each has its own processes, in a control group of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use underdeck_lab::group::Group;
use underdeck_lab::place::Place;
use underdeck_lab::ports::Port;
use underdeck_lab::process::Process;
use underdeck_lab::timeline::{SERVICES, calls};
use underdeck_lab::tools::{self, Tool};
use underdeck_lab::{LabError, proc, wait};

use super::bypass::Bypass;
use super::sidecar::{self, Sidecar};

/// For a program to listen.
const START: Duration = Duration::from_secs(30);

/// The name of its program.
const AGENT: &str = "agent";

/// What carries requests from service to service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Nothing: services connect to each other.
    Direct,
    /// An Envoy for each service, for what goes out and what comes in.
    Envoy,
    /// The same, and bytes within the host skip TCP.
    EnvoyL4,
    /// An Envoy for each service, only for what goes out. Nobody enforces authorization.
    EnvoyOut,
    /// `underdeck mesh run`.
    Underdeck,
    /// The same as if services were on hosts of their own: by TCP.
    UnderdeckTcp,
}

impl Kind {
    /// All, the reference last.
    pub const ALL: [Self; 6] =
        [Self::Envoy, Self::EnvoyL4, Self::Underdeck, Self::UnderdeckTcp, Self::EnvoyOut, Self::Direct];

    /// As in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Envoy => "envoy",
            Self::EnvoyL4 => "envoy-l4",
            Self::EnvoyOut => "envoy-out",
            Self::Underdeck => "underdeck",
            Self::UnderdeckTcp => "underdeck-tcp",
        }
    }
}

/// Requests of the mesh engine, by way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// All.
    pub requests: u64,
    /// Sent on by the kernel.
    pub requests_kernel: u64,
    /// Of these, the response came back through the kernel too.
    pub responses_kernel: u64,
}

/// A data plane with the services.
pub struct Plane {
    /// Which one.
    pub kind: Kind,
    group: Group,
    programs: Vec<Process>,
    bypass: Option<Bypass>,
    folder: tempfile::TempDir,
    /// Where clients find each service.
    entries: BTreeMap<String, SocketAddr>,
}

/// Addresses that nobody else takes.
struct Ports(Vec<Port>);

impl Ports {
    fn of_each(&mut self) -> Result<BTreeMap<String, SocketAddr>, LabError> {
        let mut all = BTreeMap::new();
        for name in SERVICES {
            let port = Port::free()?;
            all.insert(name.to_owned(), port.addr());
            self.0.push(port);
        }
        Ok(all)
    }
}

impl Plane {
    /// Starts everything on the CPUs of `place`. `blobs`: sizes of further bodies.
    pub fn start(kind: Kind, place: &Place, blobs: &[usize]) -> Result<Self, LabError> {
        let folder = tempfile::tempdir().map_err(|error| LabError::Io { what: "a folder".to_owned(), error })?;
        let group = Group::new(kind.name())?;
        let bypass = (kind == Kind::EnvoyL4).then(|| Bypass::start(&group)).transpose()?;
        let mut ports = Ports(Vec::new());
        let (services, incoming, outgoing) = (ports.of_each()?, ports.of_each()?, ports.of_each()?);
        let mut plane = Self { kind, group, programs: Vec::new(), bypass, folder, entries: services.clone() };
        for name in SERVICES.iter().rev() {
            let peers: BTreeMap<_, _> = match kind {
                Kind::Direct | Kind::Underdeck | Kind::UnderdeckTcp => services.clone(),
                _ => services.keys().map(|peer| (peer.clone(), outgoing[*name])).collect(),
            };
            plane.service(place, name, services[*name], &peers, blobs)?;
        }
        for name in SERVICES {
            let sends = !calls(name).is_empty();
            let (peers, receives) = match kind {
                Kind::Envoy | Kind::EnvoyL4 => (&incoming, true),
                // Of the client's requests too.
                Kind::EnvoyOut => (&services, name == "front" || name == "media"),
                Kind::Direct | Kind::Underdeck | Kind::UnderdeckTcp => continue,
            };
            let sidecar = Sidecar {
                name,
                outgoing: sends.then(|| (outgoing[name], peers)),
                incoming: receives.then(|| (incoming[name], services[name])),
            };
            if receives {
                plane.entries.insert(name.to_owned(), incoming[name]);
            }
            if sends || receives {
                plane.envoy(place, &sidecar)?;
            }
        }
        if matches!(kind, Kind::Underdeck | Kind::UnderdeckTcp) {
            plane.agent(place, &services)?;
        }
        Ok(plane)
    }

    fn service(
        &mut self,
        place: &Place,
        name: &str,
        at: SocketAddr,
        peers: &BTreeMap<String, SocketAddr>,
        blobs: &[usize],
    ) -> Result<(), LabError> {
        let mut command = Command::new(helper()?);
        command.args(["service", name, &at.to_string()]);
        command.args(calls(name).iter().map(|peer| format!("{peer}={}", peers[*peer])));
        command.args(blobs.iter().map(|size| format!("blob={size}")));
        place.apply(&mut command);
        self.group.apply(&mut command)?;
        self.spawn(name, command)?;
        self.listens(&[at])
    }

    fn envoy(&mut self, place: &Place, sidecar: &Sidecar<'_>) -> Result<(), LabError> {
        let name = format!("envoy-{}", sidecar.name);
        let path = self.folder.path().join(format!("{name}.json"));
        self.write(&path, &sidecar.config()?.to_string())?;
        let mut command = Command::new(Tool::Envoy.path()?);
        command.arg("-c").arg(path).args(["--disable-hot-restart", "--log-level", "error", "--concurrency", "1"]);
        place.apply(&mut command);
        self.group.apply(&mut command)?;
        self.spawn(&name, command)?;
        let outgoing = sidecar.outgoing.iter().map(|(at, _)| *at);
        self.listens(&outgoing.chain(sidecar.incoming.iter().map(|(at, _)| *at)).collect::<Vec<_>>())
    }

    fn agent(&mut self, place: &Place, services: &BTreeMap<String, SocketAddr>) -> Result<(), LabError> {
        let path = self.folder.path().join("mesh.yaml");
        let config = serde_json::json!({
            "cgroup": self.group.path(), "policies": [sidecar::folder()], "socket": self.socket(),
            "services": services.values().collect::<Vec<_>>(), "endpoints": sidecar::endpoints(services)?,
            "envoy": Tool::Envoy.path()?, "pool": {"min": 16},
            "local_bypass": self.kind == Kind::Underdeck,
        });
        // JSON is YAML.
        self.write(&path, &config.to_string())?;
        let mut command = Command::new(tools::underdeck()?);
        command.args(["mesh", "run", "--config"]).arg(path);
        place.apply(&mut command);
        self.spawn(AGENT, command)?;
        wait::until("the agent", START, || {
            let ended = self.programs.last_mut().is_none_or(|agent| agent.exited().is_some());
            (ended || self.status().is_some()).then_some(())
        })?;
        if self.status().is_some() { Ok(()) } else { Err(self.not_ready()) }
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), LabError> {
        std::fs::write(path, text).map_err(|error| LabError::Io { what: format!("write {}", path.display()), error })
    }

    fn spawn(&mut self, name: &str, command: Command) -> Result<(), LabError> {
        self.programs.push(Process::spawn(name, self.folder.path(), command)?);
        Ok(())
    }

    /// Waits for the last program. (Nobody connects before: what a socket that nobody has accepted receives might not
    /// be seen.)
    fn listens(&mut self, at: &[SocketAddr]) -> Result<(), LabError> {
        for address in at {
            let ready = wait::until("", START, || {
                let ended = self.programs.last_mut().is_none_or(|program| program.exited().is_some());
                let ready = std::net::TcpStream::connect(address).is_ok();
                (ready || ended).then_some(ready)
            });
            if !ready.unwrap_or(false) {
                return Err(self.not_ready());
            }
        }
        Ok(())
    }

    fn not_ready(&self) -> LabError {
        let last = self.programs.last();
        LabError::NotReady {
            name: last.map_or("nothing", Process::name).to_owned(),
            within: START,
            stderr: last.map_or_else(String::new, Process::stderr_tail),
        }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("agent.sock")
    }

    /// What the agent says.
    fn status(&self) -> Option<Value> {
        let stream = std::os::unix::net::UnixStream::connect(self.socket()).ok()?;
        serde_json::from_reader(stream).ok()
    }

    /// Requests until now; None: there is no agent.
    pub fn ways(&self) -> Option<Ways> {
        let status = self.status()?;
        let count = |path: &str| status.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        let ways = ["kernel", "agent", "answered", "envoy"].map(|way| count(&format!("/requests/{way}")));
        Some(Ways {
            requests: ways.iter().sum(),
            requests_kernel: ways[0],
            responses_kernel: count("/responses/kernel"),
        })
    }

    /// Messages that took the bypass.
    pub fn bypassed(&self) -> u64 {
        self.bypass.as_ref().map_or(0, Bypass::messages)
    }

    /// Where a client finds a service.
    pub fn entry(&self, service: &str) -> SocketAddr {
        self.entries[service]
    }

    /// Where its processes are, but for the agent.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// CPU time until now of the services, and of the data plane: Envoys, or the agent and its Envoy.
    pub fn cpu(&self) -> (Duration, Duration) {
        let is_service = |program: &&Process| SERVICES.contains(&program.name());
        let sum = |of: &dyn Fn(&&Process) -> bool| self.programs.iter().filter(of).map(Process::cpu).sum();
        (sum(&is_service), sum(&|program| !is_service(program)))
    }

    /// Stops everything; what is left behind is an error.
    pub fn stop(mut self) -> Result<(), LabError> {
        // The agent in order, before its connections end; the others have nothing to put away.
        if let Some(agent) = self.programs.pop_if(|program| program.name() == AGENT) {
            agent.stop()?;
        }
        self.programs.clear();
        drop(self.bypass.take());
        self.group.remove()
    }
}

/// CPU time of the kernel's own threads that move packets and messages: `kworker` and `ksoftirqd`, for all programs
/// of the machine.
pub fn kernel_threads() -> Duration {
    let is_meant = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("kworker") || name.starts_with("ksoftirqd")
    };
    proc::children(2).into_iter().filter(is_meant).map(proc::cpu).sum()
}

/// The program that is a service, or a client.
pub fn helper() -> Result<std::path::PathBuf, LabError> {
    let what = "find mesh-lab beside this program".to_owned();
    let me = std::env::current_exe().map_err(|error| LabError::Io { what, error })?;
    Ok(me.with_file_name("mesh-lab"))
}
