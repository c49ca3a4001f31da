//! Processes that die, stop, or start anew.

mod common;

use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use common::balancer::{Balancer, ask};
use common::fake::{self, Fault};
use common::{Client, Site, eventually};
use underdeck_handoff_control::keys::Role;
use underdeck_handoff_control::message::{Body, Done, Refusal};
use underdeck_handoff_control::policy::{Candidate, Policy, choose};
use underdeck_handoff_steer::{Flow, Options};

const PIN: &str = "policy = \"pin\"\nstep-ms = 5000\n";

/// Clients whose connections are with backends, and which backend that is, by the backends' own count.
fn clients(site: &Site, count: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| site.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/bytes/1000").unwrap(), 200);
    }
    clients
}

#[test]
fn exactly_the_connections_of_a_dead_backend_end() {
    for stopped in [false, true] {
        let site = Site::new(3);
        let config = format!("{PIN}user-timeout-ms = 3000\ndead-after-ms = 5000\n");
        let backends: Vec<_> = (0..3).map(|number| site.start_backend(number, &config)).collect();
        let balancer = site.start_balancer(&config);
        balancer.sees(3);
        let mut clients = clients(&site, 12);
        let owned: Vec<u64> = backends.iter().map(|backend| backend.report().connections.away).collect();
        assert_eq!(owned.iter().sum::<u64>(), 12);
        assert!(owned[1] > 0, "{owned:?}");
        let [first, dead, last] = <[_; 3]>::try_from(backends).ok().unwrap();
        let since = Instant::now();
        let dead = if stopped {
            dead.stop();
            Some(dead)
        } else {
            dead.kill();
            None
        };
        eventually("its connections are gone", || {
            let report = balancer.report();
            (report.connections.away, report.rules.tc, report.reset) == (12 - owned[1], 12 - owned[1], owned[1])
        });
        // Seen and printed, not asserted: the machine may be busy.
        println!("stopped {stopped}: cleaned within {:?}", since.elapsed());
        let mut reset = 0;
        for client in &mut clients {
            match client.get("/bytes/50000") {
                Ok(status) => assert_eq!(status, 200),
                Err(error) => {
                    let kind = error.kind();
                    let ended = [
                        std::io::ErrorKind::ConnectionReset,
                        std::io::ErrorKind::UnexpectedEof,
                        std::io::ErrorKind::BrokenPipe,
                    ];
                    assert!(ended.contains(&kind), "stopped {stopped}: {error}");
                    reset += 1;
                }
            }
        }
        assert_eq!(reset, owned[1], "stopped {stopped}: {owned:?}");
        for mut client in (0..6).map(|_| site.connect()) {
            assert_eq!(client.get("/bytes/1000").unwrap(), 200, "new requests go elsewhere");
        }
        if let Some(dead) = dead {
            // It comes back to itself, and serves again. What it still has is given up: nobody acknowledges probes.
            dead.go_on();
            balancer.sees(3);
            drop(clients);
            dead.is_clean();
        } else {
            drop(clients);
        }
        for server in [&first, &last, &balancer] {
            server.is_clean();
        }
    }
}

#[test]
fn a_backend_that_starts_anew_is_another_one() {
    let site = Site::new(2);
    let first = site.start_backend(0, PIN);
    let _second = site.start_backend(1, PIN);
    let balancer = site.start_balancer(PIN);
    balancer.sees(2);
    let mut clients = clients(&site, 4);
    let owned = first.report().connections.away;
    assert!(owned > 0);
    first.kill();
    let again = site.start_backend(0, PIN);
    eventually("it gets connections", || {
        clients.push(site.connect());
        assert_eq!(clients.last_mut().unwrap().get("/bytes/1000").unwrap(), 200);
        again.report().handoffs.out > 0
    });
    eventually("those of the process before are told", || balancer.report().reset == owned);
    drop(clients);
    balancer.is_clean();
    again.is_clean();
}

#[test]
fn the_next_backend_of_a_shard_answers_for_a_dead_one() {
    let shard = "policy = \"shard\"\nstep-ms = 5000\n";
    let site = Site::new(3);
    let mut backends: Vec<_> = (0..3).map(|number| Some(site.start_backend(number, shard))).collect();
    let balancer = site.start_balancer(shard);
    balancer.sees(3);
    let paths: Vec<String> = (0..30).map(|number| format!("/bytes/2000/{number}")).collect();
    let mut client = site.connect();
    eventually("a path of another shard goes to its owner", || {
        let before = balancer.report().handoffs.back;
        paths.iter().for_each(|path| assert_eq!(client.get(path).unwrap(), 200));
        balancer.report().handoffs.back - before > 10
    });
    // The client is with a backend that stays: then one of the others dies.
    let owner = |path: &String| {
        let one = |number: usize| Candidate { name: format!("b{number}"), alive: true, load: 0 };
        choose(Policy::Shard, path, &[one(0), one(1), one(2)]).unwrap()
    };
    let stays = paths.iter().find(|path| owner(path) != 1).unwrap();
    let orphan = paths.iter().find(|path| owner(path) == 1).unwrap();
    eventually("it is where it belongs", || {
        assert_eq!(client.get(stays).unwrap(), 200);
        backends[owner(stays)].as_ref().unwrap().report().connections.away == 1
    });
    backends[1].take().unwrap().kill();
    balancer.sees(2);
    eventually("the path has another owner, and stays there", || {
        let before = balancer.report().handoffs.back;
        (0..10).for_each(|_| assert_eq!(client.get(orphan).unwrap(), 200));
        balancer.report().handoffs.back == before
    });
    assert_eq!(balancer.report().reset, 0);
    drop(client);
    balancer.is_clean();
}

#[test]
fn a_backend_that_sleeps_through_a_handoff_does_not_take_it_later() {
    let patient = format!("{PIN}dead-after-ms = 60000\n");
    let site = Site::new(2);
    let [first, second] = [0, 1].map(|number| site.start_backend(number, PIN));
    let balancer = site.start_balancer(&patient);
    balancer.sees(2);
    first.stop();
    let mut client = site.connect();
    assert_eq!(client.get("/bytes/100000").unwrap(), 200);
    assert_eq!(balancer.aborted("time_out") + balancer.aborted("unreachable"), 1);
    assert_eq!(second.report().connections.away, 1);
    // Now it reads BEGIN_OFFLOAD, if it got so far.
    first.go_on();
    first.is_clean();
    for _ in 0..20 {
        assert_eq!(client.get("/bytes/100000").unwrap(), 200);
    }
    assert_eq!(first.report().requests, 0);
    // A nap without any handoff: the connection is still there afterwards.
    second.stop();
    second.go_on();
    for _ in 0..20 {
        assert_eq!(client.get("/bytes/100000").unwrap(), 200);
    }
    drop(client);
    balancer.is_clean();
    second.is_clean();
}

#[test]
fn a_balancer_that_sleeps_through_a_return_has_no_second_say() {
    let site = Site::new(1);
    let per_request = "policy = \"per-request 1\"\nstep-ms = 5000\n";
    let backend = site.start_backend(0, per_request);
    let balancer = site.start_balancer(per_request);
    balancer.sees(1);
    let mut client = site.connect();
    for _ in 0..3 {
        assert_eq!(client.get("/bytes/1000").unwrap(), 200);
    }
    eventually("the connection is away", || balancer.report().connections.away == 1);
    balancer.stop();
    client.ask("/bytes/1000").unwrap();
    client.is_reset();
    assert_eq!(backend.aborted("in_doubt"), 1);
    // Now it reads SERVER_DONE, and restores a connection that has ended.
    balancer.go_on();
    balancer.is_clean();
    backend.is_clean();
    balancer.sees(1);
    assert_eq!(site.connect().get("/bytes/1000").unwrap(), 200);
}

/// A folder in the BPF file system that goes with the test.
struct Pin(PathBuf);

impl Pin {
    fn new(name: &str) -> Pin {
        Pin(PathBuf::from(format!("/sys/fs/bpf/ud-serve-{}-{name}", std::process::id())))
    }

    fn config(&self) -> String {
        format!("{PIN}pin = {:?}\n", self.0)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn backends_finish_what_they_own_when_the_balancer_starts_anew() {
    let site = Site::new(2);
    let pin = Pin::new("anew");
    let backends = [0, 1].map(|number| site.start_backend(number, PIN));
    let balancer = site.start_balancer(&pin.config());
    balancer.sees(2);
    let mut clients = clients(&site, 4);
    balancer.kill();
    for client in &mut clients {
        assert_eq!(client.get("/bytes/500000").unwrap(), 200, "without any balancer");
    }
    let balancer = site.start_balancer(&pin.config());
    assert_eq!(balancer.report().rules.tc, 4);
    balancer.sees(2);
    for client in &mut clients {
        assert_eq!(client.get("/bytes/500000").unwrap(), 200, "with the next one");
    }
    // Those that end at a backend are forgotten, those of a dead backend are reset.
    let kept = clients.split_off(2);
    drop(clients);
    eventually("their rules are gone", || balancer.report().rules.tc == 2);
    let [first, second] = backends;
    let owned = || [&first, &second].map(|backend| backend.report().connections.away);
    eventually("the backends have forgotten them", || owned().iter().sum::<u64>() == 2);
    let owned = owned();
    first.kill();
    eventually("its rules are gone", || balancer.report().rules.tc == owned[1]);
    eventually("they are counted", || balancer.report().reset == owned[0]);
    drop(kept);
    balancer.is_clean();
    second.is_clean();
}

#[test]
fn connections_come_back_to_the_next_balancer() {
    let site = Site::new(2);
    let pin = Pin::new("back");
    let per_request = "policy = \"per-request 1\"\nstep-ms = 5000\n";
    let backends = [0, 1].map(|number| site.start_backend(number, per_request));
    let config = format!("{}policy = \"per-request 1\"\n", pin.config().replace("policy = \"pin\"\n", ""));
    let balancer = site.start_balancer(&config);
    balancer.sees(2);
    let mut clients = clients(&site, 4);
    balancer.kill();
    let balancer = site.start_balancer(&config);
    balancer.sees(2);
    for client in &mut clients {
        for _ in 0..3 {
            assert_eq!(client.get("/bytes/500000").unwrap(), 200);
        }
    }
    let handoffs = balancer.report().handoffs;
    assert!(handoffs.back >= 4, "{handoffs:?}");
    drop(clients);
    balancer.is_clean();
    backends.iter().for_each(common::Server::is_clean);
}

#[test]
fn connections_that_were_on_their_way_when_the_balancer_died_are_reset() {
    for fault in [Fault::SilentAtBegin, Fault::SilentAtLbReady(None)] {
        let site = Site::new(1);
        let pin = Pin::new("way");
        let config = pin.config().replace("step-ms = 5000", "step-ms = 50000");
        let heard = fake::backend(&site, fault);
        let balancer = site.start_balancer(&config);
        balancer.sees(1);
        let mut client = site.connect();
        client.ask("/bytes/1000").unwrap();
        let last = |body: &Body| match fault {
            Fault::SilentAtBegin => matches!(body, Body::BeginOffload(_)),
            _ => *body == Body::LbReady,
        };
        common::all(&heard).find(last).unwrap();
        balancer.kill();
        let balancer = site.start_balancer(&config);
        if fault == Fault::SilentAtBegin {
            client.is_reset();
        } else {
            // It may be with the backend, which this one does not know better than its rule.
            assert_eq!(balancer.report().rules.tc, 1);
        }
        drop(client);
    }
}

#[test]
fn a_backend_that_was_to_take_it_tells_the_next_balancer() {
    let site = Site::new(1);
    let pin = Pin::new("told");
    let backend = site.start_backend(0, "policy = \"pin\"\nstep-ms = 50000\n");
    let mut client = {
        // Plays a balancer that dies between the redirection and LB_READY, and leaves its rule.
        let options = Options { pin: Some(pin.0.clone()), ..Options::default() };
        let balancer = Balancer::with(&site, &options);
        let (client, server) = balancer.client();
        let mut control = balancer.control();
        let (frozen, flow) = balancer.freeze(server, b"");
        let ready = ask(&mut control, 7, Body::BeginOffload(frozen.snapshot().encode()));
        balancer.redirect(&flow, &ready);
        frozen.release();
        client
    };
    let balancer = site.start_balancer(&pin.config());
    client.is_reset();
    balancer.is_clean();
    backend.is_clean();
}

#[test]
fn only_the_backend_that_has_it_can_end_it() {
    let site = Site::new(1);
    let pin = Pin::new("say");
    let flow = Flow { local: site.address(2, 80), peer: site.address(1, 4000) };
    {
        let options = Options { pin: Some(pin.0.clone()), ..Options::default() };
        let balancer = Balancer::with(&site, &options);
        let ready = Body::ServerReady { local: site.address(3, 61_000), thaw_ns: 0, rule_ns: 0 };
        balancer.redirect(&flow, &ready);
    }
    let identity = site.identity(Role::Backend, "b0");
    // Plays the backend; its heartbeats are not answered, but nothing else than death would follow.
    let config = format!("{}dead-after-ms = 60000\n", pin.config());
    let _listener = site.backends[0].on(|| std::net::TcpListener::bind("10.0.0.3:7000")).unwrap();
    let balancer = site.start_balancer(&config);
    let say = |body: Body| {
        let mut control = site.backends[0].on(|| identity.connect(site.address(2, 7000), common::PATIENCE)).unwrap();
        ask(&mut control, 5, body)
    };
    let done = |port, snapshot: &[u8]| {
        let (local, peer, at) = (flow.local, flow.peer, site.address(3, port));
        Body::ServerDone(Done { generation: 0, at, local, peer, snapshot: snapshot.to_vec() })
    };
    assert_eq!(say(done(61_001, b"")), Body::EndOffload);
    assert_eq!(say(done(61_001, b"x")), Body::Refused(Refusal::Transfer));
    assert_eq!(say(done(61_000, b"x")), Body::Refused(Refusal::Snapshot));
    assert_eq!(say(Body::Abort(0)), Body::Refused(Refusal::Transfer));
    assert_eq!(say(Body::LbReady), Body::Refused(Refusal::Transfer));
    assert_eq!(balancer.report().rules.tc, 1);
    assert_eq!(say(done(61_000, b"")), Body::EndOffload);
    balancer.is_clean();
}

#[test]
fn an_inherited_redirection_that_nothing_uses_goes() {
    let site = Site::new(1);
    let pin = Pin::new("idle");
    {
        let options = Options { pin: Some(pin.0.clone()), ..Options::default() };
        let balancer = Balancer::with(&site, &options);
        let flow = Flow { local: site.address(2, 80), peer: site.address(1, 4000) };
        let ready = Body::ServerReady { local: site.address(3, 61_000), thaw_ns: 0, rule_ns: 0 };
        balancer.redirect(&flow, &ready);
    }
    let _listener = site.backends[0].on(|| std::net::TcpListener::bind("10.0.0.3:7000")).unwrap();
    let balancer = site.start_balancer(&format!("{}dead-after-ms = 60000\nidle-ms = 2000\n", pin.config()));
    assert_eq!(balancer.report().rules.tc, 1);
    balancer.is_clean();
}

#[test]
fn without_pins_connections_end_with_their_balancer() {
    let site = Site::new(1);
    let backend = site.start_backend(0, &format!("{PIN}user-timeout-ms = 3000\nidle-ms = 2000\n"));
    let balancer = site.start_balancer(PIN);
    balancer.sees(1);
    let mut clients = clients(&site, 2);
    balancer.kill();
    for client in &mut clients {
        assert!(client.get("/bytes/1000").is_err(), "the host of the balancer knows no such connection");
    }
    backend.is_clean();
}

/// Clients that download again and again, and connect again when their connection has ended.
struct Restless {
    stop: AtomicBool,
    answers: AtomicU64,
}

impl Restless {
    /// One of them. Every answer is right; a connection may end, but never hang.
    fn run(&self, site: &Site, mut size: usize) {
        while !self.stop.load(Relaxed) {
            let connected = site.client.on(|| TcpStream::connect("10.0.0.2:80"));
            // There may be no balancer now.
            let Ok(mut client) = connected.map(Client::new) else { continue };
            while !self.stop.load(Relaxed) {
                size = (size * 7919 + 104_729) % 200_000;
                match client.get(&format!("/bytes/{size}")) {
                    Ok(200) => _ = self.answers.fetch_add(1, Relaxed),
                    Ok(status) => assert_eq!(status, 503),
                    Err(error) => {
                        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
                        let ended = [BrokenPipe, ConnectionReset, UnexpectedEof];
                        assert!(ended.contains(&error.kind()), "{error}");
                        break;
                    }
                }
            }
        }
    }

    /// Waits for so many answers more.
    fn more(&self, answers: u64) {
        let before = self.answers.load(Relaxed);
        eventually("there are more answers", || self.answers.load(Relaxed) >= before + answers);
    }
}

/// However the test ends, its clients end too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Whatever step a connection is at: nobody hears wrong bytes, nobody waits for ever, and nothing is left.
#[test]
fn killed_at_any_moment() {
    const MOVING: &str = "policy = \"per-request 1\"\nstep-ms = 5000\n";
    let site = Site::new(2);
    let pin = Pin::new("any");
    let pinned = format!("{MOVING}pin = {:?}\n", pin.0);
    let stays = site.start_backend(1, MOVING);
    let (mut dies, mut balancer) = (site.start_backend(0, MOVING), site.start_balancer(&pinned));
    balancer.sees(2);
    let clients = Restless { stop: AtomicBool::new(false), answers: AtomicU64::new(0) };
    let (dies, balancer) = std::thread::scope(|scope| {
        for number in 0..6 {
            let (clients, site) = (&clients, &site);
            scope.spawn(move || clients.run(site, number));
        }
        let _stop = Stop(&clients.stop);
        for round in 0..8 {
            clients.more(20 + round * 7);
            if round % 2 == 0 {
                dies.kill();
                balancer.sees(1);
                clients.more(5);
                dies = site.start_backend(0, MOVING);
            } else {
                balancer.kill();
                balancer = site.start_balancer(&pinned);
            }
            balancer.sees(2);
        }
        clients.more(100);
        (dies, balancer)
    });
    for server in [&balancer, &dies, &stays] {
        server.is_clean();
    }
}
