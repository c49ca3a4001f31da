//! A connection moves from a balancer to a backend and back, while its client talks on.

#[path = "../../tcp/tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use common::journey::{attach, back, out};
use common::load::talk;
use common::{Site, eventually};
use underdeck_handoff_steer::{Action, Attachment, Error, Flow, Options, Steer, Target};

#[test]
fn a_connection_goes_out_and_comes_back() {
    for (routed, v6, attachment) in [
        (false, false, Attachment::Auto),
        (false, true, Attachment::Tcx),
        (true, false, Attachment::Clsact),
        (true, true, Attachment::Tcx),
    ] {
        let site = Site::new(routed);
        let steers = attach(&site, attachment);
        let (client, server) = site.connect(v6);
        talk(&client, &server, 100_000, 1);
        let local = server.local_addr().unwrap();
        // Another port than the balancer's: nothing but the steering makes up for it.
        let (server, there) = out(&site, &steers, server, site.address(3, v6, 8080));
        talk(&client, &server, 3_000_000, 3);
        let redirected = steers.balancer.ingress_counters(&Flow { local, peer: there.peer }).unwrap();
        assert!(redirected.bytes > 3_000_000, "{redirected:?}");
        let rewritten = steers.backend.source_counters(&there).unwrap();
        assert!(rewritten.bytes > 3_000_000, "{rewritten:?}");
        assert!(!rewritten.fin && !rewritten.rst);

        let server = back(&site, &steers, server, &there, local);
        talk(&client, &server, 3_000_000, 5);
        assert!(steers.balancer.rules().is_empty() && steers.backend.rules().is_empty());

        drop(server);
        assert_eq!((&client).read(&mut [0]).unwrap(), 0, "an ordinary close");
    }
}

#[test]
fn a_blocked_packet_arrives_after_the_block() {
    let site = Site::new(false);
    let steers = attach(&site, Attachment::Auto);
    let (mut client, mut server) = site.connect(false);
    let flow = Flow { local: server.local_addr().unwrap(), peer: server.peer_addr().unwrap() };
    steers.balancer.block(&flow).unwrap();
    client.write_all(b"ping").unwrap();
    eventually("the packet is dropped", || steers.balancer.ingress_counters(&flow).unwrap().packets > 0);
    assert_eq!(common::queued(&server.as_fd()).0, 0, "nothing has arrived");
    assert!(steers.balancer.remove_ingress(&flow).unwrap().unwrap().packets > 0);
    let mut four = [0; 4];
    server.read_exact(&mut four).unwrap();
    assert_eq!(&four, b"ping", "by retransmission");
}

#[test]
fn rules_are_bounded_and_told_apart() {
    let site = Site::new(false);
    let steer = site.balancer.on(|| Steer::attach(&["eth0"], &Options { capacity: 3, ..Options::default() })).unwrap();
    let flow = |port| Flow { local: site.address(2, false, 80), peer: site.address(1, false, port) };
    for port in 1..=3 {
        steer.block(&flow(port)).unwrap();
    }
    let error = steer.block(&flow(4)).unwrap_err();
    assert!(matches!(error, Error::Full { limit: 3 }), "{error}");
    let target = Target { address: site.address(3, false, 80), interface: 1 };
    steer.redirect(&flow(2), &target).expect("a rule that is replaced needs no room");
    assert_eq!(steer.rules()[1].action, Action::Redirect(target));
    assert!(steer.remove(&flow(1)).unwrap());
    assert!(!steer.remove(&flow(1)).unwrap());
    steer.rewrite_source(&flow(1), site.address(3, false, 80)).unwrap();
    let error = steer.rewrite_source(&flow(1), site.address(3, false, 81)).unwrap_err();
    assert!(matches!(error, Error::Exists(_)), "{error}");
    let mixed = Flow { local: site.address(2, false, 80), peer: site.address(1, true, 80) };
    assert!(matches!(steer.block(&mixed).unwrap_err(), Error::Family(..)));
}

#[test]
fn targets_are_looked_up() {
    let site = Site::new(true);
    let resolve = |address: SocketAddr| site.balancer.on(|| Target::resolve(address));
    assert!(resolve(site.address(3, true, 80)).is_ok());
    assert!(matches!(resolve(site.address(2, false, 80)).unwrap_err(), Error::LocalTarget(_)));
    site.balancer.run("ip route del default");
    assert!(matches!(resolve(site.address(3, false, 80)).unwrap_err(), Error::NoRoute { .. }));
    let none = site.balancer.on(|| Steer::attach(&["eth7"], &Options::default())).unwrap_err();
    assert!(matches!(none, Error::NoInterface(_)), "{none}");
}
