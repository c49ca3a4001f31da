//! Nearly a third of all packets are lost, and still every handoff ends as promised. Needs root and the server
//! (`cargo build --release`).

use std::time::Duration;

use underdeck_lab::download::{Client, Downloads, Object, Seen};
use underdeck_lab::fleet::{Fleet, Member, Setup};
use underdeck_lab::site::{Plan, Site};

const SMALL: [usize; 4] = [0, 1000, 5000, 20_000];
const LARGE: [usize; 5] = [0, 1000, 65_536, 300_000, 1 << 20];
/// After so much loss, the time-outs of TCP have grown: the last segments of a connection may wait that long.
const SETTLE: Duration = Duration::from_secs(60);

/// Downloads while this share of packets is lost, of all or only of those from and to clients.
fn downloads(share: f64, of_all: bool, sizes: &[usize], requests: u64) -> (Seen, serde_json::Value) {
    let site = Site::new(Plan { impatient: true, ..Plan::default() }).expect("a site");
    let folder = tempfile::tempdir().expect("a folder");
    let objects: Vec<Object> =
        sizes.iter().map(|size| Object::file(folder.path(), *size, 1).expect("a file")).collect();
    // So many losses in a row are no sign of a dead backend.
    let dead_after_ms = Some(5000);
    // Without losses a step takes as long as the machine is busy.
    let step_ms = if of_all { 1000 } else { 10_000 };
    let root = Some(folder.path().to_owned());
    // Within 20 s a segment is sent seven times; that all of them are lost happens once in 5000, and is nobody's fault.
    let patience = Duration::from_secs(if of_all { 90 } else { 20 });
    let setup = Setup { step_ms, dead_after_ms, root, ..Setup::new("per-request 1") };
    let fleet = Fleet::start(&site, &setup).expect("a fleet");
    let client = |number: usize| Client {
        place: site.client(number).clone(),
        objects: objects.clone(),
        per_connection: 10,
        pipelined: 1 + number % 3,
        patience,
        ..Client::new(fleet.addr())
    };
    let loss = site.lose(share, of_all).expect("packets are lost");
    let seen = Downloads::start((0..32).map(client).collect(), Some(requests)).join();
    drop(loss);
    let again = site.retransmitted().expect("counters");
    assert!(again as f64 > requests as f64 * share, "packets were lost, but only {again} sent again");
    let mut status = fleet.status(Member::Balancer).expect("a status");
    status["times"] = serde_json::Value::Null;
    status["all_reset"] = fleet.sum("reset").into();
    let (handoffs, reset) = (&status["handoffs"], &status["all_reset"]);
    eprintln!("{} downloads, {} broken {:?}, {handoffs}, {reset} reset", seen.responses, seen.failed, seen.reasons);
    fleet.settled(SETTLE).expect("no connection and no rule is left");
    fleet.stop().expect("all end");
    site.remove().expect("no namespace is left");
    (seen, status)
}

/// Of packets from and to clients only.
fn every_handoff_succeeds(share: f64, sizes: &[usize], requests: u64) {
    let (seen, status) = downloads(share, false, sizes, requests);
    assert_eq!((seen.failed, seen.mismatches, seen.responses), (0, 0, requests), "{seen:?}");
    assert_eq!(status["handoffs"]["aborted"], serde_json::json!({}), "{status}");
    assert!(status["handoffs"]["out"].as_u64() >= Some(requests), "{status}");
}

#[test]
fn every_handoff_succeeds_when_nearly_a_third_of_the_clients_packets_is_lost() {
    every_handoff_succeeds(0.3, &SMALL, 400);
}

#[test]
fn every_handoff_succeeds_when_some_of_the_clients_packets_are_lost() {
    every_handoff_succeeds(0.03, &LARGE, 600);
}

#[test]
fn connections_go_on_or_end_with_a_reset_when_packets_of_control_connections_are_lost_too() {
    let requests = 200;
    let (seen, status) = downloads(0.3, true, &SMALL, requests);
    // A download is right, or is refused because no backend could be reached, or its connection was reset because nobody
    // could know who had it. A reset is sent without hearing whether it arrives: a client whose reset was lost waits.
    assert_eq!(seen.mismatches, 0, "{seen:?}");
    let said = |what: &str| seen.reasons.iter().filter(|reason| reason.contains(what)).count() as u64;
    let (reset, waits, refused) = (said("reset by peer"), said("hangs"), said("status 503"));
    assert_eq!(reset + waits + refused, seen.reasons.len() as u64, "{seen:?} {status}");
    assert!(Some(reset + waits) <= status["all_reset"].as_u64(), "{seen:?} {status}");
    assert!(seen.responses > requests / 2, "{seen:?} {status}");
}
