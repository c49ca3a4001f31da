//! Networks of their own for measurements, so that neither the host's traffic nor its settings take part.
//!
//! A loopback in a namespace of its own, or two Ethernet links between three namespaces, which is what a proxy sees that
//! is not alone on its host:
//!
//! ```text
//!  NAME-client                NAME-proxy                 NAME-backend
//! ┌────────────┐   veth    ┌─────────────────────┐   veth    ┌────────────┐
//! │ 198.18.0.1 ├───────────┤198.18.0.2 198.18.1.1├───────────┤ 198.18.1.2 │
//! └────────────┘  MTU 1500 └─────────────────────┘  MTU 1500 └────────────┘
//! ```
//!
//! The addresses are those that RFC 2544 sets aside for benchmarks. TCP uses a congestion control that does not pace
//! (CUBIC, or Reno where a namespace may not choose CUBIC), whatever the host uses: on a link without a bottleneck, the
//! timers of pacing only cost time. Needs root, `ip`, `sysctl` and, for links, `ethtool`.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::LabError;
use crate::error::While;
use crate::place::Place;

const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const PROXY_FRONT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const PROXY_BACK: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
const BACKEND: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);

/// What the interfaces do for TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// GRO, GSO and TSO on: pieces of up to 64 KiB cross the link as they are.
    All,
    /// Segments of 1448 bytes cross the link, and the receiver merges them: as from a real network.
    Gro,
    /// Segments of 1448 bytes, each by itself.
    None,
}

impl Offload {
    /// As `ethtool -K` takes it.
    pub(crate) fn features(self) -> &'static str {
        match self {
            Self::All => "tso on gso on gro on",
            Self::Gro => "tso off gso off gro on",
            Self::None => "tso off gso off gro off",
        }
    }
}

/// The namespaces and links. Dropping it removes them.
#[derive(Debug)]
pub struct Network {
    name: String,
    client: Place,
    proxy: Place,
    backend: Place,
}

/// Of the names of namespaces; the process that made them comes next.
const PREFIX: &str = "udlab";

pub(crate) fn call(program: &str, arguments: &str) -> Result<(), LabError> {
    let output = Command::new(program).args(arguments.split_whitespace()).output();
    let output = output.doing(|| format!("run {program} (is it installed?)"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(LabError::Failed { command: format!("{program} {arguments}"), status: output.status.to_string(), output: said })
}

impl Network {
    /// Makes three namespaces and the links between them.
    pub fn links(offload: Offload) -> Result<Self, LabError> {
        let guard = Guard::new();
        let mut places = Vec::new();
        for (part, ip) in [("client", CLIENT), ("proxy", PROXY_FRONT), ("backend", BACKEND)] {
            places.push(guard.namespace(part, ip)?);
        }
        guard.link("client", "proxy", CLIENT, PROXY_FRONT, offload)?;
        guard.link("proxy", "backend", PROXY_BACK, BACKEND, offload)?;
        let mut places = places.into_iter();
        let mut next = || places.next().unwrap_or_default();
        Ok(Self { client: next(), proxy: next(), backend: next(), name: guard.keep() })
    }

    /// Makes one namespace with a loopback interface.
    pub fn loopback() -> Result<Self, LabError> {
        let guard = Guard::new();
        let place = guard.namespace("lo", Ipv4Addr::LOCALHOST)?;
        Ok(Self { client: place.clone(), proxy: place.clone(), backend: place, name: guard.keep() })
    }

    /// Where clients are.
    pub fn client(&self, cpus: &[usize]) -> Place {
        Place { cpus: cpus.to_vec(), ..self.client.clone() }
    }

    /// Where the proxy is.
    pub fn proxy(&self, cpus: &[usize]) -> Place {
        Place { cpus: cpus.to_vec(), ..self.proxy.clone() }
    }

    /// Where the backend is.
    pub fn backend(&self, cpus: &[usize]) -> Place {
        Place { cpus: cpus.to_vec(), ..self.backend.clone() }
    }

    /// What the namespaces are called, without `-client` and so on.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(Guard(self.name.clone()));
    }
}

/// Removes the namespaces of a name, as far as they are there; the links go with them.
#[derive(Debug)]
pub(crate) struct Guard(String);

impl Drop for Guard {
    fn drop(&mut self) {
        for name in namespaces().filter(|name| !self.0.is_empty() && name.starts_with(&format!("{}-", self.0))) {
            // Whoever looks for leftovers will find it.
            let _ = call("ip", &format!("netns del {name}"));
        }
    }
}

/// All that have a name.
fn namespaces() -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Removes what runs left behind that were killed: namespaces named after processes that are gone.
fn sweep() {
    for name in namespaces() {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another run may have been faster.
            let _ = call("ip", &format!("netns del {name}"));
        }
    }
}

impl Guard {
    pub(crate) fn new() -> Self {
        sweep();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        Self(format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The name, for somebody else to remove.
    fn keep(mut self) -> String {
        std::mem::take(&mut self.0)
    }

    /// What its namespaces are called, without `-PART`.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    pub(crate) fn namespace(&self, part: &str, ip: impl Into<IpAddr>) -> Result<Place, LabError> {
        let name = format!("{}-{part}", self.0);
        call("ip", &format!("netns add {name}"))?;
        call("ip", &format!("-n {name} link set lo up"))?;
        let congestion = |which: &str| {
            call("ip", &format!("netns exec {name} sysctl -q -w net.ipv4.tcp_congestion_control={which}"))
        };
        congestion("cubic").or_else(|_| congestion("reno"))?;
        let path = format!("/run/netns/{name}");
        let namespace: OwnedFd = File::open(&path).doing(|| format!("open {path}"))?.into();
        Ok(Place { cpus: Vec::new(), namespace: Some(Arc::new(namespace)), ip: Some(ip.into()) })
    }

    fn link(&self, a: &str, b: &str, a_ip: Ipv4Addr, b_ip: Ipv4Addr, offload: Offload) -> Result<(), LabError> {
        let name = &self.0;
        // Interfaces are named after the namespace at the other end.
        call("ip", &format!("-n {name}-{a} link add {b} mtu 1500 type veth peer name {a} mtu 1500 netns {name}-{b}"))?;
        for (here, there, ip) in [(a, b, a_ip), (b, a, b_ip)] {
            call("ip", &format!("-n {name}-{here} addr add {ip}/24 dev {there}"))?;
            call("ip", &format!("-n {name}-{here} link set {there} up"))?;
            call("ip", &format!("netns exec {name}-{here} ethtool -K {there} {}", offload.features()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::client::{Connection, Expect, Front, Pace, Request};
    use crate::load::Sending;
    use crate::origin::{Origin, SEED};

    #[test]
    fn bytes_cross_the_links_and_nothing_is_left_behind() {
        let ethtool = Command::new("ethtool").arg("--version").output().is_ok();
        if !rustix::process::getuid().is_root() || !ethtool {
            eprintln!("skipped: making network namespaces needs root and ethtool");
            return;
        }
        // As a run leaves it that was killed: no process can have this number.
        let stale = format!("{PREFIX}4294967295-0-lo");
        call("ip", &format!("netns add {stale}")).expect("a namespace");
        let kinds = [None, Some(Offload::All), Some(Offload::Gro), Some(Offload::None)];
        for offload in kinds {
            let network = offload.map_or_else(Network::loopback, Network::links).expect("a network");
            let name = network.name().to_owned();
            assert!(!Path::new(&format!("/run/netns/{stale}")).exists(), "what a killed run left is removed");
            let origin = Origin::start(&network.backend(&[]), 1 << 20, Sending::Write).expect("an origin");
            let addr = origin.addr();
            let seen = network.proxy(&[]).within(|| {
                let mut client = Connection::open(&Front::from(addr), &Pace::default())?;
                let request = Request::get("/1000000?from=3".to_owned());
                client.send(&request)?;
                client.receive(&request, Expect { seed: SEED, from: 3 })
            });
            assert_eq!(
                seen.map(|reply| (reply.body.len, reply.body.first_wrong)).expect("received"),
                (1_000_000, None)
            );
            origin.stop();
            drop(network);
            assert!(namespaces().all(|left| !left.starts_with(&name)));
        }
    }
}
