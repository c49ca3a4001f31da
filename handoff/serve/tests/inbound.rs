//! What a backend does with a balancer that goes wrong, is late, or is none.

mod common;

use std::io::Write;
use std::time::Instant;

use common::balancer::{Balancer, ask, done};
use common::{Site, eventually};
use underdeck_handoff_control::keys::{self, Role};
use underdeck_handoff_control::message::{Body, MAX_LENGTH, Message, Ping, Refusal, VERSION};
use underdeck_handoff_control::tls::Identity;

const QUICK: &str = "policy = \"per-request 1\"\nstep-ms = 1500\n";

/// A request that was read before the handoff.
const REQUEST: &[u8] = b"GET /bytes/5000 HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn without_lb_ready_the_balancer_keeps_it() {
    let site = Site::new(1);
    let backend = site.start_backend(0, QUICK);
    let balancer = Balancer::new(&site);
    let (mut client, server) = balancer.client();
    let (frozen, flow) = balancer.freeze(server, b"");
    let mut control = balancer.control();
    let ready = ask(&mut control, 1, Body::BeginOffload(frozen.snapshot().encode()));
    assert!(matches!(ready, Body::ServerReady { .. }), "{ready:?}");
    eventually("the backend gives up", || backend.aborted("not_confirmed") == 1);
    backend.is_clean();
    // The answer to a question is clear, and stays.
    for _ in 0..2 {
        assert_eq!(ask(&mut balancer.control(), 1, Body::Abort(0)), Body::Refused(Refusal::NotTaken));
    }
    balancer.steer.remove(&flow).unwrap();
    let server = std::net::TcpStream::from(frozen.resume().unwrap());
    answer_here(&mut client, &server);
}

/// The balancer's end answers.
fn answer_here(client: &mut common::Client, mut server: &std::net::TcpStream) {
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert_eq!(client.answer().unwrap(), 200);
}

#[test]
fn lb_ready_after_an_abort_comes_too_late() {
    let site = Site::new(1);
    let backend = site.start_backend(0, "policy = \"pin\"\nstep-ms = 5000\n");
    let balancer = Balancer::new(&site);
    let (mut client, server) = balancer.client();
    let (frozen, flow) = balancer.freeze(server, REQUEST);
    let mut control = balancer.control();
    ask(&mut control, 1, Body::BeginOffload(frozen.snapshot().encode()));
    assert_eq!(ask(&mut balancer.control(), 1, Body::Abort(0)), Body::Refused(Refusal::NotTaken));
    assert_eq!(ask(&mut control, 1, Body::LbReady), Body::Refused(Refusal::NotTaken));
    backend.is_clean();
    assert_eq!(backend.report().requests, 0);
    balancer.steer.remove(&flow).unwrap();
    let server = std::net::TcpStream::from(frozen.resume().unwrap());
    answer_here(&mut client, &server);
}

/// The redirection stands, the client's next request arrives at the backend, and then the balancer goes back on it. A
/// backend that had acknowledged the request would have lost it: no packet may reach a half-restored connection.
#[test]
fn what_arrives_before_lb_ready_is_not_acknowledged() {
    use std::io::Read;
    let site = Site::new(1);
    let backend = site.start_backend(0, "policy = \"pin\"\nstep-ms = 5000\n");
    let balancer = Balancer::new(&site);
    let (mut client, server) = balancer.client();
    let (frozen, flow) = balancer.freeze(server, b"");
    let mut control = balancer.control();
    let ready = ask(&mut control, 1, Body::BeginOffload(frozen.snapshot().encode()));
    balancer.redirect(&flow, &ready);
    client.stream.write_all(REQUEST).unwrap();
    // Twice, so that the first one has had the time to be acknowledged.
    let redirected = || balancer.steer.ingress_counters(&flow).unwrap().packets;
    eventually("the request is sent again", || redirected() >= 2);
    assert_eq!(ask(&mut balancer.control(), 1, Body::Abort(0)), Body::Refused(Refusal::NotTaken));
    balancer.steer.remove(&flow).unwrap();
    let mut server = std::net::TcpStream::from(frozen.resume().unwrap());
    let mut got = [0; REQUEST.len()];
    server.read_exact(&mut got).unwrap();
    assert_eq!(got, REQUEST);
    answer_here(&mut client, &server);
    drop(control);
    backend.is_clean();
}

#[test]
fn after_lb_ready_the_backend_says_that_it_has_it() {
    let site = Site::new(1);
    let backend = site.start_backend(0, "policy = \"pin\"\n");
    let balancer = Balancer::new(&site);
    let heard = balancer.listen(|_| Some(Body::EndOffload));
    let (mut client, server) = balancer.client();
    let mut control = balancer.control();
    let flow = balancer.hand_out(&mut control, 7, server, REQUEST);
    assert_eq!(client.answer().unwrap(), 200);
    assert_eq!(ask(&mut balancer.control(), 7, Body::Abort(0)), Body::Taken);
    assert_eq!(client.get("/bytes/100").unwrap(), 200, "the question has changed nothing");
    drop(client);
    let (transfer, body) = heard.recv_timeout(common::PATIENCE).unwrap();
    assert_eq!((transfer, done(&body).snapshot.len(), done(&body).local), (7, 0, flow.local));
    backend.is_clean();
    assert_eq!(ask(&mut balancer.control(), 7, Body::Abort(0)), Body::Taken, "it was, and has ended");
}

#[test]
fn a_snapshot_is_taken_once() {
    let site = Site::new(1);
    let backend = site.start_backend(0, "policy = \"pin\"\n");
    let balancer = Balancer::new(&site);
    let heard = balancer.listen(|_| Some(Body::EndOffload));
    let (mut client, server) = balancer.client();
    let mut control = balancer.control();
    let (frozen, flow) = balancer.freeze(server, REQUEST);
    let snapshot = frozen.snapshot().encode();
    let ready = ask(&mut control, 7, Body::BeginOffload(snapshot.clone()));
    balancer.redirect(&flow, &ready);
    assert_eq!(ask(&mut control, 7, Body::LbReady), Body::Taken);
    frozen.release();
    assert_eq!(client.answer().unwrap(), 200);
    let again = || ask(&mut balancer.control(), 7, Body::BeginOffload(snapshot.clone()));
    assert_eq!(again(), Body::Refused(Refusal::Transfer), "while it is here");
    drop(client);
    heard.recv_timeout(common::PATIENCE).unwrap();
    backend.is_clean();
    assert_eq!(again(), Body::Refused(Refusal::Transfer), "and when it is over");
    let mut broken = snapshot.clone();
    broken.truncate(20);
    assert_eq!(ask(&mut control, 8, Body::BeginOffload(broken)), Body::Refused(Refusal::Snapshot));
    backend.is_clean();
}

#[test]
fn what_no_balancer_would_say_ends_only_that_connection() {
    let site = Site::new(1);
    let backend = site.start_backend(0, "policy = \"pin\"\nstep-ms = 1500\n");
    let balancer = Balancer::new(&site);
    let head = |length: u32, kind: u8| [&length.to_be_bytes()[..], &[VERSION, kind, 0, 0, 0, 0, 0, 0, 0, 1]].concat();
    let garbage: [(&str, Vec<u8>); 6] = [
        ("noise", (0..255).collect()),
        ("too long", head(MAX_LENGTH as u32 + 1, 1)),
        ("no such kind", head(10, 99)),
        ("another version", [&10u32.to_be_bytes()[..], &[VERSION + 1; 10]].concat()),
        ("a body that LB_READY has not", [head(11, 3), vec![1]].concat()),
        // Nothing more comes, and the connection stays open.
        ("truncated", head(5000, 1)),
    ];
    for (what, bytes) in garbage {
        let mut control = balancer.control();
        control.send_raw(&bytes).unwrap();
        let error = control.receive().expect_err(what);
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{what}: {error}");
    }
    // Messages that are good, but not now.
    for body in [Body::LbReady, Body::EndOffload, Body::Taken, Body::Pong(1)] {
        assert_eq!(ask(&mut balancer.control(), 3, body), Body::Refused(Refusal::Transfer));
    }
    assert_eq!(ask(&mut balancer.control(), 3, Body::Abort(0)), Body::Refused(Refusal::Transfer));
    let mut pong = balancer.control();
    pong.send(&Message { transfer: 0, body: Body::Ping(Ping { mean: 0, absent: Vec::new() }) }).unwrap();
    assert!(matches!(pong.receive().unwrap().body, Body::Pong(0)));
    backend.is_clean();
}

#[test]
fn only_a_balancer_of_the_installation_is_heard() {
    let site = Site::new(1);
    let _backend = site.start_backend(0, "policy = \"pin\"\nstep-ms = 1500\n");
    let at = site.address(3, 7000);
    let ping = Message { transfer: 0, body: Body::Ping(Ping { mean: 0, absent: Vec::new() }) };
    let talk = |identity: &Identity| {
        site.balancer.on(|| {
            let mut control = identity.connect(at, common::PATIENCE)?;
            control.send(&ping)?;
            control.receive()
        })
    };
    assert!(talk(&site.identity(Role::Balancer, "balancer")).is_ok());

    // Another backend's certificate says that it is none. A peer that lies about its own role cannot load it.
    let file = |name: &str| site.file(name);
    let wrong = Identity::load(Role::Balancer, &file("authority.pem"), &file("b0.pem"), &file("b0.key"));
    assert!(wrong.unwrap_err().to_string().contains("not a balancer's certificate"));
    let error = talk(&site.identity(Role::Backend, "b0")).unwrap_err();
    assert!(error.to_string().contains("certificate"), "a backend does not talk to a backend: {error}");

    // The right names, of another authority.
    let other = keys::make(&[("balancer".to_owned(), Role::Balancer)]).unwrap();
    std::fs::write(file("x.pem"), &other.peers[0].1).unwrap();
    std::fs::write(file("x.key"), &other.peers[0].2).unwrap();
    let stranger = Identity::load(Role::Balancer, &file("authority.pem"), &file("x.pem"), &file("x.key")).unwrap();
    assert!(talk(&stranger).is_err());
}

#[test]
fn a_balancer_that_refuses_leaves_it_at_the_backend() {
    let site = Site::new(1);
    let backend = site.start_backend(0, QUICK);
    let balancer = Balancer::new(&site);
    let heard = balancer.listen(|body| match body {
        Body::ServerDone(done) if done.snapshot.is_empty() => Some(Body::EndOffload),
        _ => Some(Body::Refused(Refusal::Snapshot)),
    });
    let (mut client, server) = balancer.client();
    balancer.hand_out(&mut balancer.control(), 7, server, REQUEST);
    assert_eq!(client.answer().unwrap(), 200);
    let since = Instant::now();
    for _ in 0..5 {
        assert_eq!(client.get("/bytes/70000").unwrap(), 200);
    }
    let most = 1 + since.elapsed().as_secs();
    let (_, offer) = heard.recv_timeout(common::PATIENCE).unwrap();
    assert!(!done(&offer).snapshot.is_empty());
    assert!((1..=most).contains(&backend.aborted("give_back")), "it rests for a second before it tries again");
    drop(client);
    backend.is_clean();
}

#[test]
fn a_lost_confirmation_is_asked_for() {
    for (answer, outcome) in [
        (Some(Body::Refused(Refusal::NotTaken)), "kept"),
        (Some(Body::EndOffload), "gone"),
        (Some(Body::Refused(Refusal::Transfer)), "reset"),
        (None, "reset"),
    ] {
        let site = Site::new(1);
        let backend = site.start_backend(0, QUICK);
        let balancer = Balancer::new(&site);
        let to_abort = answer.clone();
        let heard = balancer.listen(move |body| match body {
            Body::ServerDone(done) if done.snapshot.is_empty() => Some(Body::EndOffload),
            Body::Abort(_) => to_abort.clone(),
            _ => None,
        });
        let (mut client, server) = balancer.client();
        balancer.hand_out(&mut balancer.control(), 7, server, REQUEST);
        assert_eq!(client.answer().unwrap(), 200);
        client.ask("/bytes/70000").unwrap();
        let asked = common::all(&heard).find(|(_, body)| matches!(body, Body::Abort(_))).unwrap();
        assert_eq!(asked, (7, Body::Abort(0)), "{answer:?}");
        match outcome {
            "kept" => {
                assert_eq!(client.answer().unwrap(), 200);
                eventually("the next attempt is another generation", || {
                    client.get("/bytes/10").unwrap();
                    heard.try_iter().any(|(_, body)| body == Body::Abort(1))
                });
                drop(client);
            }
            // Nobody has it here: the balancer that says so is not a real one.
            "gone" => assert_eq!(backend.report().reset, 0),
            _ => {
                client.is_reset();
                assert_eq!(backend.report().reset, 1);
            }
        }
        backend.is_clean();
    }
}

#[test]
fn a_balancer_that_cannot_be_reached_is_told_later() {
    let site = Site::new(1);
    let backend = site.start_backend(0, QUICK);
    let balancer = Balancer::new(&site);
    let (mut client, server) = balancer.client();
    balancer.hand_out(&mut balancer.control(), 7, server, REQUEST);
    assert_eq!(client.answer().unwrap(), 200);
    assert_eq!(client.get("/bytes/70000").unwrap(), 200, "nothing was said, so it stays");
    drop(client);
    backend.is_clean();
    let heard = balancer.listen(|_| Some(Body::EndOffload));
    let (transfer, body) = heard.recv_timeout(common::PATIENCE).unwrap();
    assert_eq!((transfer, done(&body).snapshot.len()), (7, 0));
}

#[test]
fn a_port_that_is_taken_is_made_up_for() {
    let site = Site::new(1);
    let backend = site.start_backend(0, "policy = \"pin\"\n");
    let balancer = Balancer::new(&site);
    let heard = balancer.listen(|_| Some(Body::EndOffload));
    // The client's port is connected to the backend's port 80 already.
    let connect =
        |host| common::Client::new(site.client.on(|| connect_from(site.address(1, 40_000), site.address(host, 80))));
    let mut other = connect(3);
    assert_eq!(other.get("/bytes/10").unwrap(), 200);
    let mut client = connect(2);
    let server = balancer.accept();
    let flow = balancer.hand_out(&mut balancer.control(), 7, server, REQUEST);
    assert_eq!(client.answer().unwrap(), 200);
    assert_eq!(client.get("/bytes/700000").unwrap(), 200);
    assert_eq!(other.get("/bytes/700000").unwrap(), 200, "the other connection is another one");
    let rule = balancer.steer.rules().into_iter().find(|rule| rule.flow == flow).unwrap();
    let underdeck_handoff_steer::Action::Redirect(target) = rule.action else { panic!("{rule:?}") };
    assert!(target.address.port() >= 61_000, "{target:?}");
    drop((client, other));
    heard.recv_timeout(common::PATIENCE).unwrap();
    backend.is_clean();
}

/// Connects from a port that is in use for another destination.
fn connect_from(local: std::net::SocketAddr, to: std::net::SocketAddr) -> std::net::TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &local).unwrap();
    connect(&socket, &to).unwrap();
    socket.into()
}
