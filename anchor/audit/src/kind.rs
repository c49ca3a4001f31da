//! Which proxy a configuration is for.

use std::path::Path;
use std::str::FromStr;

use serde::Serialize;

/// A proxy whose configuration we read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyKind {
    /// nginx and its relatives that keep its syntax (OpenResty, Tengine, Angie).
    Nginx,
    /// HAProxy.
    Haproxy,
    /// Envoy, with a static bootstrap.
    Envoy,
}

impl ProxyKind {
    /// The name as users type it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
        }
    }

    /// Guesses from the file's name, and where that says nothing, from its text.
    pub fn guess(path: &Path, text: &str) -> Option<Self> {
        let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
        let by_name = [(Self::Nginx, "nginx"), (Self::Haproxy, "haproxy"), (Self::Envoy, "envoy")];
        if let Some((kind, _)) = by_name.into_iter().find(|(_, word)| name.contains(word)) {
            return Some(kind);
        }
        Self::guess_by_text(text)
    }

    /// The program's kind by its file name, as in `/usr/sbin/nginx`.
    pub fn of_program(program: &Path) -> Option<Self> {
        let name = program.file_name()?.to_str()?;
        ["nginx", "openresty", "angie", "tengine"]
            .iter()
            .any(|n| name.starts_with(n))
            .then_some(Self::Nginx)
            .or_else(|| name.starts_with("haproxy").then_some(Self::Haproxy))
            .or_else(|| name.starts_with("envoy").then_some(Self::Envoy))
    }

    fn guess_by_text(text: &str) -> Option<Self> {
        for line in text.lines() {
            let line = line.trim_start();
            let word = line.split(|c: char| c.is_whitespace() || c == '{' || c == ':').next().unwrap_or_default();
            match word {
                "global" | "defaults" | "frontend" | "backend" | "listen" if !line.contains([';', '{', ':']) => {
                    return Some(Self::Haproxy);
                }
                "static_resources" | "dynamic_resources" | "admin" | "node" | "layered_runtime"
                    if line.contains(':') =>
                {
                    return Some(Self::Envoy);
                }
                "\"static_resources\"" | "\"dynamic_resources\"" | "\"admin\"" => return Some(Self::Envoy),
                "events" | "http" | "stream" | "server" | "upstream" | "location" if line.contains('{') => {
                    return Some(Self::Nginx);
                }
                "user" | "worker_processes" | "load_module" | "pid" if line.contains(';') => return Some(Self::Nginx),
                _ => {}
            }
        }
        None
    }
}

impl FromStr for ProxyKind {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        [Self::Nginx, Self::Haproxy, Self::Envoy].into_iter().find(|k| k.name() == name).ok_or(())
    }
}
