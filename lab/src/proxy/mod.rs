//! nginx, HAProxy and Envoy, plain or with the preload library, each in a directory of its own.

mod access_log;
mod envoy;
mod haproxy;
mod nginx;

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

pub use access_log::LogLine;
pub use envoy::Envoy;
pub use haproxy::Haproxy;
pub use nginx::{Buffers, Nginx};

use crate::client::Front;
use crate::error::While;
use crate::place::Place;
use crate::ports::Port;
use crate::proc::Census;
use crate::process::{Process, limit_descriptors};
use crate::tls::Certificate;
use crate::{LabError, proc, tools, wait};

const READY: Duration = Duration::from_secs(20);
const LOGGED: Duration = Duration::from_secs(30);

/// Which proxy, configured how.
#[derive(Clone, Debug)]
pub enum Spec {
    /// nginx.
    Nginx(Nginx),
    /// HAProxy.
    Haproxy(Haproxy),
    /// Envoy.
    Envoy(Envoy),
}

/// Settings of the library for one proxy; None leaves its default.
#[derive(Clone, Debug)]
pub struct Engine {
    /// The library.
    pub library: PathBuf,
    /// `UNDERDECK_MIN_BODY`, bytes.
    pub min_body: Option<u64>,
    /// `UNDERDECK_MAX_ANCHORED`, bytes per connection.
    pub max_anchored: Option<u64>,
    /// Further environment.
    pub environment: Vec<(String, String)>,
}

impl Engine {
    /// The library of this workspace with its defaults.
    pub fn here() -> Result<Self, LabError> {
        Ok(Self { library: tools::library()?, min_body: None, max_anchored: None, environment: Vec::new() })
    }

    /// With another smallest body.
    pub fn min_body(mut self, bytes: u64) -> Self {
        self.min_body = Some(bytes);
        self
    }

    /// With another limit per connection.
    pub fn max_anchored(mut self, bytes: u64) -> Self {
        self.max_anchored = Some(bytes);
        self
    }

    /// Prepares a command whose program is to run with it.
    pub fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("UNDERDECK_PROTOCOL", "http1").env("UNDERDECK_FORCE", "1");
        if let Some(bytes) = self.min_body {
            command.env("UNDERDECK_MIN_BODY", bytes.to_string());
        }
        if let Some(bytes) = self.max_anchored {
            command.env("UNDERDECK_MAX_ANCHORED", bytes.to_string());
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
    }
}

/// Plain, or with the library.
#[derive(Clone, Debug)]
pub enum Mode {
    /// As it is.
    Plain,
    /// With the library preloaded.
    Underdeck(Engine),
}

/// Where and with what a proxy runs.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// CPUs, network namespace, address.
    pub place: Place,
    /// `RLIMIT_NOFILE`. None: as it is.
    pub descriptors: Option<u64>,
    /// Whether it writes an access log.
    pub access_log: bool,
}

/// A running proxy. Dropping it kills it.
#[derive(Debug)]
pub struct Proxy {
    spec: Spec,
    process: Process,
    port: Port,
    certificate: Option<Certificate>,
    place: Place,
    // Last: the directory goes when the processes are gone.
    dir: TempDir,
}

/// A directory in which a worker of another user can read.
pub(crate) fn directory() -> Result<TempDir, LabError> {
    let dir = tempfile::Builder::new().prefix("underdeck-lab-").tempdir();
    let dir = dir.doing(|| "create a temporary directory".to_owned())?;
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).doing(|| format!("chmod {}", dir.path().display()))?;
    Ok(dir)
}

pub(crate) fn write(dir: &Path, name: &str, text: &str) -> Result<PathBuf, LabError> {
    let path = dir.join(name);
    std::fs::write(&path, text).doing(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// Polls until somebody accepts connections, or the process has ended.
pub(crate) fn ready(process: &mut Process, addr: SocketAddr) -> Result<(), LabError> {
    let opened = wait::until("the port opens", READY, || {
        if process.exited().is_some() && process.pids().is_empty() {
            return Some(false);
        }
        TcpStream::connect_timeout(&addr, READY).is_ok().then_some(true)
    });
    if matches!(opened, Ok(true)) {
        return Ok(());
    }
    Err(LabError::NotReady { name: process.name().to_owned(), within: READY, stderr: process.stderr_tail() })
}

impl Spec {
    /// A short name for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Nginx(_) => "nginx",
            Self::Haproxy(_) => "haproxy",
            Self::Envoy(_) => "envoy",
        }
    }

    fn tls(&self) -> bool {
        match self {
            Self::Nginx(nginx) => nginx.tls,
            Self::Haproxy(haproxy) => haproxy.tls,
            Self::Envoy(envoy) => envoy.tls,
        }
    }
}

impl Proxy {
    /// Starts a proxy in front of `backend`.
    pub fn start(spec: &Spec, mode: &Mode, backend: SocketAddr) -> Result<Self, LabError> {
        Self::start_on(spec, mode, backend, &[])
    }

    /// Starts a proxy pinned to the given CPUs.
    pub fn start_on(spec: &Spec, mode: &Mode, backend: SocketAddr, cpus: &[usize]) -> Result<Self, LabError> {
        Self::start_with(spec, mode, backend, cpus, None)
    }

    /// Starts a proxy that may open only so many descriptors (`RLIMIT_NOFILE`).
    pub fn start_with(
        spec: &Spec,
        mode: &Mode,
        backend: SocketAddr,
        cpus: &[usize],
        descriptors: Option<u64>,
    ) -> Result<Self, LabError> {
        Self::start_at(spec, mode, backend, &Surroundings { place: Place::on(cpus), descriptors, access_log: true })
    }

    /// Starts a proxy in surroundings of any kind.
    pub fn start_at(
        spec: &Spec,
        mode: &Mode,
        backend: SocketAddr,
        surroundings: &Surroundings,
    ) -> Result<Self, LabError> {
        let Surroundings { place, descriptors, access_log: log } = surroundings;
        let dir = directory()?;
        let port = place.within(|| Port::free_at(place.ip()))?;
        let certificate = spec.tls().then(|| Certificate::make(dir.path())).transpose()?;
        let mut command = match spec {
            Spec::Nginx(nginx) => nginx.command(dir.path(), port.addr(), backend, certificate.as_ref(), *log)?,
            Spec::Haproxy(haproxy) => haproxy.command(dir.path(), port.addr(), backend, certificate.as_ref(), *log)?,
            Spec::Envoy(envoy) => envoy.command(dir.path(), port.addr(), backend, certificate.as_ref(), *log)?,
        };
        if let Mode::Underdeck(engine) = mode {
            engine.apply(&mut command);
        }
        place.apply(&mut command);
        if let Some(descriptors) = descriptors {
            limit_descriptors(&mut command, *descriptors);
        }
        let mut process = Process::spawn(spec.name(), dir.path(), command)?;
        place.within(|| ready(&mut process, port.addr()))?;
        let proxy = Self { spec: spec.clone(), process, port, certificate, place: place.clone(), dir };
        // nginx's master listens before its workers exist.
        let workers = if let Spec::Nginx(nginx) = spec { nginx.workers } else { 1 };
        wait::until(format!("{} has {workers} workers", spec.name()), READY, || {
            (proxy.workers().len() >= workers).then_some(())
        })?;
        Ok(proxy)
    }

    /// Where clients connect to.
    pub fn front(&self) -> Result<Front, LabError> {
        let tls = self.certificate.as_ref().map(Certificate::client).transpose()?;
        Ok(Front { addr: self.port.addr(), tls })
    }

    /// The process group.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its directory: configuration, logs, temp files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The processes that serve clients: nginx's workers, HAProxy or Envoy itself.
    ///
    /// Of nginx only live workers of any master of the group, so that it holds during reloads and upgrades.
    pub fn workers(&self) -> Vec<u32> {
        let pids = self.process.pids();
        match self.spec {
            Spec::Nginx(_) => pids.into_iter().filter(|pid| is_nginx_worker(*pid)).collect(),
            _ => pids,
        }
    }

    /// CPU time of all processes.
    pub fn cpu(&self) -> Duration {
        self.process.cpu()
    }

    /// Descriptors of the workers, summed.
    pub fn census(&self) -> Vec<Census> {
        self.workers().into_iter().map(proc::census).collect()
    }

    /// Bytes in temp files of the proxy that still have a name.
    pub fn temp_files(&self) -> Vec<PathBuf> {
        self.files_in(&["proxy_temp", "body_temp"])
    }

    /// Files of the cache of nginx.
    pub fn cached(&self) -> Vec<PathBuf> {
        self.files_in(&["cache"])
    }

    fn files_in(&self, folders: &[&str]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders: Vec<PathBuf> = folders.iter().map(|name| self.dir.path().join(name)).collect();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found
    }

    /// All lines of the access log so far.
    pub fn log(&self) -> Vec<LogLine> {
        let (file, parse): (_, fn(&str) -> Option<LogLine>) = match self.spec {
            Spec::Nginx(_) => ("access.log", access_log::nginx),
            Spec::Haproxy(_) => ("haproxy.stdout", access_log::haproxy),
            Spec::Envoy(_) => ("access.log", access_log::envoy),
        };
        let text = std::fs::read_to_string(self.dir.path().join(file)).unwrap_or_default();
        // A line without its end is still being written.
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).filter_map(parse).collect()
    }

    /// Waits until the access log has `count` lines of the exchange `id`.
    pub fn logged(&self, id: &str, count: usize) -> Result<Vec<LogLine>, LabError> {
        wait::until(format!("{count} access-log lines of {id} ({})", self.spec.name()), LOGGED, || {
            let lines: Vec<LogLine> = self.log().into_iter().filter(|line| line.id == id).collect();
            (lines.len() >= count).then_some(lines)
        })
    }

    /// Bytes that the proxy says it has sent by splicing of its own. None: it is not HAProxy, or not to splice wherever it can.
    pub fn spliced(&self) -> Result<Option<u64>, LabError> {
        match &self.spec {
            Spec::Haproxy(Haproxy { splice_always: true, .. }) => haproxy::spliced(self.dir()).map(Some),
            _ => Ok(None),
        }
    }

    /// The end of the proxy's own error log, without nginx's notes on buffering to disk.
    pub fn error_log(&self) -> String {
        let text = std::fs::read_to_string(self.dir.path().join("error.log")).unwrap_or_default();
        let quiet = ["[info]", "[notice]", "is buffered to a temporary file"];
        let lines: Vec<&str> = text.lines().filter(|line| !quiet.iter().any(|it| line.contains(it))).collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Stops it and checks that nothing of it is left: processes, the port, its directory.
    pub fn stop(self) -> Result<(), LabError> {
        let Self { spec, process, port, place, dir, .. } = self;
        let crashed = process.pids().is_empty();
        let leftover = |what: String| Err(LabError::Leftover { name: spec.name().to_owned(), what });
        if crashed {
            return leftover(format!("it had ended by itself: {}", process.stderr_tail()));
        }
        process.stop()?;
        let probe = || Ok(TcpStream::connect_timeout(&port.addr(), Duration::from_millis(200)).is_ok());
        if place.within(probe)? {
            return leftover(format!("somebody still listens on {}", port.addr()));
        }
        let name = dir.path().display().to_string();
        dir.close().doing(|| format!("remove {name}"))
    }
}

fn is_nginx_worker(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with("nginx: worker process"))
}

/// The user that workers run as: `www-data` if we are root, else ourselves.
pub(crate) fn worker_user() -> Option<&'static str> {
    rustix::process::getuid().is_root().then_some("www-data")
}
