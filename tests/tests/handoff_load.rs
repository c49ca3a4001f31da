//! Connections go to backends and come back under load, and no client sees it: every body is hashed, no connection
//! breaks or hangs, and nothing is left.
//!
//! `UNDERDECK_HANDOFFS=20000` sets how many handoffs (out and back) there are at least; by default as many as a test run
//! can afford. Needs root and the server (`cargo build --release`).

use std::path::Path;
use std::process::Command;

use underdeck_lab::download::{Client, Downloads, Object, Seen};
use underdeck_lab::fleet::{Fleet, Member, SETTLE, Setup};
use underdeck_lab::site::{Plan, Site};
use underdeck_lab::tools::Tool;

/// Without the environment variable: out and back.
const HANDOFFS: u64 = 3000;

/// All phases together make at least so many.
fn wanted() -> u64 {
    std::env::var("UNDERDECK_HANDOFFS").map_or(HANDOFFS, |text| text.parse().expect("UNDERDECK_HANDOFFS is a number"))
}

fn root() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|about| std::os::unix::fs::MetadataExt::uid(&about) == 0);
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    root
}

/// Many small ones, some large ones, and one that is larger than all queues on its way.
fn objects(folder: &Path) -> Vec<Object> {
    let sizes = [0, 1, 1000, 4096, 65_535, 0, 1448, 20_000, 262_144, 100, 1 << 20, 5000];
    let mut all: Vec<Object> = (0..5)
        .flat_map(|round| sizes.iter().map(move |size| (round, *size)))
        .map(|(round, size)| Object::file(folder, size, round).expect("a file"))
        .collect();
    all.push(Object::file(folder, 8 << 20, 1).expect("a file"));
    all
}

struct Phase {
    policy: &'static str,
    v6: bool,
    per_connection: usize,
    pipelined: usize,
    /// Handoffs, out and back, that a request causes at least, in percent.
    each: u64,
}

/// Downloads until there were at least `handoffs`, and checks what can be checked.
fn phase(it: &Phase, handoffs: u64) -> u64 {
    let site = Site::new(Plan { client_links: 2, v6: it.v6, ..Plan::default() }).expect("a site");
    let folder = tempfile::tempdir().expect("a folder");
    let objects = objects(folder.path());
    // A machine that is busy is no sign of a dead backend.
    let (step_ms, dead_after_ms) = (10_000, Some(10_000));
    let setup = Setup { root: Some(folder.path().to_owned()), step_ms, dead_after_ms, ..Setup::new(it.policy) };
    let fleet = Fleet::start(&site, &setup).expect("a fleet");
    let client = |number: usize, slow: bool, objects: &[Object]| Client {
        slow,
        place: site.client(number).clone(),
        objects: objects.to_vec(),
        per_connection: it.per_connection,
        pipelined: it.pipelined,
        ..Client::new(fleet.addr())
    };
    let requests = handoffs * 100 / it.each;
    let downloads =
        Downloads::start((0..16).map(|number| client(number, number >= 12, &objects)).collect(), Some(requests));
    // Beside the many, one that downloads a large body again and again.
    let large = vec![Object::file(folder.path(), 64 << 20, 1).expect("a file")];
    let beside = Downloads::start(vec![client(0, false, &large)], Some(requests.div_ceil(1000).max(2)));
    curl(&site, &fleet, &objects);
    wrk(&site, &fleet, &objects);
    for (seen, requests) in [(downloads.join(), requests), (beside.join(), requests.div_ceil(1000).max(2))] {
        clean(&seen, requests);
    }
    fleet.settled(SETTLE).expect("no connection and no rule is left");
    let balancer = fleet.status(Member::Balancer).expect("a status");
    assert_eq!(balancer["handoffs"]["aborted"], serde_json::json!({}), "{balancer}");
    let [out, back] = ["handoffs.out", "handoffs.back"].map(|path| fleet.count(Member::Balancer, path));
    eprintln!("{}: {requests} requests, {out} out, {back} back", it.policy);
    assert!(out + back >= handoffs, "{balancer}");
    fleet.stop().expect("all end");
    site.remove().expect("no namespace is left");
    out + back
}

fn clean(seen: &Seen, requests: u64) {
    assert_eq!((seen.failed, seen.mismatches, seen.responses), (0, 0, requests), "{seen:?}");
}

/// A client that others wrote: one connection, kept alive, all objects in a row.
fn curl(site: &Site, fleet: &Fleet, objects: &[Object]) {
    let mut command = Command::new(Tool::Curl.path().expect("curl"));
    command.args(["--silent", "--show-error", "--fail", "--max-time", "60"]);
    command.args(objects.iter().map(|object| format!("http://{}{}", fleet.addr(), object.path())));
    site.client(0).apply(&mut command);
    let output = command.output().expect("curl runs");
    let wanted: Vec<u8> = objects.iter().flat_map(|object| object.bytes()).copied().collect();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == wanted, "{} bytes instead of {}, or other ones", output.stdout.len(), wanted.len());
}

/// Another one, for two seconds: it does not look at bodies, but counts what breaks.
fn wrk(site: &Site, fleet: &Fleet, objects: &[Object]) {
    let mut command = Command::new("wrk");
    command.args(["--threads", "2", "--connections", "8", "--duration", "2s", "--timeout", "60s"]);
    command.arg(format!("http://{}{}", fleet.addr(), objects[2].path()));
    site.client(1).apply(&mut command);
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("not exercised: wrk is not installed");
            return;
        }
        output => output.expect("wrk runs"),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("Requests/sec"), "{said}");
    assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
}

#[test]
fn no_client_notices_that_its_connection_moves() {
    if !root() {
        return;
    }
    let phases = [
        Phase { policy: "per-request 1", v6: false, per_connection: 0, pipelined: 1, each: 150 },
        Phase { policy: "per-request 1", v6: true, per_connection: 50, pipelined: 7, each: 150 },
        Phase { policy: "shard", v6: false, per_connection: 100, pipelined: 3, each: 100 },
        Phase { policy: "pin", v6: true, per_connection: 2, pipelined: 2, each: 50 },
    ];
    let all: u64 = phases.iter().map(|it| phase(it, wanted() / phases.len() as u64)).sum();
    assert!(all >= wanted());
}
