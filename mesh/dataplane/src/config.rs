//! The file that `underdeck mesh run --config` reads.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use underdeck_mesh_policy::envoy::Server;
use underdeck_mesh_policy::evaluate::{Identity, Sender};

/// What the agent is to do. Paths are relative to the folder of the file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The control group (version 2) whose connections are taken over. The agent and Envoy must not be in it.
    pub cgroup: PathBuf,
    /// Files and folders of policies.
    pub policies: Vec<PathBuf>,
    /// The listener whose routes hold: `mesh`, `gateway NAMESPACE/NAME`, or the name of a listener of Envoy.
    #[serde(default = "mesh")]
    pub listener: String,
    /// Who the processes of the control group are, for authorization.
    #[serde(default)]
    pub sender: From,
    /// What they connect to and shall not reach directly.
    pub services: Vec<SocketAddr>,
    /// Endpoints of clusters that the policies do not name themselves.
    #[serde(default)]
    pub endpoints: BTreeMap<String, Vec<Endpoint>>,
    /// Envoy's program.
    #[serde(default = "envoy")]
    pub envoy: PathBuf,
    /// Where the agent listens for connections that were taken over; port 0: a free one.
    #[serde(default = "listen")]
    pub listen: SocketAddrV4,
    /// The same for those of IPv6.
    #[serde(default = "listen6")]
    pub listen6: SocketAddrV6,
    /// Where `mesh status` asks.
    #[serde(default = "socket")]
    pub socket: PathBuf,
    /// What becomes of new connections to the services while no agent runs.
    #[serde(default)]
    pub fail: Fail,
    /// Idle connections that each endpoint has at least, and at most.
    #[serde(default)]
    pub pool: Pool,
    /// Whether bytes to and from endpoints in the control group, on this host, skip TCP.
    #[serde(default = "yes")]
    pub local_bypass: bool,
    /// Objects are kept here. None: nowhere.
    #[serde(default)]
    pub cache: Option<PathBuf>,
}

/// Who sends.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct From {
    /// `cluster.local/ns/NAMESPACE/sa/NAME`.
    pub identity: Option<String>,
    /// Labels of the workload. None: they are not known.
    pub labels: Option<BTreeMap<String, String>>,
    /// Its address.
    pub address: IpAddr,
}

impl Default for From {
    fn default() -> Self {
        Self { identity: None, labels: None, address: Ipv4Addr::LOCALHOST.into() }
    }
}

/// A server of a cluster: its address, or `{address: …, weight: …}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(from = "Written")]
pub struct Endpoint {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its share of the requests.
    pub weight: NonZeroU32,
}

/// The two forms of [`Endpoint`].
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "an address (\"10.0.1.4:8080\"), or {address: \"10.0.1.4:8080\", weight: 3} with a weight from 1"
)]
enum Written {
    Plain(SocketAddr),
    Weighted(Weighted),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Weighted {
    address: SocketAddr,
    #[serde(default = "one")]
    weight: NonZeroU32,
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

impl std::convert::From<Written> for Endpoint {
    fn from(written: Written) -> Self {
        match written {
            Written::Plain(address) => Self { address, weight: one() },
            Written::Weighted(Weighted { address, weight }) => Self { address, weight },
        }
    }
}

impl std::convert::From<Endpoint> for Server {
    fn from(endpoint: Endpoint) -> Self {
        Self { address: endpoint.address, weight: endpoint.weight.get() }
    }
}

/// What becomes of new connections to the services while no agent runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fail {
    /// They go where they were meant to go, past the policies. Nothing stays in the kernel.
    #[default]
    Open,
    /// They are refused with EPERM, by two programs that stay attached to the control group.
    Closed,
}

/// Connections to each endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pool {
    /// Made before they are needed.
    pub min: usize,
    /// Kept at most. More than 2048 are 2048.
    pub max: usize,
}

impl Default for Pool {
    fn default() -> Self {
        Self { min: 8, max: 1024 }
    }
}

/// Where `mesh status` asks if nothing else is said.
pub const SOCKET: &str = "/run/underdeck/mesh.sock";

fn socket() -> PathBuf {
    SOCKET.into()
}

fn yes() -> bool {
    true
}

fn mesh() -> String {
    "mesh".into()
}

fn envoy() -> PathBuf {
    "envoy".into()
}

fn listen() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)
}

fn listen6() -> SocketAddrV6 {
    SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0)
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It does not say what it should.
    #[error("{path}: {why}", path = .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why, with line and column.
        why: String,
    },
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let parsed: Result<Self, _> = serde_saphyr::from_str(&text);
        let mut config =
            parsed.map_err(|error| ConfigError::Parse { path: path.to_owned(), why: error.to_string() })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        for path in &mut config.policies {
            *path = folder.join(&*path);
        }
        for service in &mut config.services {
            // An IPv4-mapped address is an IPv4 address.
            service.set_ip(service.ip().to_canonical());
        }
        config.socket = folder.join(&config.socket);
        config.cache = config.cache.map(|path| folder.join(path));
        // A name without a slash is looked for in PATH.
        if config.envoy.components().count() > 1 {
            config.envoy = folder.join(&config.envoy);
        }
        Ok(config)
    }

    /// What has changed and cannot change while the agent runs.
    pub(crate) fn needs_restart(&self, before: &Self) -> Option<&'static str> {
        let fixed = [
            ("cgroup", self.cgroup == before.cgroup),
            ("listen", self.listen == before.listen),
            ("listen6", self.listen6 == before.listen6),
            ("socket", self.socket == before.socket),
            ("fail", self.fail == before.fail),
        ];
        fixed.iter().find(|(_, is_same)| !is_same).map(|(field, _)| *field)
    }

    /// Who sends, as policies know it.
    pub(crate) fn sender(&self) -> Sender {
        Sender {
            identity: self.sender.identity.clone().map(Identity),
            labels: self.sender.labels.clone(),
            address: self.sender.address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_file_and_unknown_fields_are_errors() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("mesh.yaml");
        std::fs::write(
            &path,
            "cgroup: /c\npolicies: [p]\nservices: ['10.0.0.1:80']\nendpoints: {'a|80|': ['127.0.0.1:1']}\n",
        )
        .expect("ours");
        let config = Config::read(&path).expect("valid");
        assert_eq!(config.policies, [place.path().join("p")]);
        assert_eq!((config.listener.as_str(), config.pool), ("mesh", Pool { min: 8, max: 1024 }));
        let endpoint = |text: &str| {
            let text = format!("cgroup: /c\npolicies: [p]\nservices: []\nendpoints: {{a: [{text}]}}\n");
            std::fs::write(&path, text).expect("ours");
            Config::read(&path)
                .map(|config| (config.endpoints["a"][0].address.port(), config.endpoints["a"][0].weight.get()))
        };
        assert_eq!(endpoint("'[::1]:1'").expect("an address"), (1, 1));
        assert_eq!(endpoint("{address: '10.0.0.1:2', weight: 3}").expect("with a weight"), (2, 3));
        assert_eq!(endpoint("{address: '10.0.0.1:2'}").expect("without one"), (2, 1));
        for wrong in ["{address: '10.0.0.1:2', weight: 0}", "{address: '10.0.0.1:2', wait: 1}", "'10.0.0.1'", "7"] {
            let error = endpoint(wrong).expect_err(wrong).to_string();
            assert!(error.contains("weight from 1") && error.contains("4:"), "{wrong}: {error}");
        }
        std::fs::write(&path, "cgroup: /c\npolicies: [p]\nservices: []\nservice: 1\n").expect("ours");
        let error = Config::read(&path).expect_err("an unknown field").to_string();
        assert!(error.contains("service") && error.contains("mesh.yaml"), "{error}");
    }
}
