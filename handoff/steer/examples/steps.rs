//! What each step of a handoff costs, without the messages between the hosts: 1 000 connections go from a balancer to a
//! backend, in network namespaces of this program's own. As root:
//! `cargo run --release -p underdeck-handoff-steer --example steps`.

#[path = "../../tcp/tests/common/mod.rs"]
mod common;

use std::net::TcpStream;
use std::time::Instant;

use common::{Host, Site};
use underdeck_handoff_steer::{Flow, Options, Steer, Target};
use underdeck_handoff_tcp::{Snapshot, freeze, thaw};

const ROUNDS: usize = 1000;
const STEPS: [&str; 9] =
    ["block", "freeze", "encode", "decode", "thaw", "rewrite_source", "redirect", "release", "finish"];
const THAW: usize = 4;

struct Bench {
    site: Site,
    balancer: Steer,
    backend: Steer,
    target: Target,
}

fn main() {
    let site = Site::new(false);
    let attach = |host: &Host| host.on(|| Steer::attach(&["eth0"], &Options::default()).expect("root"));
    let (balancer, backend) = (attach(&site.balancer), attach(&site.backend));
    let at = site.address(3, false, 80);
    let target = site.balancer.on(|| Target::resolve(at).expect("it is on the same segment"));
    let bench = Bench { site, balancer, backend, target };
    let mut times: Vec<[u64; STEPS.len()]> = Vec::new();
    for _ in 0..ROUNDS {
        let (_client, server) = bench.site.connect(false);
        times.push(bench.hand_over(server));
    }
    println!("{:>16}  {:>8}  {:>8}  (µs, {ROUNDS} connections)", "step", "p50", "p99");
    for (index, step) in STEPS.iter().enumerate() {
        print(step, times.iter().map(|steps| steps[index]).collect());
    }
    print("all", times.iter().map(|steps| steps.iter().sum()).collect());
}

fn print(step: &str, mut nanoseconds: Vec<u64>) {
    nanoseconds.sort_unstable();
    let at = |share: f64| nanoseconds[(nanoseconds.len() as f64 * share) as usize] as f64 / 1000.0;
    println!("{step:>16}  {:>8.1}  {:>8.1}", at(0.5), at(0.99));
}

impl Bench {
    /// The nanoseconds of each step.
    fn hand_over(&self, server: TcpStream) -> [u64; STEPS.len()] {
        let flow =
            Flow { local: server.local_addr().expect("connected"), peer: server.peer_addr().expect("connected") };
        let there = Flow { local: self.target.address, peer: flow.peer };
        let (mut times, mut step) = ([0; STEPS.len()], 0);
        let mut last = Instant::now();
        let mut lap = || {
            times[step] = last.elapsed().as_nanos() as u64;
            step += 1;
            last = Instant::now();
        };
        self.balancer.block(&flow).expect("there is room");
        lap();
        let frozen = freeze(server.into(), b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").expect("it can be frozen");
        lap();
        let bytes = frozen.snapshot().encode();
        lap();
        let snapshot = Snapshot::decode(&bytes).expect("it was just encoded");
        lap();
        // Entering the namespace takes a thread; only the work in it counts.
        let (thawing, thaw_ns) = self.site.backend.on(|| {
            let start = Instant::now();
            let thawing = thaw(&snapshot, self.target.address).expect("the port is free");
            (thawing, start.elapsed().as_nanos() as u64)
        });
        lap();
        self.backend.rewrite_source(&there, flow.local).expect("there is room");
        lap();
        self.balancer.redirect(&flow, &self.target).expect("there is room");
        lap();
        frozen.release();
        lap();
        let fd = thawing.finish().expect("it can be finished");
        lap();
        times[THAW] = thaw_ns;
        drop(fd);
        self.backend.remove(&there).expect("the map works");
        self.balancer.remove(&flow).expect("the map works");
        times
    }
}
