//! Envoy as a child: the slow path.

use std::collections::HashMap;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use underdeck_mesh_policy::envoy::{Bind, bootstrap};

use crate::config::Config;
use crate::policies::Policies;

/// It must listen after this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Ports are chosen so many times.
const TRIES: u32 = 5;
/// What Envoy says of a port that it does not get.
const PORT_IS_TAKEN: &str = "Address already in use";

/// Why there is no slow path.
#[derive(Debug, thiserror::Error)]
pub enum EnvoyError {
    /// The program cannot be started.
    #[error("{program}: {source}; set `envoy` in the configuration", program = .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its configuration cannot be written, or there is no free port.
    #[error("the configuration of Envoy: {0}")]
    Configuration(std::io::Error),
    /// It ended instead of listening.
    #[error("Envoy ended with {0}:\n{1}")]
    Ended(std::process::ExitStatus, String),
    /// It runs and does not listen.
    #[error("Envoy does not listen on {0} after {seconds} s", seconds = PATIENCE.as_secs())]
    Silent(SocketAddr),
}

/// A running Envoy. It ends when this is dropped, and when the agent dies.
pub(crate) struct Envoy {
    _child: std::cell::RefCell<Child>,
    _place: tempfile::TempDir,
    ports: HashMap<SocketAddr, SocketAddr>,
}

impl Envoy {
    /// Starts one for a set of policies.
    pub(crate) async fn start(config: &Config, policies: &Policies) -> Result<Self, EnvoyError> {
        let mut tries = 1;
        loop {
            match Self::start_once(config, policies).await {
                // Somebody took a port that was free before Envoy did.
                Err(EnvoyError::Ended(_, log)) if tries < TRIES && log.contains(PORT_IS_TAKEN) => tries += 1,
                other => return other,
            }
        }
    }

    async fn start_once(config: &Config, policies: &Policies) -> Result<Self, EnvoyError> {
        let mut held = Vec::new();
        let mut ports = HashMap::new();
        for service in &config.services {
            let socket = TcpListener::bind((*config.listen.ip(), 0)).map_err(EnvoyError::Configuration)?;
            let port = socket.local_addr().map_err(EnvoyError::Configuration)?.port();
            ports.insert(*service, SocketAddr::from(SocketAddrV4::new(*config.listen.ip(), port)));
            held.push(socket);
        }
        let bind = |(service, address): (&SocketAddr, &SocketAddr)| Bind {
            listener: config.listener.clone(),
            address: *address,
            sender: config.sender(),
            destination: (service.ip(), service.port()),
        };
        let binds: Vec<_> = ports.iter().map(bind).collect();
        let generated = bootstrap(&policies.policy, &binds, &config.endpoints);
        let place = tempfile::tempdir().map_err(EnvoyError::Configuration)?;
        let path = place.path().join("envoy.json");
        std::fs::write(&path, generated.config.to_string()).map_err(EnvoyError::Configuration)?;
        drop(held);
        let log = std::fs::File::create(place.path().join("log")).map_err(EnvoyError::Configuration)?;
        let mut command = Command::new(&config.envoy);
        command.arg("-c").arg(&path).args(["--disable-hot-restart", "--log-level", "error", "--concurrency", "1"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        // SAFETY: prctl may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // The agent may be killed: Envoy must not stay behind.
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            });
        }
        let start = |source| EnvoyError::Start { program: config.envoy.clone(), source };
        let mut child = command.spawn().map_err(start)?;
        let until = Instant::now() + PATIENCE;
        for address in ports.values() {
            while TcpStream::connect(address).await.is_err() {
                if let Ok(Some(status)) = child.try_wait() {
                    let log = std::fs::read_to_string(place.path().join("log")).unwrap_or_default();
                    return Err(EnvoyError::Ended(status, log));
                }
                if Instant::now() > until {
                    return Err(EnvoyError::Silent(*address));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(Self { _child: std::cell::RefCell::new(child), _place: place, ports })
    }

    /// Where it listens for connections that were meant for a service.
    pub(crate) fn port_of(&self, service: SocketAddr) -> Option<SocketAddr> {
        self.ports.get(&service).copied()
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self._child.borrow_mut().try_wait(), Ok(Some(_)) | Err(_))
    }
}
