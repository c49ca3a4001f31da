//! Rules of the classifier flower where the kernel has it; where not, it says so.

#[path = "../../tcp/tests/common/mod.rs"]
mod common;

use std::process::{Command, Output};

use common::load::talk;
use common::{Host, Site, eventually, stream};
use underdeck_handoff_steer::{Flow, Flower, Options, Slow, SlowError, Steer, Target};
use underdeck_handoff_tcp::{Snapshot, freeze, thaw};

fn tc(host: &Host, command: &str) -> Output {
    host.on(|| Command::new("tc").args(command.split_whitespace()).output()).expect("iproute2")
}

fn shown(host: &Host, command: &str) -> String {
    String::from_utf8_lossy(&tc(host, command).stdout).into_owned()
}

/// Flower at the balancer's eth0. None, and a line that says why, if this kernel lacks it.
fn flower(site: &Site) -> Option<Flower> {
    // SAFETY: a C string.
    let interface = site.balancer.on(|| unsafe { libc::if_nametoindex(c"eth0".as_ptr()) });
    match site.balancer.on(|| Flower::attach(interface, false)) {
        Ok(flower) => Some(flower),
        Err(SlowError::Unsupported(why)) => {
            assert!(why.contains("cls_flower"), "{why}");
            assert!(!shown(&site.balancer, "qdisc show dev eth0").contains("clsact"), "nothing is left");
            // The kernel must really lack it: iproute2 asks for the same.
            tc(&site.balancer, "qdisc add dev eth0 clsact");
            let rule = "filter add dev eth0 ingress protocol ip flower ip_proto tcp action pedit ex munge ip ttl set 9 \
                        pipe action csum ip pipe action mirred egress redirect dev eth0";
            assert!(!tc(&site.balancer, rule).status.success(), "tc can, and this cannot: {why}");
            eprintln!("not exercised: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A connection goes to the backend by a rule of flower alone, and every byte arrives.
#[test]
fn flower_redirects_a_connection() {
    for (routed, v6) in [(false, false), (true, true)] {
        let site = Site::new(routed);
        // What one host hands to the other stays what it is on a wire: no card puts packets together here.
        for host in [&site.client, &site.balancer, &site.backend] {
            for feature in ["tso", "gso", "gro"] {
                host.run(&format!("ethtool -K eth0 {feature} off"));
            }
        }
        let Some(flower) = flower(&site) else { return };
        let slow = site.balancer.on(|| Slow::start(Box::new(flower), 4));
        let backend = site.backend.on(|| Steer::attach(&["eth0"], &Options::default())).unwrap();
        let (client, server) = site.connect(v6);
        let flow = Flow { local: server.local_addr().unwrap(), peer: server.peer_addr().unwrap() };
        let at = site.address(3, v6, 8080);
        // Flower needs a next hop that the kernel knows.
        let target = site.balancer.on(|| {
            let _ = std::net::TcpStream::connect(at);
            Target::resolve(at).unwrap()
        });
        assert!(slow.insert(&flow, &target));
        eventually("the rule stands", || slow.is_installed(&flow));
        assert!(shown(&site.balancer, "filter show dev eth0 ingress").contains("flower"));

        let frozen = freeze(server.into(), b"").unwrap();
        let snapshot = Snapshot::decode(&frozen.snapshot().encode()).unwrap();
        frozen.release();
        let thawing = site.backend.on(|| thaw(&snapshot, at)).unwrap();
        let there = Flow { local: at, peer: flow.peer };
        backend.rewrite_source(&there, flow.local).unwrap();
        let server = stream(site.backend.on(|| thawing.finish()).unwrap());
        talk(&client, &server, 300_000, 1);

        assert!(slow.withdraw(&flow));
        assert!(!shown(&site.balancer, "filter show dev eth0 ingress").contains("flower"), "withdrawn");
        site.balancer.on(|| drop(slow));
        assert!(!shown(&site.balancer, "qdisc show dev eth0").contains("clsact"), "nothing is left");
        drop(backend);
    }
}

#[test]
fn what_an_earlier_process_has_left_goes() {
    let site = Site::new(false);
    let Some(first) = flower(&site) else { return };
    let slow = site.balancer.on(|| Slow::start(Box::new(first), 4));
    let at = site.address(3, false, 8080);
    let target = site.balancer.on(|| {
        let _ = std::net::TcpStream::connect(at);
        Target::resolve(at).unwrap()
    });
    let flow = Flow { local: site.address(2, false, 80), peer: site.address(1, false, 4000) };
    assert!(slow.insert(&flow, &target));
    eventually("the rule stands", || slow.is_installed(&flow));
    // As a process that was killed.
    std::mem::forget(slow);
    let second = flower(&site).expect("the first one worked");
    assert!(!shown(&site.balancer, "filter show dev eth0 ingress").contains("flower"));
    site.balancer.on(|| drop(second));
}
