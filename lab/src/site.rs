//! A site as a balancer that hands connections over sees it: clients, a router, the balancer and its backends, each in a
//! network namespace of its own, joined by Ethernet links that can be shaped.
//!
//! ```text
//!  NAME-client                      NAME-router                     NAME-balancer
//! ┌─────────────┐    link 0    ┌───────────────────┐            ┌─────────────┐
//! │ 198.18.64.2 ├──────────────┤                   ├────────────┤ 198.18.1.2  │
//! │ 198.18.65.2 ├──────────────┤  x.1 of each net, │            └─────────────┘
//! │     …       │      …       │  forwards         │             NAME-backend0 …
//! │             ├──────────────┤                   │            ┌─────────────┐
//! └─────────────┘  link N - 1  │                   ├────────────┤ 198.18.2.2  │
//!                              │                   ├── …        └─────────────┘
//!                              └───────────────────┘
//! ```
//!
//! Every link is a network of its own (and 2001:2:0:n::/64 for IPv6), so that each hop is a routed one. Each client link
//! stands for one client's access link: what is sent from its address leaves by it. The addresses are those that
//! RFC 2544 and RFC 5180 set aside for benchmarks. Needs root, `ip`, `tc`, `sysctl` and `ethtool`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use rustix::net::netdevice::name_to_index;

use crate::error::While;
use crate::loss::{Hook, Loss};
use crate::network::{Guard, Offload, call};
use crate::place::Place;
use crate::{LabError, proc, wait};

const BALANCER_NET: u8 = 1;
const BACKEND_NET: u8 = 2;
const CLIENT_NET: u8 = 64;

/// What stands in a queue at most, in bytes, and what may pass at once; more than the largest piece that crosses whole.
const QUEUE: u32 = 1 << 20;
const BURST: u32 = 128 << 10;

/// What a site looks like.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many backends.
    pub backends: u8,
    /// How many links the clients have.
    pub client_links: u8,
    /// Megabits per second of each link, in both directions. None: as fast as the CPUs are.
    pub rate_mbit: Option<u32>,
    /// What the interfaces do for TCP.
    pub offload: Offload,
    /// Packets that arrive at the balancer, and what it sends, are handled by kernel threads of their own, so that CPU
    /// time of the balancer can be told from that of others. Costs latency.
    pub accounted: bool,
    /// Places have IPv6 addresses.
    pub v6: bool,
    /// TCP waits 10 ms instead of 200 before it sends a lost segment again, never longer than a second, and tries 30 times:
    /// many losses fit into a short time. Needs Linux 6.15.
    pub impatient: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            backends: 4,
            client_links: 1,
            rate_mbit: None,
            offload: Offload::All,
            accounted: false,
            v6: false,
            impatient: false,
        }
    }
}

/// Bytes that crossed links, with all headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crossed {
    /// Left the balancer.
    pub from_balancer: u64,
    /// Reached the balancer.
    pub to_balancer: u64,
    /// Reached clients.
    pub to_clients: u64,
}

/// The namespaces and links. Dropping it removes them.
#[derive(Debug)]
pub struct Site {
    guard: Guard,
    clients: Vec<Place>,
    balancer: Place,
    backends: Vec<Place>,
    router: Place,
    /// What shapes the links.
    shaper: Option<&'static str>,
    /// Kernel threads that handle packets for the balancer.
    napi: Vec<u32>,
}

impl Site {
    /// Makes it.
    pub fn new(plan: Plan) -> Result<Self, LabError> {
        let guard = Guard::new();
        let address = |net: u8| if plan.v6 { v6(net, 2).into() } else { IpAddr::V4(v4(net, 2)) };
        let router = guard.namespace("router", Ipv4Addr::UNSPECIFIED)?;
        let name = guard.name();
        let forward = "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1";
        call("ip", &format!("netns exec {name}-router sysctl -qw {forward}"))?;
        let balancer = guard.namespace("balancer", address(BALANCER_NET))?;
        let mut shaper = None;
        link(name, "balancer", BALANCER_NET, plan, &mut shaper)?;
        let mut backends = Vec::new();
        for number in 0..plan.backends {
            let part = format!("backend{number}");
            backends.push(guard.namespace(&part, address(BACKEND_NET + number))?);
            link(name, &part, BACKEND_NET + number, plan, &mut shaper)?;
        }
        let client = guard.namespace("client", address(CLIENT_NET))?;
        let mut clients = Vec::new();
        for number in 0..plan.client_links {
            clients.push(Place { ip: Some(address(CLIENT_NET + number)), ..client.clone() });
            link(name, "client", CLIENT_NET + number, plan, &mut shaper)?;
        }
        if plan.impatient {
            // Tries follow each other so fast that the usual number of them would be over within some seconds.
            let settings = "net.ipv4.tcp_rto_min_us=10000 net.ipv4.tcp_rto_max_ms=1000 \
                            net.ipv4.tcp_syn_retries=30 net.ipv4.tcp_synack_retries=30 net.ipv4.tcp_retries2=30";
            let backends = (0..plan.backends).map(|number| format!("backend{number}"));
            for part in backends.chain(["balancer".to_owned(), "client".to_owned()]) {
                call("ip", &format!("netns exec {name}-{part} sysctl -qw {settings}"))?;
            }
        }
        let mut site = Self { clients, balancer, backends, router, shaper, napi: Vec::new(), guard };
        site.napi = if plan.accounted { site.account()? } else { Vec::new() };
        Ok(site)
    }

    /// The client at a link; there are as many as the plan says.
    pub fn client(&self, link: usize) -> &Place {
        &self.clients[link % self.clients.len()]
    }

    /// Where the balancer runs.
    pub fn balancer(&self) -> &Place {
        &self.balancer
    }

    /// Where the backends run.
    pub fn backends(&self) -> &[Place] {
        &self.backends
    }

    /// Where packets are forwarded.
    pub fn router(&self) -> &Place {
        &self.router
    }

    /// The queueing discipline that shapes the links.
    pub fn shaper(&self) -> Option<&'static str> {
        self.shaper
    }

    /// What the namespaces are called, without `-client` and so on.
    pub fn name(&self) -> &str {
        self.guard.name()
    }

    /// The name of an interface in the namespace of a part: of the only one, unless that is the client's.
    pub fn interface(&self) -> &'static str {
        "eth0"
    }

    /// What has crossed so far.
    pub fn crossed(&self) -> Result<Crossed, LabError> {
        let mut all = Crossed::default();
        for counter in self.router.within(counters)? {
            if counter.net == BALANCER_NET {
                // Seen from the router.
                (all.from_balancer, all.to_balancer) = (counter.received, counter.sent);
            } else if counter.net >= CLIENT_NET {
                all.to_clients += counter.sent;
            }
        }
        Ok(all)
    }

    /// Drops this share of the packets that cross the router from now on, each way; of all, or only of those from and to
    /// clients. Until the result is dropped.
    pub fn lose(&self, share: f64, of_all: bool) -> Result<Loss, LabError> {
        self.router.within(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).doing(|| "make a socket".to_owned())?;
            let mut hooks = Vec::new();
            for counter in counters()? {
                let index = name_to_index(&socket, &counter.interface).doing(|| counter.interface.clone())?;
                match (of_all, counter.net >= CLIENT_NET) {
                    (true, _) => hooks.push((index, Hook::Ingress)),
                    (false, true) => hooks.extend([(index, Hook::Ingress), (index, Hook::Egress)]),
                    (false, false) => {}
                }
            }
            Loss::at(&hooks, share)
        })
    }

    /// Segments that the balancer and the backends have sent again.
    pub fn retransmitted(&self) -> Result<u64, LabError> {
        self.backends.iter().chain([&self.balancer]).map(|place| place.within(retransmitted)).sum()
    }

    /// Removes it, and makes sure that it is gone.
    pub fn remove(self) -> Result<(), LabError> {
        let name = self.name().to_owned();
        drop(self);
        let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let left: Vec<String> = names.filter(|it| it.starts_with(&format!("{name}-"))).collect();
        match left.is_empty() {
            true => Ok(()),
            false => Err(LabError::Leftover { name: "a site".to_owned(), what: left.join(", ") }),
        }
    }

    /// CPU time of the kernel threads that handle the balancer's packets; needs [`Plan::accounted`].
    pub fn balancer_kernel_cpu(&self) -> Duration {
        self.napi.iter().map(|pid| proc::cpu(*pid)).sum()
    }

    /// Packets over the balancer's link are handled by threads at both ends: the balancer's does its receiving, and the
    /// router's keeps what happens behind the link from being done on the balancer's time.
    fn account(&self) -> Result<Vec<u32>, LabError> {
        let before = napi_threads();
        let threaded = |part: &str, interface: &str| {
            let shell = format!("echo 1 > /sys/class/net/{interface}/threaded");
            let output = Command::new("ip")
                .args(["netns", "exec", &format!("{}-{part}", self.name()), "sh", "-c", &shell])
                .output()
                .doing(|| "run ip".to_owned())?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let failed = || LabError::Failed { command: shell, status: output.status.to_string(), output: said };
            if output.status.success() { Ok(()) } else { Err(failed()) }
        };
        threaded("balancer", "eth0")?;
        let new = || {
            let new: Vec<u32> = napi_threads().into_iter().filter(|pid| !before.contains(pid)).collect();
            (!new.is_empty()).then_some(new)
        };
        let found = wait::until("a kernel thread for the balancer's packets", Duration::from_secs(2), new)?;
        threaded("router", &format!("net{BALANCER_NET}"))?;
        Ok(found)
    }
}

fn v4(net: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, net, host)
}

fn v6(net: u8, host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 2, 0, net.into(), 0, 0, 0, host.into())
}

/// A link between a part and the router. Clients have several.
fn link(name: &str, part: &str, net: u8, plan: Plan, shaper: &mut Option<&'static str>) -> Result<(), LabError> {
    let here = if net >= CLIENT_NET { format!("eth{}", net - CLIENT_NET) } else { "eth0".to_owned() };
    let there = format!("net{net}");
    let ends = format!("{here} mtu 1500 type veth peer name {there} mtu 1500 netns {name}-router");
    call("ip", &format!("-n {name}-{part} link add {ends}"))?;
    for (part, interface, host) in [(part, &here, 2), ("router", &there, 1)] {
        call("ip", &format!("-n {name}-{part} addr add {}/24 dev {interface}", v4(net, host)))?;
        call("ip", &format!("-n {name}-{part} addr add {}/64 dev {interface} nodad", v6(net, host)))?;
        call("ip", &format!("-n {name}-{part} link set {interface} up"))?;
        call("ip", &format!("netns exec {name}-{part} ethtool -K {interface} {}", plan.offload.features()))?;
        if let Some(rate) = plan.rate_mbit {
            *shaper = Some(shape(&format!("{name}-{part}"), interface, rate)?);
        }
    }
    for (family, host, gateway) in
        [("", v4(net, 2).to_string(), v4(net, 1).to_string()), ("-6 ", v6(net, 2).to_string(), v6(net, 1).to_string())]
    {
        let table = if net >= CLIENT_NET { format!("table {net}") } else { String::new() };
        call("ip", &format!("{family}-n {name}-{part} route add default via {gateway} dev {here} {table}"))?;
        if net >= CLIENT_NET {
            call("ip", &format!("{family}-n {name}-{part} rule add from {host} table {net}"))?;
        }
        // Whoever does not say from which address.
        if net == CLIENT_NET {
            call("ip", &format!("{family}-n {name}-{part} route add default via {gateway} dev {here}"))?;
        }
    }
    Ok(())
}

/// Shapes what an interface sends by the first discipline that this kernel has.
fn shape(namespace: &str, interface: &str, rate_mbit: u32) -> Result<&'static str, LabError> {
    let device = format!("netns exec {namespace} tc qdisc add dev {interface}");
    let tbf = call("ip", &format!("{device} root tbf rate {rate_mbit}mbit burst {BURST} limit {QUEUE}"));
    let Err(refused) = tbf else { return Ok("tbf") };
    let class = format!("netns exec {namespace} tc class add dev {interface} parent 1: classid 1:1");
    let htb = call("ip", &format!("{device} root handle 1: htb default 1"))
        .and_then(|()| call("ip", &format!("{class} htb rate {rate_mbit}mbit burst {BURST} cburst {BURST}")))
        .and_then(|()| call("ip", &format!("{device} parent 1:1 bfifo limit {QUEUE}")));
    if htb.is_ok() {
        return Ok("htb");
    }
    match call("ip", &format!("{device} root netem rate {rate_mbit}mbit limit 1000")) {
        Ok(()) => Ok("netem"),
        Err(_) => Err(refused),
    }
}

/// Of an interface of the router.
struct Counter {
    interface: String,
    net: u8,
    received: u64,
    sent: u64,
}

/// Those of the calling thread's namespace, which is the router's.
fn counters() -> Result<Vec<Counter>, LabError> {
    let path = "/proc/thread-self/net/dev";
    let text = std::fs::read_to_string(path).doing(|| format!("read {path}"))?;
    let counter = |line: &str| {
        let (interface, rest) = line.trim().split_once(':')?;
        let fields: Vec<u64> = rest.split_ascii_whitespace().filter_map(|field| field.parse().ok()).collect();
        Some(Counter {
            interface: interface.to_owned(),
            net: interface.strip_prefix("net")?.parse().ok()?,
            received: *fields.first()?,
            sent: *fields.get(8)?,
        })
    };
    Ok(text.lines().filter_map(counter).collect())
}

/// `RetransSegs` of the calling thread's namespace.
fn retransmitted() -> Result<u64, LabError> {
    let path = "/proc/thread-self/net/snmp";
    let text = std::fs::read_to_string(path).doing(|| format!("read {path}"))?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut both = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
    Ok(both.find(|(name, _)| *name == "RetransSegs").and_then(|(_, value)| value.parse().ok()).unwrap_or(0))
}

fn napi_threads() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let napi = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        name.starts_with("napi/").then_some(pid)
    };
    entries.filter_map(napi).collect()
}
