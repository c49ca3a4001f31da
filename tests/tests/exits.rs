//! Payload that leaves otherwise than by a plain connection is put back; where that keeps happening, the route is learnt.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use underdeck_lab::backend::Backend;
use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::{Front, Pace, Upload};
use underdeck_lab::engine::{Reason, Role, RoleSnapshot};
use underdeck_lab::ports::Port;
use underdeck_lab::proxy::{Nginx, Spec};
use underdeck_lab::tls::Certificate;
use underdeck_lab::twin::{Exchange, Manner, Step};
use underdeck_lab::{content, engine, wait};
use underdeck_tests::matrix::{self, Lane};
use underdeck_tests::payload::Must;
use underdeck_tests::user::{Home, WITHIN, opens, right, worker};

const BODY: u64 = 1_000_000;
const REQUESTS: usize = 8;

/// Requests of one connection, each for a body of its own.
fn requests(name: &str) -> Exchange {
    let step = |i: usize| Step::get(Behaviour { seed: 7 + i as u64, ..Behaviour::body(BODY, Delimit::Length) });
    Exchange::new(name, (0..REQUESTS).map(step).collect())
}

/// Sends the exchanges through nginx under the engine; returns the counters of responses.
fn forwarded(nginx: Nginx, exchanges: &[Exchange]) -> RoleSnapshot {
    let lane = Lane::underdeck(&Spec::Nginx(nginx));
    for exchange in exchanges {
        right(exchange, &lane.front, &lane.backend);
    }
    assert_eq!(lane.check_counters(&[]), Vec::<String>::new());
    let counters = *engine::snapshot(&lane.proxy).expect("the library is in it").role(Role::Connected);
    lane.stop().expect("nothing is left");
    counters
}

/// Payload left by `exit` at first, and was copied as soon as that was learnt: all but the first body at least.
fn is_learnt(of: &RoleSnapshot, exit: Reason) {
    assert_ne!(of.materialised_by_reason[exit as usize], 0, "{of:?}");
    let copied = of.copied_by_reason[Reason::RouteLearnt as usize];
    assert!(copied >= (REQUESTS as u64 - 1) * BODY / 10 * 9, "{copied} bytes: {of:?}");
    assert!(of.bytes_anchored <= BODY, "{of:?}");
}

#[test]
fn a_route_to_tls_is_learnt() {
    is_learnt(&forwarded(Nginx { tls: true, ..Nginx::large() }, &[requests("tls")]), Reason::ExitTls);
}

#[test]
fn a_route_to_a_compressor_is_learnt() {
    let mut exchange = requests("gzip");
    for step in &mut exchange.steps {
        step.fields.push(("Accept-Encoding".into(), "gzip".into()));
    }
    is_learnt(&forwarded(Nginx { gzip: true, ..Nginx::large() }, &[exchange]), Reason::ExitDeflate);
}

#[test]
fn a_route_to_a_cache_is_learnt() {
    // The second time they come from the cache.
    let both = [requests("cache"), requests("cache")];
    let counters = forwarded(Nginx { cache: true, ..Nginx::large() }, &both);
    is_learnt(&counters, Reason::ExitFile);
    assert_eq!(counters.messages, REQUESTS as u64, "{counters:?}");
}

#[test]
fn a_route_that_pays_is_not_learnt() {
    let counters = forwarded(Nginx::large(), &[requests("plain")]);
    assert_eq!((counters.copied_by_reason[Reason::RouteLearnt as usize], counters.bytes_materialised), (0, 0));
    assert!(counters.bytes_anchored >= REQUESTS as u64 * BODY / 10 * 9, "{counters:?}");
}

/// With a client that sends the first request of each connection before the handshake is over (0-RTT), as nginx confirms.
fn is_right_early(exchange: &Exchange) {
    let server = "ssl_protocols TLSv1.3; ssl_early_data on; add_header Early $ssl_early_data;".to_owned();
    let lane = Lane::underdeck(&Spec::Nginx(Nginx { tls: true, server, ..Nginx::large() }));
    let front = lane.front.clone().early();
    let ticket = Exchange::new("ticket", vec![Step::get(Behaviour::body(1000, Delimit::Length))]);
    for (exchange, early) in [(&ticket, None), (exchange, Some("1"))] {
        let seen = right(exchange, &front, &lane.backend);
        assert_eq!(seen.replies[0].head.field("early"), early, "{}", exchange.name);
    }
    // Nothing else that was large enough was sent on this route.
    let musts = [Must::Materialise(Role::Connected, Reason::ExitTls), Must::AnchorNothing(Role::Accepted)];
    assert_eq!(lane.check_counters(&musts), Vec::<String>::new());
    lane.stop().expect("nothing is left");
}

#[test]
fn what_is_sent_before_the_tls_handshake_is_over_is_right() {
    for (name, delimit) in
        [("length", Delimit::Length), ("chunked", Delimit::Chunked(300_000)), ("close", Delimit::Close)]
    {
        is_right_early(&Exchange::new(format!("early-{name}"), vec![Step::get(Behaviour::body(BODY, delimit))]));
    }
}

#[test]
fn what_is_received_before_the_tls_handshake_is_over_is_followed() {
    // nginx takes up to 16 KiB early.
    let upload = Step::post(Upload::Length(12_000), Behaviour::body(BODY, Delimit::Length));
    is_right_early(&Exchange::new("early-upload", vec![upload]));
    let get = Step::get(Behaviour::body(BODY, Delimit::Length));
    // Only who has seen the request knows that the first answer has no body.
    let head = Step { method: "HEAD", ..get.clone() };
    is_right_early(&Exchange::new("early-head", vec![head, get]));
}

/// A client that does not read makes nginx spool; returns how many messages are copied for that before one is forwarded again.
fn copied_after_a_slow_client(lane: &Lane, name: &str) -> u64 {
    // More than the buffers of all sockets hold.
    const LONG: u64 = 32 << 20;
    const MOST: u64 = 64;
    let responses = || *engine::snapshot(&lane.proxy).expect("the library is in it").role(Role::Connected);
    let before = responses();
    let pace = Pace { receive_buffer: Some(16 * 1024), ..Pace::default() };
    let slow = Exchange::new(format!("{name}-slow"), vec![Step::get(Behaviour::body(LONG, Delimit::Length))]);
    right(&slow.manner(Manner::Held).pace(pace), &lane.front, &lane.backend);
    let learnt = |it: &RoleSnapshot| it.copied_by_reason[Reason::RouteLearnt as usize];
    assert!(learnt(&responses()) > learnt(&before), "it was not learnt: {:?}", responses());
    for messages in 0..MOST {
        let before = responses();
        let step = Step::get(Behaviour { seed: messages, ..Behaviour::body(BODY, Delimit::Length) });
        right(&Exchange::new(format!("{name}-{messages}"), vec![step]), &lane.front, &lane.backend);
        if learnt(&responses()) == learnt(&before) {
            assert!(responses().bytes_forwarded - before.bytes_forwarded > BODY / 10 * 9, "{:?}", responses());
            return messages;
        }
    }
    panic!("{MOST} messages were copied: {:?}", responses())
}

#[test]
fn a_route_whose_clients_are_no_longer_slow_is_anchored_again() {
    let lane = Lane::underdeck(&Spec::Nginx(Nginx::large()));
    // What was forwarded between two slow clients makes the route as good as new.
    for round in 0..3 {
        let copied = copied_after_a_slow_client(&lane, &format!("round-{round}"));
        assert!((1..=16).contains(&copied), "{copied} messages were copied in round {round}");
        for i in 0..8 {
            let step = Step::get(Behaviour::body(BODY, Delimit::Length));
            right(&Exchange::new(format!("fast-{round}-{i}"), vec![step]), &lane.front, &lane.backend);
        }
    }
    assert_eq!(lane.check_counters(&[]), Vec::<String>::new());
    lane.stop().expect("nothing is left");
}

/// Sends an exchange through an nginx with these lines in its location, and waits until it has done what `is_done` looks for in
/// its directory; returns that directory and the counters of responses.
fn located(lines: &str, exchange: &Exchange, is_done: impl Fn(&Path) -> bool) -> (Home, RoleSnapshot) {
    let home = Home::new();
    let backend = Backend::start().expect("a backend");
    let port = Port::free().expect("a port");
    let dir = home.path().display().to_string();
    let server = format!(
        "server {{ listen {}; location / {{ proxy_pass http://{}; {} }} }}",
        port.addr(),
        backend.addr(),
        lines.replace("DIR", &dir)
    );
    let nginx = home.nginx("", &server);
    opens(port.addr());
    right(exchange, &Front::from(port.addr()), &backend);
    let (pid, is_done) = (worker(nginx.pid(), &[]), || is_done(home.path()).then_some(()));
    wait::until("nginx is done", WITHIN, is_done).expect("nginx is done");
    let settled = || engine::of_pid(pid).ok().filter(|it| it.bytes_held == 0);
    let counters = wait::until("nothing is held", WITHIN, settled).expect("nothing is held");
    assert_eq!((counters.resets, counters.panics), (0, 0), "{counters:?}");
    nginx.stop().expect("nothing is left");
    (home, *counters.role(Role::Connected))
}

fn assert_file(path: &Path, of: &Behaviour) {
    let stored = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let right = content::bytes(of.seed, 0, of.len as usize);
    let wrong = stored.iter().zip(&right).position(|(a, b)| a != b);
    assert_eq!((stored.len(), wrong), (right.len(), None), "{}", path.display());
}

#[test]
fn what_is_stored_is_right() {
    let exchange = requests("stored");
    let file = |(i, step): (usize, &Step)| {
        let target = step.behaviour.target(&exchange.id(i));
        let path = target.split('?').next().expect("a path").trim_start_matches('/');
        (Path::new("temp/stored").join(path), step.behaviour.clone())
    };
    let files: Vec<_> = exchange.steps.iter().enumerate().map(file).collect();
    // A file gets its name when it is whole, which may be after the client had it.
    let are_there = |dir: &Path| files.iter().all(|(path, _)| dir.join(path).exists());
    let (home, counters) = located("proxy_store DIR/temp/stored$uri;", &exchange, are_there);
    for (path, behaviour) in &files {
        assert_file(&home.path().join(path), behaviour);
    }
    is_learnt(&counters, Reason::ExitFile);
}

#[test]
fn what_threads_write_to_temporary_files_is_right() {
    // More than the buffers of all sockets hold.
    const LONG: u64 = 24 << 20;
    let few = "proxy_buffers 2 8k; proxy_buffer_size 8k; proxy_busy_buffers_size 8k;";
    let lines = format!("{few} aio threads; aio_write on;");
    let exchange = Exchange::new("spooled", vec![Step::get(Behaviour::body(LONG, Delimit::Length))]);
    let pace = Pace { receive_buffer: Some(16 * 1024), ..Pace::default() };
    let (_, counters) = located(&lines, &exchange.manner(Manner::Held).pace(pace), |_| true);
    assert_ne!(counters.materialised_by_reason[Reason::ExitFile as usize], 0, "{counters:?}");
}

#[test]
fn what_ssl_write_ex_encrypts_is_right() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("tls-relay");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/c/tls-relay.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Werror", "-o"]).arg(&program).args([source, "-lssl", "-lcrypto"]);
    assert!(compiler.status().expect("a compiler").success());
    let certificate = Certificate::make(dir.path()).expect("a certificate");
    let backend = Backend::start().expect("a backend");
    let mut command = Command::new(&program);
    command.arg(&certificate.cert).arg(&certificate.key).arg(backend.addr().port().to_string());
    matrix::engine().expect("this test needs the library").min_body(64).apply(&mut command);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let port = said.next().and_then(|line| line.strip_prefix("port ")?.parse().ok()).expect("its port");
    let addr = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let front = Front { addr, tls: Some(certificate.client().expect("a client")) };
    let step = Step::get(Behaviour::body(BODY, Delimit::Close));
    right(&Exchange::new("encrypted", vec![step]), &front, &backend);
    assert_eq!(said.next().as_deref(), Some("done"));
    let counters = engine::of_pid(child.id()).expect("the library is in it");
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    assert_eq!((counters.resets, counters.panics, counters.bytes_held), (0, 0, 0), "{counters:?}");
    let connected = counters.role(Role::Connected);
    assert_ne!(connected.materialised_by_reason[Reason::ExitTls as usize], 0, "{connected:?}");
}
