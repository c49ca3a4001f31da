//! A control group, an agent outside of it, a backend.
//!
//! A test runs twice: the outer run makes a control group and starts the same test inside of it, so that the
//! connections of the inner run are taken over; then it takes the control group away.
#![allow(dead_code, reason = "each file of tests uses a part")]

pub mod backend;
pub mod client;
pub mod nginx;

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};
use underdeck_lab::ports::Port;
use underdeck_lab::tools::Tool;
use underdeck_lab::wait;
use underdeck_mesh_dataplane::status::{Status, ask};

/// The policies of a small shop.
pub const POLICIES: &str = include_str!("../policies/shop.yaml");

/// Of the configuration: with endpoints whose bytes skip TCP, and with those whose bytes do not.
pub const WAYS: [&str; 2] = ["", "local_bypass: false"];

const INSIDE: &str = "UNDERDECK_TEST_INSIDE";
const AGENT: &str = "UNDERDECK_TEST_AGENT";
const BACKEND: &str = "UNDERDECK_TEST_BACKEND";

/// Where control groups of version 2 are.
fn root() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").expect("Linux");
    let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[2] == "cgroup2");
    PathBuf::from(mount.expect("control groups of version 2 are mounted")[1])
}

/// Whether this machine has IPv6. One that has it and cannot use it fails.
pub fn has_ipv6() -> bool {
    let has = std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|text| !text.trim().is_empty());
    if has {
        std::net::TcpListener::bind("[::1]:0").expect("IPv6 is there");
    } else {
        eprintln!("SKIPPED: no interface has an IPv6 address");
    }
    has
}

struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        // The last process of it may not be reaped yet.
        let gone = wait::until("the group is empty", Duration::from_secs(60), || std::fs::remove_dir(&self.0).ok());
        assert!(gone.is_ok() || std::thread::panicking(), "{} stays", self.0.display());
    }
}

/// Runs `body` in a control group of its own. `name` is the full name of the test.
pub fn inside(name: &str, body: impl FnOnce(&Path)) {
    if let Some(config) = std::env::var_os(AGENT) {
        underdeck_mesh_dataplane::run(Path::new(&config), |_| {}).unwrap_or_else(|error| panic!("{error}"));
        return;
    }
    if let Ok(address) = std::env::var(BACKEND) {
        let _backend = backend::Backend::start_at(&address);
        loop {
            std::thread::park();
        }
    }
    if let Some(group) = std::env::var_os(INSIDE) {
        body(Path::new(&group));
        return;
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let group = Group(root().join(format!("ud-dp-{}-{number}", std::process::id())));
    std::fs::create_dir(&group.0).expect("root makes control groups");
    let procs = group.0.join("cgroup.procs");
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, &group.0);
    enter(&mut command, procs);
    let status = command.status().expect("the test starts again");
    assert!(status.success(), "{name} failed");
}

/// The child goes into a control group before it runs.
fn enter(command: &mut Command, procs: PathBuf) {
    let path = std::ffi::CString::new(procs.into_os_string().into_encoded_bytes()).expect("a path");
    // SAFETY: open, write and close may be called between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            let written = libc::write(file, c"0".as_ptr().cast(), 1);
            libc::close(file);
            if written == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}

/// A running agent.
pub struct Agent {
    child: Child,
    pub place: tempfile::TempDir,
}

/// What an agent is started with.
pub struct Setup<'a> {
    /// The full name of the test.
    pub name: &'a str,
    pub group: &'a Path,
    pub policies: &'a str,
    pub services: &'a [SocketAddr],
    pub endpoints: &'a [(&'a str, SocketAddr)],
    pub more: &'a str,
}

impl Agent {
    pub fn start(setup: &Setup<'_>) -> Self {
        let place = tempfile::tempdir().expect("a folder");
        std::fs::write(place.path().join("policies.yaml"), setup.policies).expect("ours");
        let envoy = Tool::Envoy.path().unwrap_or_else(|error| panic!("{error}: run lab/setup.sh"));
        let mut config = format!(
            "cgroup: {}\npolicies: [policies.yaml]\nsocket: agent.sock\nenvoy: {}\n{}\nservices:\n",
            setup.group.display(),
            envoy.display(),
            setup.more
        );
        for service in setup.services {
            config += &format!("- \"{service}\"\n");
        }
        config += "endpoints:\n";
        for (name, address) in setup.endpoints {
            config += &format!("  \"{name}\": [\"{address}\"]\n");
        }
        std::fs::write(place.path().join("mesh.yaml"), config).expect("ours");
        let child = spawn(setup.name, &place.path().join("mesh.yaml"));
        let mut agent = Self { child, place };
        agent.wait();
        agent
    }

    /// Until connections are taken over.
    fn wait(&mut self) {
        let ready = wait::until("the agent is ready", Duration::from_secs(120), || {
            assert!(self.child.try_wait().expect("a child").is_none(), "the agent ended");
            ask(&self.socket()).ok()
        });
        ready.expect("the agent is ready");
    }

    pub fn socket(&self) -> PathBuf {
        self.place.path().join("agent.sock")
    }

    pub fn status(&self) -> Status {
        ask(&self.socket()).expect("the agent answers")
    }

    /// Waits until the pool of the one endpoint is full again and nothing of any client is left; `sockets` are those of an
    /// agent with a full pool and no client.
    pub fn is_as_new(&self, sockets: usize) {
        self.until("no connection is left", |status| status.connections == 0);
        let same = wait::until("the pool is as it was", Duration::from_secs(60), || {
            let connections = self.status().upstreams[0].connections;
            (connections >= 8 && self.sockets() == sockets + connections - 8 && self.active() == 0).then_some(())
        });
        let now = (self.sockets(), self.active());
        same.unwrap_or_else(|error| panic!("{error}: {sockets} sockets, then {now:?}: {:#?}", self.status()));
    }

    /// Waits for something that the agent counts.
    pub fn until(&self, what: &str, is: impl Fn(&Status) -> bool) -> Status {
        let found = wait::until(what, Duration::from_secs(120), || Some(self.status()).filter(|status| is(status)));
        found.unwrap_or_else(|error| panic!("{error}: {:#?}", self.status()))
    }

    /// Programs, maps and links that it holds.
    pub fn objects(&self) -> Vec<(&'static str, u32)> {
        let mut out = Vec::new();
        let folder = format!("/proc/{}/fdinfo", self.child.id());
        for file in std::fs::read_dir(folder).expect("a process").flatten() {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            let kinds = [("link_id:", "link"), ("map_id:", "map"), ("prog_id:", "prog")];
            for line in text.lines() {
                let id =
                    |(key, kind): &(&str, &'static str)| Some((*kind, line.strip_prefix(key)?.trim().parse().ok()?));
                out.extend(kinds.iter().find_map(id));
            }
        }
        out
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How many sockets it has open.
    pub fn sockets(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("a process").flatten();
        let is_socket = |path: PathBuf| path.to_string_lossy().starts_with("socket:");
        files.filter_map(|file| std::fs::read_link(file.path()).ok()).filter(|path| is_socket(path.clone())).count()
    }

    /// Requests that endpoints have not answered, as the kernel counts them to choose the endpoint with the fewest.
    pub fn active(&self) -> u64 {
        let maps = self.objects().into_iter().filter(|(kind, _)| *kind == "map");
        let mut open = maps.filter_map(|(_, id)| libbpf_rs::MapHandle::from_map_id(id).ok());
        let map = open.find(|map| map.name() == "ud_active").expect("it has one");
        let of = |key: u32| map.lookup(&key.to_ne_bytes(), MapFlags::ANY).expect("an array").expect("an array");
        (0..8).map(|key| u64::from_ne_bytes(of(key).try_into().expect("eight bytes"))).sum()
    }

    /// Its processes.
    pub fn children(&self) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a process").flatten();
        let text: String =
            tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default()).collect();
        text.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect()
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        // SAFETY: a child that was not waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Stops it in its tracks, until SIGCONT.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        let stopped = wait::until("it is stopped", Duration::from_secs(60), || {
            std::fs::read_to_string(&stat).expect("a process").contains(") T ").then_some(())
        });
        stopped.expect("it is stopped");
    }

    /// SIGTERM, and an end without an error.
    pub fn stop(mut self) {
        self.signal(libc::SIGTERM);
        assert!(self.child.wait().expect("a child").success());
    }

    /// SIGKILL.
    pub fn kill(mut self) -> tempfile::TempDir {
        self.signal(libc::SIGKILL);
        self.child.wait().expect("a child");
        std::mem::replace(&mut self.place, tempfile::tempdir().expect("a folder"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(name: &str, config: &Path) -> Child {
    outside(name, AGENT, config.as_os_str())
}

/// This test as a process outside of the control group, in another role.
fn outside(name: &str, role: &str, argument: &OsStr) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", name, "--nocapture"]).env(role, argument).stdout(Stdio::null());
    enter(&mut command, root().join("cgroup.procs"));
    command.spawn().expect("it starts")
}

/// A backend that is not in the control group, as one on another host: what it sends comes by TCP.
pub struct Far {
    child: Child,
    pub address: SocketAddr,
    _port: Port,
}

impl Far {
    pub fn start(name: &str) -> Self {
        let port = Port::free().expect("a port");
        let address = port.addr();
        let far = Self { child: outside(name, BACKEND, address.to_string().as_ref()), address, _port: port };
        let listens = wait::until("it listens", Duration::from_secs(60), || TcpStream::connect(address).ok());
        listens.expect("it listens");
        far
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts an agent that takes connections to `service` over, for the policies of the shop and one endpoint. `more`: of
/// its configuration.
pub fn start_with(name: &str, group: &Path, service: &str, endpoint: SocketAddr, more: &str) -> (Agent, SocketAddr) {
    let service: SocketAddr = service.parse().expect("an address");
    let endpoints = [("shop.test||", endpoint)];
    let setup = Setup { name, group, policies: POLICIES, services: &[service], endpoints: &endpoints, more };
    (Agent::start(&setup), service)
}

/// The same with nothing more.
pub fn start_at(name: &str, group: &Path, service: &str, endpoint: SocketAddr) -> (Agent, SocketAddr) {
    start_with(name, group, service, endpoint, "")
}

/// The same with a backend of its own.
pub fn start(name: &str, group: &Path, service: &str) -> (backend::Backend, Agent, SocketAddr) {
    let backend = backend::Backend::start();
    let (agent, service) = start_at(name, group, service, backend.address);
    (backend, agent, service)
}
