//! The reference server at a [`Site`]: one balancer and its backends as processes.

use std::fmt::Write as _;
use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::error::While;
use crate::place::Place;
use crate::process::Process;
use crate::site::Site;
use crate::{LabError, tools, wait};

/// How long a server may take until it is ready, and until a balancer has found its backends.
const START: Duration = Duration::from_secs(10);
/// How long connections take at most to end when nobody asks any more, and no packet is lost.
pub const SETTLE: Duration = Duration::from_secs(10);

const PORT: u16 = 80;
const CONTROL: u16 = 7000;

/// What the configuration files say.
#[derive(Clone, Debug)]
pub struct Setup {
    /// When connections move, as in the configuration file.
    pub policy: String,
    /// The folder that the backends serve.
    pub root: Option<PathBuf>,
    /// Milliseconds that each step of a transfer may take.
    pub step_ms: u64,
    /// Most connections with rules at a time.
    pub capacity: u32,
    /// Milliseconds after which a silent backend is dead. None: as by default.
    pub dead_after_ms: Option<u64>,
}

impl Setup {
    /// With a policy; the rest as by default.
    pub fn new(policy: impl Into<String>) -> Self {
        Self { policy: policy.into(), root: None, step_ms: 1000, capacity: 65_536, dead_after_ms: None }
    }
}

/// One process of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// The balancer.
    Balancer,
    /// A backend, from 0.
    Backend(usize),
}

impl Member {
    fn name(self) -> String {
        match self {
            Self::Balancer => "balancer".to_owned(),
            Self::Backend(number) => format!("backend{number}"),
        }
    }
}

/// The processes. Dropping it kills them.
#[derive(Debug)]
pub struct Fleet {
    addr: SocketAddr,
    dir: tempfile::TempDir,
    members: Vec<(Member, Place, Option<Process>)>,
}

impl Fleet {
    /// Starts the backends, then the balancer, and waits until it has found them.
    pub fn start(site: &Site, setup: &Setup) -> Result<Self, LabError> {
        let dir = tempfile::Builder::new().prefix("underdeck-fleet").tempdir();
        let dir = dir.doing(|| "make a temporary directory".to_owned())?;
        let backends = (0..site.backends().len()).map(Member::Backend);
        let members: Vec<(Member, Place)> = backends
            .map(|member| (member, site.backends()[number(member)].clone()))
            .chain([(Member::Balancer, site.balancer().clone())])
            .collect();
        keys(dir.path(), &members.iter().map(|(member, _)| member.name()).collect::<Vec<_>>())?;
        for (member, place) in &members {
            let path = dir.path().join(format!("{}.toml", member.name()));
            std::fs::write(&path, config(dir.path(), site, setup, *member, place))
                .doing(|| format!("write {}", path.display()))?;
        }
        let addr = SocketAddr::new(site.balancer().ip(), PORT);
        let members = members.into_iter().map(|(member, place)| (member, place, None)).collect();
        let mut fleet = Self { addr, dir, members };
        for index in 0..fleet.members.len() {
            fleet.launch(fleet.members[index].0)?;
        }
        fleet.found()?;
        Ok(fleet)
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Starts a member that does not run.
    pub fn launch(&mut self, member: Member) -> Result<(), LabError> {
        let role = if member == Member::Balancer { "balancer" } else { "backend" };
        let mut command = Command::new(tools::underdeck()?);
        command.args(["handoff", "serve", "--role", role, "--config"]);
        command.arg(self.dir.path().join(format!("{}.toml", member.name())));
        let dir = self.dir.path().to_owned();
        let (_, place, process) = self.slot(member);
        place.apply(&mut command);
        let mut started = Process::spawn(&member.name(), &dir, command)?;
        let status = dir.join(format!("{}.sock", member.name()));
        let ready = wait::until("", START, || match started.exited() {
            None => UnixStream::connect(&status).ok().map(|_| true),
            Some(_) => Some(false),
        });
        if !matches!(ready, Ok(true)) {
            let stderr = started.stderr_tail();
            return Err(LabError::NotReady { name: member.name(), within: START, stderr });
        }
        *process = Some(started);
        Ok(())
    }

    /// The process of a member, if it runs.
    pub fn process(&self, member: Member) -> Option<&Process> {
        self.members.iter().find(|(it, ..)| *it == member).and_then(|(_, _, process)| process.as_ref())
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&mut self, member: Member) {
        self.slot(member).2 = None;
        let _ = std::fs::remove_file(self.dir.path().join(format!("{}.sock", member.name())));
    }

    /// What a member says of itself.
    pub fn status(&self, member: Member) -> Result<Value, LabError> {
        let path = self.dir.path().join(format!("{}.sock", member.name()));
        let what = || format!("ask {}", path.display());
        let mut text = String::new();
        UnixStream::connect(&path).and_then(|mut stream| stream.read_to_string(&mut text)).doing(what)?;
        serde_json::from_str(&text).map_err(std::io::Error::from).doing(what)
    }

    /// A number in what a member says, by the path of its names: `handoffs.out`. 0 if it is not there.
    pub fn count(&self, member: Member, path: &str) -> u64 {
        let Ok(status) = self.status(member) else { return 0 };
        path.split('.').try_fold(&status, |value, name| value.get(name)).and_then(Value::as_u64).unwrap_or(0)
    }

    /// A number of all members together.
    pub fn sum(&self, path: &str) -> u64 {
        self.members.iter().map(|(member, ..)| self.count(*member, path)).sum()
    }

    /// Waits until no member has a connection, and none a rule.
    pub fn settled(&self, within: Duration) -> Result<(), LabError> {
        let settled = wait::until("", within, || self.busy().is_empty().then_some(()));
        settled.map_err(|_| LabError::Leftover { name: "the fleet".to_owned(), what: self.busy().join("; ") })
    }

    fn busy(&self) -> Vec<String> {
        let running = self.members.iter().filter(|(_, _, process)| process.is_some());
        let busy = |(member, ..): &(Member, Place, Option<Process>)| {
            let counts = ["connections.here", "connections.away", "rules.tc"].map(|path| self.count(*member, path));
            (counts != [0; 3]).then(|| format!("{}: here, away, rules {counts:?}", member.name()))
        };
        running.filter_map(busy).collect()
    }

    /// Ends everybody, the balancer first.
    pub fn stop(mut self) -> Result<(), LabError> {
        for (_, _, process) in self.members.iter_mut().rev() {
            process.take().map_or(Ok(()), Process::stop)?;
        }
        Ok(())
    }

    fn slot(&mut self, member: Member) -> &mut (Member, Place, Option<Process>) {
        let index = self.members.iter().position(|(it, ..)| *it == member);
        &mut self.members[index.expect("members are those of the site")]
    }

    /// Waits until the balancer has found all backends.
    fn found(&self) -> Result<(), LabError> {
        let alive = |status: &Value| {
            let backends = status["backends"].as_array()?;
            backends.iter().all(|backend| backend["alive"] == true).then_some(())
        };
        wait::until("the balancer finds its backends", START, || alive(&self.status(Member::Balancer).ok()?))
    }
}

fn number(member: Member) -> usize {
    match member {
        Member::Balancer => 0,
        Member::Backend(number) => number,
    }
}

fn keys(folder: &Path, names: &[String]) -> Result<(), LabError> {
    let mut command = Command::new(tools::underdeck()?);
    command.args(["handoff", "keys"]).arg(folder).args(names);
    let output = command.output().doing(|| "run underdeck".to_owned())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(LabError::Failed {
        command: "underdeck handoff keys".to_owned(),
        status: output.status.to_string(),
        output: said,
    })
}

fn config(dir: &Path, site: &Site, setup: &Setup, member: Member, place: &Place) -> String {
    let name = member.name();
    let file = |extension: &str| format!("{:?}", dir.join(format!("{name}.{extension}")));
    let at = |place: &Place, port: u16| SocketAddr::new(place.ip(), port);
    let mut text = format!(
        "listen = \"{}\"\ncontrol = \"{}\"\ninterfaces = [{:?}]\nauthority = {:?}\ncertificate = {}\nkey = {}\n\
         policy = {:?}\nstatus = {}\nstep-ms = {}\ncapacity = {}\n",
        at(place, PORT),
        at(place, CONTROL),
        site.interface(),
        dir.join("authority.pem"),
        file("pem"),
        file("key"),
        setup.policy,
        file("sock"),
        setup.step_ms,
        setup.capacity,
    );
    if let Some(dead_after) = setup.dead_after_ms {
        let _ = writeln!(text, "dead-after-ms = {dead_after}");
    }
    if let Member::Backend(_) = member {
        let _ = writeln!(text, "name = {name:?}");
        if let Some(root) = &setup.root {
            let _ = writeln!(text, "root = {root:?}");
        }
    }
    for (number, place) in site.backends().iter().enumerate() {
        let name = Member::Backend(number).name();
        let (listen, control) = (at(place, PORT), at(place, CONTROL));
        let _ = writeln!(text, "[[backend]]\nname = {name:?}\nlisten = \"{listen}\"\ncontrol = \"{control}\"");
    }
    text
}
