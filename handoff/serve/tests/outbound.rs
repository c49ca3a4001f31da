//! The way out goes wrong at each step: the client notices a delay at most, or in doubt a reset.

mod common;

use common::fake::{self, Answer, Fault};
use common::{Site, eventually};
use underdeck_handoff_control::message::{Body, Refusal};

const QUICK: &str = "policy = \"pin\"\nstep-ms = 2000\n";

/// Backend 0 goes wrong, backend 1 does not; the policy prefers the first as long as both have nothing to do.
fn goes_on(fault: Fault, reason: &str) {
    let site = Site::new(2);
    let heard = fake::backend(&site, fault);
    let backend = site.start_backend(1, QUICK);
    let balancer = site.start_balancer(QUICK);
    balancer.sees(2);
    let mut client = site.connect();
    for path in ["/bytes/100000", "/bytes/0", "/bytes/3000000"] {
        assert_eq!(client.get(path).expect("no reset"), 200, "{fault:?}");
    }
    let report = balancer.report();
    assert_eq!(report.handoffs.aborted.get(reason), Some(&1), "{fault:?}: {:?}", report.handoffs);
    eventually("it went to the other one", || balancer.report().handoffs.out == 1);
    assert_eq!(report.requests, 0, "{fault:?}: nothing was relayed");
    assert!(matches!(heard.recv_timeout(common::PATIENCE).expect("it was asked"), Body::BeginOffload(_)));
    assert_eq!(backend.report().connections.away, 1);
    drop(client);
    balancer.is_clean();
    backend.is_clean();
}

#[test]
fn a_backend_that_refuses_is_not_the_last_one() {
    for (refusal, reason) in [
        (Refusal::Full, "full"),
        (Refusal::Steering, "steering"),
        (Refusal::Snapshot, "snapshot"),
        (Refusal::Transfer, "transfer"),
    ] {
        goes_on(Fault::Refuses(refusal), reason);
    }
}

#[test]
fn a_backend_that_does_not_answer_begin_offload() {
    goes_on(Fault::SilentAtBegin, "time_out");
}

#[test]
fn a_backend_that_dies_after_begin_offload() {
    goes_on(Fault::DiesAtBegin, "peer_lost");
}

#[test]
fn a_backend_that_nothing_leads_to() {
    goes_on(Fault::ReadyNowhere, "redirect");
}

#[test]
fn an_answer_about_another_transfer() {
    goes_on(Fault::AnswersAnother, "redirect");
}

#[test]
fn a_backend_that_refuses_lb_ready() {
    goes_on(Fault::RefusesLbReady, "snapshot");
}

#[test]
fn a_backend_that_dies_before_lb_ready_and_has_not_taken_it() {
    goes_on(Fault::DiesAtReady(Some(Answer::NotTaken)), "peer_lost");
}

#[test]
fn a_backend_that_does_not_confirm_and_has_not_taken_it() {
    goes_on(Fault::SilentAtLbReady(Some(Answer::NotTaken)), "time_out");
}

#[test]
fn in_doubt_the_client_is_told() {
    for fault in [
        Fault::DiesAtReady(Some(Answer::Unknown)),
        Fault::DiesAtReady(None),
        Fault::SilentAtLbReady(Some(Answer::Unknown)),
        Fault::SilentAtLbReady(None),
    ] {
        let site = Site::new(2);
        let heard = fake::backend(&site, fault);
        let _backend = site.start_backend(1, QUICK);
        let balancer = site.start_balancer(QUICK);
        balancer.sees(2);
        let mut client = site.connect();
        client.ask("/bytes/1000").expect("it listens");
        client.is_reset();
        assert_eq!(balancer.aborted("in_doubt"), 1, "{fault:?}");
        let asked = common::all(&heard).find(|body| matches!(body, Body::Abort(0)));
        assert!(asked.is_some(), "{fault:?}: it was asked first");
        balancer.is_clean();
        // As long as the broken one rests.
        eventually("others go on", || site.connect().get("/bytes/1000").is_ok_and(|status| status == 200));
    }
}

#[test]
fn without_any_other_backend_the_answer_is_relayed() {
    let site = Site::new(1);
    let _heard = fake::backend(&site, Fault::Refuses(Refusal::Full));
    let balancer = site.start_balancer(QUICK);
    balancer.sees(1);
    let mut client = site.connect();
    assert_eq!(client.get("/bytes/1000").expect("an answer"), 503, "nobody listens at the port of the backend");
    let listener = site.backends[0].on(|| std::net::TcpListener::bind("10.0.0.3:80")).expect("the port is free");
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().expect("the balancer comes");
        let mut bytes = [0; 1000];
        assert!(stream.read(&mut bytes).expect("a request") > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("it reads");
    });
    assert_eq!(site.connect().get("/bytes/0").expect("an answer"), 200);
    eventually("it is counted", || balancer.report().requests == 1);
}

#[test]
fn a_backend_that_fails_rests() {
    let site = Site::new(2);
    let heard = fake::backend(&site, Fault::Refuses(Refusal::Full));
    let _backend = site.start_backend(1, QUICK);
    let balancer = site.start_balancer(QUICK);
    balancer.sees(2);
    let mut clients: Vec<_> = (0..20).map(|_| site.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/bytes/1000").expect("no reset"), 200);
    }
    // It has no load, so without a rest it would have been asked each time.
    let asked = heard.try_iter().count();
    assert!((1..10).contains(&asked), "{asked}");
    eventually("all are away", || balancer.report().handoffs.out == 20);
}
