//! Limits, policies, and clients that do not wait.

mod common;

use std::io::Write;
use std::time::{Duration, Instant};

use common::{Client, Site, eventually};

fn quick(policy: &str) -> String {
    format!("policy = {policy:?}\nstep-ms = 5000\n")
}

#[test]
fn a_client_that_does_not_wait_loses_nothing() {
    let site = Site::new(2);
    let config = quick("per-request 1");
    let backends = [0, 1].map(|number| site.start_backend(number, &config));
    let balancer = site.start_balancer(&config);
    balancer.sees(2);
    let mut client = site.connect();
    let mut writer = client.stream.try_clone().unwrap();
    const REQUESTS: usize = 300;
    // Each request leaves some microseconds after the one before, whatever is answered: into the block of a transfer,
    // behind a request in the same segment, or between.
    let writing = std::thread::spawn(move || {
        for number in 0..REQUESTS {
            writer.write_all(format!("GET /bytes/{} HTTP/1.1\r\nHost: x\r\n\r\n", number * 37).as_bytes()).unwrap();
            let pause = Instant::now() + Duration::from_micros(number as u64 * 7 % 900);
            while Instant::now() < pause {
                std::thread::yield_now();
            }
        }
    });
    for _ in 0..REQUESTS {
        assert_eq!(client.answer().unwrap(), 200);
    }
    writing.join().unwrap();
    let report = balancer.report();
    assert!(report.handoffs.back >= 250, "{:?}", report.handoffs);
    assert_eq!(report.reset, 0);
    drop(client);
    balancer.is_clean();
    backends.iter().for_each(common::Server::is_clean);
}

/// Prints the table of steps (with `--nocapture`; set UNDERDECK_SERVE to a release build of the example).
#[test]
fn one_client_moves_a_thousand_times() {
    let site = Site::new(2);
    let config = quick("per-request 1");
    let backends = [0, 1].map(|number| site.start_backend(number, &config));
    let balancer = site.start_balancer(&config);
    balancer.sees(2);
    let mut client = site.connect();
    for number in 0..1001 {
        assert_eq!(client.get(&format!("/bytes/{number}")).unwrap(), 200);
    }
    eventually("all are counted", || balancer.report().handoffs.out == 1001);
    let report = balancer.report();
    assert_eq!((report.handoffs.back, report.reset, report.handoffs.aborted.len()), (1000, 0, 0), "{report:?}");
    for times in report.times {
        assert_eq!(times.count, 1001);
        println!("{:<14} p50 {:>7.1} us, p99 {:>8.1} us", times.name, times.p50_us, times.p99_us);
    }
    // The sum of all sizes, counted where they were answered and nowhere else.
    eventually("bytes are counted", || backends.iter().map(|one| one.report().direct_bytes).sum::<u64>() == 500_500);
    for report in backends.iter().map(common::Server::report).chain([balancer.report()]) {
        assert_eq!(report.relayed_bytes, 0, "{report:?}");
    }
    drop(client);
    balancer.is_clean();
    backends.iter().for_each(common::Server::is_clean);
}

#[test]
fn many_clients_move_all_the_time() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 150;
    for policy in ["per-request 1", "shard"] {
        let site = Site::new(3);
        let config = quick(policy);
        let backends = [0, 1, 2].map(|number| site.start_backend(number, &config));
        let balancer = site.start_balancer(&config);
        balancer.sees(3);
        let mut first = site.connect();
        eventually("connections move", || {
            let before = balancer.report().handoffs.back;
            (0..10).for_each(|number| assert_eq!(first.get(&format!("/bytes/1/{number}")).unwrap(), 200));
            balancer.report().handoffs.back > before + 3
        });
        drop(first);
        std::thread::scope(|scope| {
            for one in 0..CLIENTS {
                let mut client = site.connect();
                scope.spawn(move || {
                    for number in 0..REQUESTS {
                        let size = (one * 7919 + number * 104_729) % 200_000;
                        assert_eq!(client.get(&format!("/bytes/{size}/{number}")).unwrap(), 200);
                    }
                });
            }
        });
        let report = balancer.report();
        println!("{policy}: {:?}, median {:?} us", report.handoffs, report.handoff_us_p50);
        assert!(report.handoffs.aborted.is_empty() && report.reset == 0, "{policy}: {report:?}");
        let least = if policy == "shard" { REQUESTS * CLIENTS / 2 } else { (REQUESTS - 1) * CLIENTS };
        assert!(report.handoffs.back as usize >= least, "{policy}: {:?}", report.handoffs);
        balancer.is_clean();
        backends.iter().for_each(common::Server::is_clean);
    }
}

/// A client that has sent all its requests and closed its direction.
fn half_closed(site: &Site) -> Client {
    let mut client = site.connect();
    let requests = "GET /bytes/300000 HTTP/1.1\r\nHost: x\r\n\r\n".repeat(4);
    client.stream.write_all(requests.as_bytes()).unwrap();
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    client
}

#[test]
fn half_closed_connections_go_out_and_come_back() {
    let site = Site::new(2);
    let config = quick("per-request 1");
    let backends = [0, 1].map(|number| site.start_backend(number, &config));
    let balancer = site.start_balancer(&config);
    balancer.sees(2);
    let all_answered = |client: &mut Client| {
        for _ in 0..4 {
            assert_eq!(client.answer().unwrap(), 200);
        }
        assert_eq!(client.answer().unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    };
    all_answered(&mut half_closed(&site));
    balancer.is_clean();
    assert_eq!((balancer.report().handoffs.back, balancer.report().reset), (3, 0));

    // Without a loopback device a half-closed connection cannot be restored: it stays where it is. The FIN may arrive
    // behind the block, and then there is nothing to restore.
    site.balancer.on(|| common::run("ip link set lo down"));
    eventually("one stays at a backend, all are answered", || {
        all_answered(&mut half_closed(&site));
        balancer.aborted("take_back") > 0
    });
    site.balancer.on(|| common::run("ip link set lo up"));
    balancer.is_clean();
    for backend in &site.backends {
        backend.on(|| common::run("ip link set lo down"));
    }
    eventually("one stays at the balancer, all are answered", || {
        all_answered(&mut half_closed(&site));
        balancer.aborted("snapshot") > 0
    });
    assert_eq!(balancer.report().reset, 0);
    balancer.is_clean();
    backends.iter().for_each(common::Server::is_clean);
}

#[test]
fn a_full_map_relays_or_goes_elsewhere() {
    let site = Site::new(2);
    let backends =
        [site.start_backend(0, &format!("{}capacity = 1\n", quick("pin"))), site.start_backend(1, &quick("pin"))];
    let balancer = site.start_balancer(&format!("{}capacity = 3\n", quick("pin")));
    balancer.sees(2);
    let mut clients: Vec<Client> = (0..6).map(|_| site.connect()).collect();
    for _ in 0..2 {
        for client in &mut clients {
            assert_eq!(client.get("/bytes/100000").unwrap(), 200);
        }
    }
    // Counted when they are over, which the client may see first.
    eventually("the others were relayed", || balancer.report().requests == 6);
    let report = balancer.report();
    assert_eq!(report.connections.away, 3, "{report:?}");
    assert!(report.handoffs.aborted["full"] >= 6, "{report:?}");
    drop(clients);
    balancer.is_clean();
    backends.iter().for_each(common::Server::is_clean);
}

#[test]
fn a_backend_without_room_is_not_the_last_one() {
    let site = Site::new(2);
    // On its way, a connection needs both rules of a flow.
    for limit in ["capacity = 1\n", "max-connections = 1\n"] {
        let full = site.start_backend(0, &format!("{}{limit}", quick("pin")));
        let roomy = site.start_backend(1, &quick("pin"));
        let balancer = site.start_balancer(&quick("pin"));
        balancer.sees(2);
        let mut clients: Vec<Client> = (0..6).map(|_| site.connect()).collect();
        for client in &mut clients {
            assert_eq!(client.get("/bytes/100000").unwrap(), 200);
        }
        let owned = [&full, &roomy].map(|backend| backend.report().connections.away);
        assert_eq!(owned, [1, 5], "{limit}");
        drop(clients);
        balancer.is_clean();
        full.is_clean();
        roomy.is_clean();
    }
}

#[test]
fn the_load_is_balanced_again() {
    let site = Site::new(2);
    let config = quick("least-loaded");
    let first = site.start_backend(0, &config);
    let balancer = site.start_balancer(&config);
    balancer.sees(1);
    let mut clients: Vec<Client> = (0..12).map(|_| site.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/bytes/1000").unwrap(), 200);
    }
    assert_eq!(first.report().connections.away, 12);
    let second = site.start_backend(1, &config);
    balancer.sees(2);
    eventually("the second one gets its share", || {
        for client in &mut clients {
            assert_eq!(client.get("/bytes/1000").unwrap(), 200);
        }
        second.report().connections.away >= 4
    });
    assert_eq!(balancer.report().reset, 0);
    drop(clients);
    balancer.is_clean();
    first.is_clean();
    second.is_clean();
}

#[test]
fn silent_and_excess_clients_are_sent_away() {
    let site = Site::new(1);
    let backend = site.start_backend(0, &format!("{}idle-ms = 3000\n", quick("pin")));
    let balancer = site.start_balancer(&format!("{}idle-ms = 3000\nmax-connections = 2\n", quick("pin")));
    balancer.sees(1);
    let mut served = site.connect();
    assert_eq!(served.get("/bytes/1000").unwrap(), 200);
    // It may have its answer before the balancer has let go of it.
    eventually("it is away", || balancer.report().connections.here == 0);
    let mut silent: Vec<Client> = (0..2).map(|_| site.connect()).collect();
    eventually("both are there", || balancer.report().connections.here == 2);
    assert_eq!(site.connect().answer().unwrap(), 503);
    for client in &mut silent {
        assert_eq!(client.answer().unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof, "closed, not reset");
    }
    assert_eq!(served.answer().unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof, "closed by the backend");
    drop(served);
    balancer.is_clean();
    backend.is_clean();
}

#[test]
fn what_is_no_request_is_answered_and_closed() {
    let site = Site::new(1);
    let backend = site.start_backend(0, &quick("pin"));
    let balancer = site.start_balancer(&quick("pin"));
    balancer.sees(1);
    for (text, status) in [("garbage\r\n\r\n", 400), ("POST / HTTP/1.1\r\n\r\n", 501)] {
        for away in [false, true] {
            let mut client = site.connect();
            if away {
                assert_eq!(client.get("/bytes/10").unwrap(), 200);
            }
            client.stream.write_all(text.as_bytes()).unwrap();
            assert_eq!(client.answer().unwrap(), status, "away {away}");
            let end = client.answer().unwrap_err();
            assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof, "{text:?} away {away}: {end}");
        }
    }
    balancer.is_clean();
    backend.is_clean();
}

#[test]
fn a_client_that_vanishes_is_given_up() {
    let site = Site::new(1);
    let limits = format!("{}user-timeout-ms = 3000\nidle-ms = 3000\n", quick("pin"));
    let backend = site.start_backend(0, &limits);
    let balancer = site.start_balancer(&limits);
    balancer.sees(1);
    let mut client = site.connect();
    client.ask("/bytes/100000000").unwrap();
    eventually("it is away", || balancer.report().connections.away == 1);
    site.client.on(|| common::run("ip link set eth0 down"));
    balancer.is_clean();
    backend.is_clean();
}
