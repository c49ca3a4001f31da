//! Two Ethernet links between three network namespaces: what a proxy sees that is not alone on its host.
//!
//! ```text
//!  NAME-client                NAME-proxy                 NAME-backend
//! ┌────────────┐   veth    ┌─────────────────────┐   veth    ┌────────────┐
//! │ 198.18.0.1 ├───────────┤198.18.0.2 198.18.1.1├───────────┤ 198.18.1.2 │
//! └────────────┘  MTU 1500 └─────────────────────┘  MTU 1500 └────────────┘
//! ```
//!
//! The addresses are those that RFC 2544 sets aside for benchmarks. Needs root, `ip` and `ethtool`.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
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

/// The namespaces and links. Dropping it removes them.
#[derive(Debug)]
pub struct Network {
    name: String,
    namespaces: [Arc<OwnedFd>; 3],
}

const PARTS: [&str; 3] = ["client", "proxy", "backend"];

fn call(program: &str, arguments: &str) -> Result<(), LabError> {
    let output = Command::new(program).args(arguments.split_whitespace()).output();
    let output = output.doing(|| format!("run {program} (is it installed?)"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(LabError::Failed { command: format!("{program} {arguments}"), status: output.status.to_string(), output: said })
}

impl Network {
    /// Makes the namespaces and the links between them.
    pub fn new(offload: Offload) -> Result<Self, LabError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("udlab{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let guard = Guard(name);
        for part in PARTS {
            call("ip", &format!("netns add {}-{part}", guard.0))?;
            call("ip", &format!("-n {}-{part} link set lo up", guard.0))?;
        }
        guard.link("client", "proxy", CLIENT, PROXY_FRONT, offload)?;
        guard.link("proxy", "backend", PROXY_BACK, BACKEND, offload)?;
        let open = |part: &str| -> Result<Arc<OwnedFd>, LabError> {
            let path = format!("/run/netns/{}-{part}", guard.0);
            Ok(Arc::new(File::open(&path).doing(|| format!("open {path}"))?.into()))
        };
        let namespaces = [open("client")?, open("proxy")?, open("backend")?];
        let name = guard.0.clone();
        std::mem::forget(guard);
        Ok(Self { name, namespaces })
    }

    fn place(&self, part: usize, ip: Ipv4Addr, cpus: &[usize]) -> Place {
        let namespace = Some(Arc::clone(&self.namespaces[part]));
        Place { cpus: cpus.to_vec(), namespace, ip: Some(IpAddr::V4(ip)) }
    }

    /// Where clients are.
    pub fn client(&self, cpus: &[usize]) -> Place {
        self.place(0, CLIENT, cpus)
    }

    /// Where the proxy is.
    pub fn proxy(&self, cpus: &[usize]) -> Place {
        self.place(1, PROXY_FRONT, cpus)
    }

    /// Where the backend is.
    pub fn backend(&self, cpus: &[usize]) -> Place {
        self.place(2, BACKEND, cpus)
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
struct Guard(String);

impl Drop for Guard {
    fn drop(&mut self) {
        for part in PARTS {
            // One that is not there cannot be removed.
            let _ = call("ip", &format!("netns del {}-{part}", self.0));
        }
    }
}

impl Guard {
    fn link(&self, a: &str, b: &str, a_ip: Ipv4Addr, b_ip: Ipv4Addr, offload: Offload) -> Result<(), LabError> {
        let name = &self.0;
        // Interfaces are named after the namespace at the other end.
        call("ip", &format!("-n {name}-{a} link add {b} mtu 1500 type veth peer name {a} mtu 1500 netns {name}-{b}"))?;
        for (here, there, ip) in [(a, b, a_ip), (b, a, b_ip)] {
            call("ip", &format!("-n {name}-{here} addr add {ip}/24 dev {there}"))?;
            call("ip", &format!("-n {name}-{here} link set {there} up"))?;
            let (segment, merge) = match offload {
                Offload::All => ("on", "on"),
                Offload::Gro => ("off", "on"),
                Offload::None => ("off", "off"),
            };
            let features = format!("tso {segment} gso {segment} gro {merge}");
            call("ip", &format!("netns exec {name}-{here} ethtool -K {there} {features}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use crate::client::{Connection, Expect, Front, Pace, Request};
    use crate::origin::{Origin, SEED};

    #[test]
    fn bytes_cross_the_links_and_nothing_is_left_behind() {
        let ethtool = Command::new("ethtool").arg("--version").output().is_ok();
        if !rustix::process::getuid().is_root() || !ethtool {
            eprintln!("skipped: making network namespaces needs root and ethtool");
            return;
        }
        for offload in [Offload::All, Offload::Gro, Offload::None] {
            let network = Network::new(offload).expect("a network");
            let name = network.name().to_owned();
            let origin = Origin::start(&network.backend(&[]), 1 << 20).expect("an origin");
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
            assert!(PARTS.iter().all(|part| !Path::new(&format!("/run/netns/{name}-{part}")).exists()));
        }
    }
}
