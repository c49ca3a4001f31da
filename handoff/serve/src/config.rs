//! The configuration file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use underdeck_handoff_control::policy::Policy;

/// One file for each process; balancer and backends name the same backends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Where HTTP clients (on a backend: relaying balancers) connect.
    pub listen: SocketAddr,
    /// Where peers connect, over TLS.
    pub control: SocketAddr,
    /// Interfaces over which clients' packets come and go.
    pub interfaces: Vec<String>,
    /// Certificate of the authority.
    pub authority: PathBuf,
    /// This peer's certificate.
    pub certificate: PathBuf,
    /// This peer's key.
    pub key: PathBuf,
    /// When connections move: relay, pin, shard, per-request N, least-loaded.
    #[serde(deserialize_with = "policy")]
    pub policy: Policy,
    /// A Unix socket that answers `underdeck handoff status`.
    #[serde(default)]
    pub status: Option<PathBuf>,
    /// On a backend: which of `backend` it is.
    #[serde(default)]
    pub name: Option<String>,
    /// On a backend: a folder of files to serve. Without it only generated objects are served.
    #[serde(default)]
    pub root: Option<PathBuf>,
    /// On a backend: the port of the balancers' `control`.
    #[serde(default = "control_port")]
    pub balancer_port: u16,
    /// Most connections with rules at a time.
    #[serde(default = "capacity")]
    pub capacity: u32,
    /// On a balancer: a folder in a BPF file system, so that redirections outlive the process.
    #[serde(default)]
    pub pin: Option<PathBuf>,
    /// Milliseconds that each step of a transfer may take.
    #[serde(default = "step_ms")]
    pub step_ms: u64,
    /// Most connections that are served here at a time; a balancer answers 503 to more, a backend refuses handoffs.
    #[serde(default = "max_connections")]
    pub max_connections: u32,
    /// Milliseconds after which a connection ends on which nothing moves.
    #[serde(default = "idle_ms")]
    pub idle_ms: u64,
    /// Milliseconds after which a client that acknowledges nothing is given up (TCP_USER_TIMEOUT).
    #[serde(default = "user_timeout_ms")]
    pub user_timeout_ms: u32,
    /// On a balancer: milliseconds without a heartbeat after which a backend is dead, and its connections are reset.
    #[serde(default = "dead_after_ms")]
    pub dead_after_ms: u64,
    /// The backends.
    #[serde(default)]
    pub backend: Vec<Backend>,
}

/// One backend.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Backend {
    /// Its name: what paths are hashed to.
    pub name: String,
    /// Its `listen`.
    pub listen: SocketAddr,
    /// Its `control`.
    pub control: SocketAddr,
}

/// Why a configuration is not good.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// It says something that cannot be.
    #[error("{path}:{line}:{column}: {message}")]
    Bad {
        /// Which file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// What is wrong and what would be right.
        message: String,
    },
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError`] with the place.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Config::parse(path, &text)
    }

    /// Checks a text; `path` is for messages.
    ///
    /// # Errors
    /// [`ConfigError`] with the place.
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let bad = |at: usize, message: String| {
            let before = &text[..at.min(text.len())];
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
            ConfigError::Bad { path: path.to_owned(), line, column, message }
        };
        let config: Config = toml::from_str(text)
            .map_err(|error| bad(error.span().map_or(0, |span| span.start), error.message().to_owned()))?;
        if config.backend.is_empty() {
            return Err(bad(text.len(), "there is no backend: add a [[backend]] with name, listen and control".into()));
        }
        let (v6, own) = (config.listen.is_ipv6(), config.name.is_some());
        if config.listen.ip().is_unspecified() && (v6 || own) {
            let at = text.find("listen").unwrap_or(0);
            return Err(bad(at, "listen: name one address of this host; connections are restored at it".into()));
        }
        for (at, backend) in config.backend.iter().enumerate() {
            let name = &backend.name;
            let twice = config.backend[..at].iter().any(|other| other.name == *name);
            if twice || name.is_empty() || name.len() > 64 {
                let at = text.find(&format!("{name:?}")).unwrap_or(text.len());
                return Err(bad(at, format!("backend {name:?}: give each one a name of its own, of 1 to 64 bytes")));
            }
        }
        if let Some(name) = &config.name
            && !config.backend.iter().any(|backend| backend.name == *name)
        {
            let at = text.find("name").unwrap_or(0);
            return Err(bad(
                at,
                format!("name {name:?} is no backend's: give it to a [[backend]], or take one of theirs"),
            ));
        }
        Ok(config)
    }

    /// How long each step of a transfer may take.
    pub(crate) fn step(&self) -> Duration {
        Duration::from_millis(self.step_ms.max(1))
    }

    /// How long nothing may move on a connection.
    pub(crate) fn idle(&self) -> Duration {
        Duration::from_millis(self.idle_ms.max(1))
    }

    /// How long a backend may be silent.
    pub(crate) fn dead_after(&self) -> Duration {
        Duration::from_millis(self.dead_after_ms.max(1))
    }
}

fn policy<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Policy, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

fn control_port() -> u16 {
    7000
}

fn capacity() -> u32 {
    65_536
}

fn step_ms() -> u64 {
    1000
}

fn max_connections() -> u32 {
    10_000
}

fn idle_ms() -> u64 {
    60_000
}

fn user_timeout_ms() -> u32 {
    30_000
}

fn dead_after_ms() -> u64 {
    700
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
listen = "192.0.2.2:80"
control = "192.0.2.2:7000"
interfaces = ["eth0"]
authority = "authority.pem"
certificate = "balancer.pem"
key = "balancer.key"
policy = "per-request 2"
[[backend]]
name = "b0"
listen = "192.0.2.3:80"
control = "192.0.2.3:7000"
"#;

    #[test]
    fn a_configuration_is_read() {
        let config = Config::parse(Path::new("x.toml"), GOOD).unwrap();
        assert_eq!(config.policy, Policy::PerRequest(2));
        assert_eq!(config.backend[0].name, "b0");
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (from, to, expected) in [
            ("per-request 2", "random", "x.toml:8:10: \"random\" is no policy"),
            ("192.0.2.2:80\"", "here\"", "x.toml:2:10: "),
            ("192.0.2.2:80\"", "[::]:80\"", "x.toml:2:1: listen: name one address"),
            ("name = \"b0\"", "name = \"\"", "x.toml:10:8: backend \"\": give each one a name"),
            ("interfaces", "interface", "x.toml:4:1: unknown field"),
            ("key =", "name = \"b7\"\nkey =", "x.toml:7:1: name \"b7\" is no backend's"),
        ] {
            let error = Config::parse(Path::new("x.toml"), &GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    fn manual() -> String {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/handoff.md");
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_manual_lists_every_key() {
        let manual = manual();
        let error = Config::parse(Path::new("x"), "no-such-key = 1").unwrap_err().to_string();
        let known = error.split("expected one of ").nth(1).unwrap();
        for key in known.split('`').skip(1).step_by(2).filter(|key| *key != "backend") {
            assert!(manual.lines().any(|line| line.starts_with("| `") && line.contains(&format!("`{key}`"))), "{key}");
        }
    }

    #[test]
    fn the_configurations_of_the_manual_are_good() {
        let manual = manual();
        let mut blocks = manual.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        let (balancer, backend) = (blocks.next().unwrap(), blocks.next().unwrap());
        let read = |text: &str| Config::parse(Path::new("x"), text).unwrap();
        assert_eq!(read(balancer).backend.len(), 3);
        assert_eq!(read(&format!("{backend}{balancer}")).name.as_deref(), Some("b0"));
    }
}
