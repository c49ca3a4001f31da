//! A dialogue through a tunnel, while payload of others is held: each message arrives at once, whatever bytes it ends with.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use underdeck_lab::client::{Connection, Pace};
use underdeck_lab::engine as counters;
use underdeck_lab::proxy::{Envoy, Haproxy, Mode, Nginx, Proxy, Spec};
use underdeck_lab::wait;
use underdeck_tests::matrix::{SETTLE, engine};

/// Bytes of the body that a client does not read, many more than sockets and a proxy's buffers take.
const HELD: usize = 32 << 20;
/// Bytes of a chunk, several of which a proxy's buffers take.
const CHUNK: usize = 32 << 10;
/// Bytes of an upload that a proxy's memory takes.
const UPLOAD: usize = 512 << 10;
/// Bytes of a message. The last one differs from message to message.
const MESSAGE: usize = 40;
/// Longer than all messages take.
const WITHIN: Duration = Duration::from_secs(20);

/// The first line of a head, which is read to its end.
fn head(from: &mut impl BufRead) -> String {
    let (mut first, mut line) = (String::new(), String::new());
    from.read_line(&mut first).expect("a line");
    while from.read_line(&mut line).expect("a line") > 2 {
        line.clear();
    }
    first
}

/// Answers with a large body, takes an upload, or echoes what comes through a tunnel.
fn serve(stream: TcpStream) {
    let mut from = BufReader::new(stream.try_clone().expect("duplicated"));
    let mut to = stream;
    let line = head(&mut from);
    if line.contains("/length") {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {HELD}\r\n\r\n");
        // The client leaves in the middle.
        let _ = to.write_all(answer.as_bytes()).and_then(|()| to.write_all(&vec![b'x'; HELD]));
        return;
    }
    if line.contains("/chunks") {
        let chunk = [format!("{CHUNK:x}\r\n").as_bytes(), &[b'x'; CHUNK], b"\r\n"].concat();
        let mut rest = HELD / CHUNK;
        let mut sent = to.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while sent.is_ok() && rest > 0 {
            (sent, rest) = (to.write_all(&chunk), rest - 1);
        }
        return;
    }
    if line.contains("/upload") {
        from.read_exact(&mut vec![0; UPLOAD]).expect("an upload");
        to.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("sent");
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

fn request(front: SocketAddr, what: &str, fields: &str) -> TcpStream {
    let mut client = TcpStream::connect(front).expect("connected");
    client.set_read_timeout(Some(WITHIN)).expect("set");
    client.set_nodelay(true).expect("set");
    write!(client, "{what} HTTP/1.1\r\nHost: it\r\n{fields}\r\n").expect("sent");
    client
}

/// Somebody else's payload, and the connections that keep the proxy from sending it.
type Holding = fn(SocketAddr) -> Vec<TcpStream>;

/// A client that asks for a body and does not read it.
fn length(front: SocketAddr) -> Vec<TcpStream> {
    vec![request(front, "GET /length", "")]
}

/// The same of a body in chunks, of which many are held by themselves.
fn chunks(front: SocketAddr) -> Vec<TcpStream> {
    vec![request(front, "GET /chunks", "")]
}

/// An upload that the proxy keeps until all of it has come.
fn upload(front: SocketAddr) -> Vec<TcpStream> {
    let field = format!("Content-Length: {UPLOAD}\r\n");
    // Only then it is known where uploads leave.
    let mut first = request(front, "POST /upload", &field);
    first.write_all(&[b'u'; UPLOAD]).expect("sent");
    assert!(head(&mut BufReader::new(&first)).contains(" 200 "));
    let mut second = request(front, "POST /upload", &field);
    second.write_all(&[b'u'; UPLOAD / 2]).expect("sent");
    vec![second]
}

fn dialogue(name: &str, spec: &Spec, holding: Holding) {
    const FIELDS: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let backend = backend();
    let engine = engine().map(|it| it.min_body(CHUNK as u64 / 4));
    for mode in [Mode::Plain].into_iter().chain(engine.map(Mode::Underdeck)) {
        let proxy = Proxy::start(spec, &mode, backend).expect("started");
        let front = proxy.front().expect("a front");
        let held = holding(front.addr);
        if let (Mode::Underdeck(_), false) = (&mode, held.is_empty()) {
            let holds = || counters::snapshot(&proxy).filter(|it| it.bytes_held > 0);
            wait::until("payload is held", WITHIN, holds)
                .unwrap_or_else(|error| panic!("this would test nothing: {error}: {:?}", counters::snapshot(&proxy)));
        }
        let mut tunnel = Connection::open(&front, &Pace { deadline: WITHIN, ..Pace::default() }).expect("connected");
        tunnel.send_raw(format!("GET /tunnel HTTP/1.1\r\nHost: it\r\n{FIELDS}\r\n").as_bytes()).expect("sent");
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
    dialogue("nginx", &Spec::Nginx(Nginx::default()), length);
}

/// What leaves through TLS is put back at once, so that nothing is held: there it is the dialogue alone that is tested.
#[test]
fn nginx_tls() {
    dialogue("nginx with TLS", &Spec::Nginx(Nginx { tls: true, ..Nginx::default() }), |_| Vec::new());
}

#[test]
fn nginx_that_holds_chunks() {
    let server = "proxy_max_temp_file_size 0;".to_owned();
    dialogue("nginx, chunks", &Spec::Nginx(Nginx { server, ..Nginx::large() }), chunks);
}

#[test]
fn nginx_that_holds_an_upload() {
    let server = "client_body_buffer_size 1m;".to_owned();
    dialogue("nginx, an upload", &Spec::Nginx(Nginx { server, ..Nginx::default() }), upload);
}

#[test]
fn haproxy() {
    dialogue("haproxy", &Spec::Haproxy(Haproxy::default()), length);
}

#[test]
fn envoy() {
    dialogue("envoy", &Spec::Envoy(Envoy::default()), length);
}

#[test]
fn envoy_that_holds_chunks() {
    dialogue("envoy, chunks", &Spec::Envoy(Envoy::default()), chunks);
}
