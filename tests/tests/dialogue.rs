//! A dialogue through a tunnel, while payload of others is held: each message arrives at once, whatever bytes it ends with.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use underdeck_lab::client::{Connection, Front, Pace};
use underdeck_lab::engine as counters;
use underdeck_lab::proxy::{Envoy, Haproxy, Mode, Nginx, Proxy, Spec};
use underdeck_lab::wait;
use underdeck_tests::matrix::{SETTLE, engine};

/// Bytes of the body that a client does not read, many more than sockets and a proxy's buffers take.
const HELD: usize = 32 << 20;
/// Bytes of a message. The last one differs from message to message.
const MESSAGE: usize = 40;
/// Longer than all messages take.
const WITHIN: Duration = Duration::from_secs(15);

/// The first line of a head, which is read to its end.
fn head(from: &mut impl BufRead) -> String {
    let (mut first, mut line) = (String::new(), String::new());
    from.read_line(&mut first).expect("a line");
    while from.read_line(&mut line).expect("a line") > 2 {
        line.clear();
    }
    first
}

/// Answers with a large body, or echoes what comes through a tunnel.
fn serve(stream: TcpStream) {
    let mut from = BufReader::new(stream.try_clone().expect("duplicated"));
    let mut to = stream;
    if head(&mut from).contains("/held") {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {HELD}\r\n\r\n");
        // The client leaves in the middle.
        let _ = to.write_all(answer.as_bytes()).and_then(|()| to.write_all(&vec![b'x'; HELD]));
        return;
    }
    const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    to.write_all(SWITCH.as_bytes()).expect("sent");
    let mut message = [0; MESSAGE];
    while from.read_exact(&mut message).is_ok() {
        to.write_all(&message).expect("sent");
    }
}

fn backend() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let addr = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || serve(stream.expect("a connection")));
        }
    });
    addr
}

/// A connection on which `target` was asked for.
fn request(front: &Front, target: &str, fields: &str) -> Connection {
    let pace = Pace { deadline: WITHIN, ..Pace::default() };
    let mut client = Connection::open(front, &pace).expect("connected");
    client.send_raw(format!("GET {target} HTTP/1.1\r\nHost: it\r\n{fields}\r\n").as_bytes()).expect("sent");
    client
}

fn dialogue(name: &str, spec: &Spec) {
    const FIELDS: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let backend = backend();
    for mode in [Mode::Plain].into_iter().chain(engine().map(Mode::Underdeck)) {
        let proxy = Proxy::start(spec, &mode, backend).expect("started");
        let front = proxy.front().expect("a front");
        let held = request(&front, "/held", "");
        // What leaves through TLS is put back at once: there it is the dialogue alone that is tested.
        let holds = matches!(mode, Mode::Underdeck(_)) && front.tls.is_none();
        if holds {
            let holds = || counters::snapshot(&proxy).filter(|it| it.bytes_held > 0);
            wait::until("payload is held", WITHIN, holds).expect("otherwise this would test nothing");
        }
        let mut tunnel = request(&front, "/tunnel", FIELDS);
        let end_of_head = |it: &[u8]| it.windows(4).position(|it| it == b"\r\n\r\n").map(|at| at + 4);
        let head = tunnel.take(end_of_head).expect("an answer");
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{name}");
        for last in 0..=u8::MAX {
            let mut message = [b'm'; MESSAGE];
            message[MESSAGE - 1] = last;
            tunnel.send_raw(&message).expect("sent");
            let echo = tunnel.take(|it| (it.len() >= MESSAGE).then_some(MESSAGE));
            assert_eq!(echo.as_deref(), Ok(&message[..]), "{name}, {mode:?}, last byte {last:#x}");
        }
        drop((tunnel, held));
        if let Mode::Underdeck(_) = mode {
            let it = counters::settled(&proxy, SETTLE).expect("settled");
            assert_eq!((it.resets, it.panics), (0, 0), "{name}: {it:?}");
        }
        proxy.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn nginx() {
    dialogue("nginx", &Spec::Nginx(Nginx::default()));
}

#[test]
fn nginx_tls() {
    dialogue("nginx with TLS", &Spec::Nginx(Nginx { tls: true, ..Nginx::default() }));
}

#[test]
fn haproxy() {
    dialogue("haproxy", &Spec::Haproxy(Haproxy::default()));
}

#[test]
fn envoy() {
    dialogue("envoy", &Spec::Envoy(Envoy::default()));
}
