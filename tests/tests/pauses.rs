//! Peers that stop for longer than payload is kept that nobody sends, and then go on.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::{sleep, spawn};
use std::time::Duration;

use underdeck_lab::content;
use underdeck_lab::engine as counters;
use underdeck_lab::proxy::{Engine, Mode, Nginx, Proxy, Spec};
use underdeck_lab::wait;
use underdeck_tests::matrix::{SETTLE, engine};

/// How long such payload is kept, in whole seconds, and a pause that is longer for certain.
const GRACE_S: u64 = 1;
const PAUSE: Duration = Duration::from_millis(1000 * (GRACE_S + 2) + 200);
const WITHIN: Duration = Duration::from_secs(20);
/// Bytes of a chunk, several of which nginx holds in memory.
const CHUNK: usize = 150_000;
/// Chunks of a download: more than sockets and buffers take.
const CHUNKS: usize = 200;

fn chunk(number: usize) -> Vec<u8> {
    [format!("{CHUNK:x}\r\n").as_bytes(), &content::bytes(number as u64, 0, CHUNK), b"\r\n"].concat()
}

/// A message in chunks, without its end: what they hold.
fn read_chunks(from: &mut impl BufRead) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).expect("a line");
        let size = usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("{line:?} is no size"));
        let begin = all.len();
        all.resize(begin + size, 0);
        from.read_exact(&mut all[begin..]).expect("a chunk");
        from.read_exact(&mut [0; 2]).expect("its end");
        if size == 0 {
            return all;
        }
    }
}

fn head(from: &mut impl BufRead) -> String {
    let (mut head, mut end) = (String::new(), 0);
    while head.len() > end + 2 || end == 0 {
        end = head.len();
        assert_ne!(from.read_line(&mut head).expect("a line"), 0, "an end after {head:?}");
    }
    head.to_ascii_lowercase()
}

/// Answers a GET with chunks, and an upload with how many bytes came and whether they are right.
fn serve(stream: TcpStream) {
    let mut from = BufReader::new(stream.try_clone().expect("duplicated"));
    let mut to = stream;
    let head = head(&mut from);
    if head.starts_with("get") {
        to.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").expect("sent");
        (0..CHUNKS).for_each(|number| to.write_all(&chunk(number)).expect("sent"));
        return to.write_all(b"0\r\n\r\n").expect("sent");
    }
    let body = match head.split_once("content-length: ").and_then(|(_, rest)| rest.lines().next()) {
        None => read_chunks(&mut from),
        Some(length) => {
            let mut body = vec![0; length.parse().expect("a length")];
            from.read_exact(&mut body).expect("a body");
            body
        }
    };
    let right = body.chunks(CHUNK).enumerate().all(|(at, it)| it == content::bytes(at as u64, 0, it.len()));
    let answer = format!("{} {right}", body.len());
    write!(to, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()).expect("sent");
}

fn serve_all(listener: TcpListener) {
    for stream in listener.incoming() {
        spawn(move || serve(stream.expect("a connection")));
    }
}

fn backend() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let addr = listener.local_addr().expect("its address");
    spawn(move || serve_all(listener));
    addr
}

fn client(front: SocketAddr, request: &str) -> TcpStream {
    let mut client = TcpStream::connect(front).expect("connected");
    client.set_read_timeout(Some(WITHIN)).expect("set");
    client.write_all(request.as_bytes()).expect("sent");
    client
}

/// The engine, with little patience.
fn impatient() -> Option<Mode> {
    let environment = vec![("UNDERDECK_GRACE_SECONDS".to_owned(), GRACE_S.to_string())];
    engine().map(|it| Mode::Underdeck(Engine { environment, ..it }))
}

/// Runs `then` with nginx, plain and under the engine, which holds payload by then.
fn with_nginx(server: &str, then: impl Fn(SocketAddr, &dyn Fn())) {
    let spec = Spec::Nginx(Nginx { server: server.to_owned(), ..Nginx::large() });
    let backend = backend();
    for mode in [Mode::Plain].into_iter().chain(impatient()) {
        let proxy = Proxy::start(&spec, &mode, backend).expect("started");
        let pause = || {
            if let Mode::Underdeck(_) = mode {
                let holds = || counters::snapshot(&proxy).filter(|it| it.bytes_held > 0);
                wait::until("payload is held", WITHIN, holds).unwrap_or_else(|error| {
                    panic!("this would test nothing: {error}: {:?}", counters::snapshot(&proxy))
                });
            }
            sleep(PAUSE);
        };
        then(proxy.front().expect("a front").addr, &pause);
        if let Mode::Underdeck(_) = mode {
            let it = counters::settled(&proxy, SETTLE).expect("settled");
            assert_eq!((it.resets, it.panics), (0, 0), "{it:?}");
        }
        proxy.stop().expect("nothing is left");
    }
}

#[test]
fn a_client_that_stops_reading_gets_the_rest_when_it_goes_on() {
    with_nginx("proxy_max_temp_file_size 0;", |front, pause| {
        let mut from = BufReader::new(client(front, "GET / HTTP/1.1\r\nHost: it\r\n\r\n"));
        assert!(head(&mut from).contains(" 200 "));
        pause();
        let body = read_chunks(&mut from);
        assert_eq!(body.len(), CHUNK * CHUNKS);
        for (number, it) in body.chunks(CHUNK).enumerate() {
            assert!(it == content::bytes(number as u64, 0, CHUNK), "chunk {number}");
        }
    });
}

/// Sends an upload of two chunks' bytes, in chunks (with `pause` in between) or with its length, and reads the answer.
fn upload(front: SocketAddr, target: &str, chunked: bool, pause: &dyn Fn()) {
    let framing =
        if chunked { "Transfer-Encoding: chunked".to_owned() } else { format!("Content-Length: {}", 2 * CHUNK) };
    let mut to = client(front, &format!("POST {target} HTTP/1.1\r\nHost: it\r\n{framing}\r\n\r\n"));
    for number in 0..2 {
        let bytes = if chunked { chunk(number) } else { content::bytes(number as u64, 0, CHUNK) };
        to.write_all(&bytes).expect("sent");
        if number == 0 {
            pause();
        }
    }
    if chunked {
        to.write_all(b"0\r\n\r\n").expect("sent");
    }
    let mut from = BufReader::new(to);
    let head = head(&mut from);
    assert!(head.contains(" 200 "), "{head}");
    let answer = format!("{} true", 2 * CHUNK);
    let mut got = vec![0; answer.len()];
    from.read_exact(&mut got).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&got), answer);
}

#[test]
fn an_upload_in_chunks_may_pause() {
    with_nginx("client_body_buffer_size 1m;", |front, pause| {
        // Only then it is known where uploads leave.
        upload(front, "/", false, &|| ());
        upload(front, "/", true, pause);
    });
}

#[test]
fn an_upload_may_wait_for_a_server_that_takes_it() {
    // Its queue is full, so that nobody gets an answer to a SYN.
    let family = rustix::net::AddressFamily::INET;
    let listener = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("bound");
    rustix::net::listen(&listener, 0).expect("it listens");
    let listener = TcpListener::from(listener);
    let busy = listener.local_addr().expect("its address");
    let first = TcpStream::connect(busy).expect("the only one that has room");
    let server = format!(
        "client_body_buffer_size 1m; location @other {{ proxy_pass http://backend; }}\n\
         location /busy {{ proxy_pass http://{busy}; proxy_connect_timeout {}; error_page 504 = @other; }}",
        GRACE_S + 3,
    );
    with_nginx(&server, |front, pause| {
        upload(front, "/", false, &|| ());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || upload(front, "/busy", false, &|| ()));
            pause();
            assert!(!waiting.is_finished(), "otherwise this would test nothing");
        });
    });
    drop((first, listener));
}

#[test]
fn an_upload_that_nobody_wants_is_not_kept_for_a_client_that_stays() {
    let server = "client_body_buffer_size 1m; location /unwanted { return 200; }".to_owned();
    let spec = Spec::Nginx(Nginx { server, ..Nginx::default() });
    let Some(mode) = impatient() else { return };
    let proxy = Proxy::start(&spec, &mode, backend()).expect("started");
    let front = proxy.front().expect("a front").addr;
    upload(front, "/", false, &|| ());
    let mut client = client(front, &format!("POST /unwanted HTTP/1.1\r\nHost: it\r\nContent-Length: {CHUNK}\r\n\r\n"));
    let head = head(&mut BufReader::new(client.try_clone().expect("duplicated")));
    assert!(head.contains(" 200 "), "{head}");
    client.write_all(&content::bytes(0, 0, CHUNK)).expect("sent");
    let dropped = || {
        let it = counters::snapshot(&proxy)?;
        let dropped = it.role(counters::Role::Accepted).bytes_dropped;
        (it.bytes_held == 0 && dropped > CHUNK as u64 / 2).then_some(())
    };
    wait::until("it is dropped", WITHIN / 2, dropped)
        .unwrap_or_else(|error| panic!("{error}: {:?}", counters::snapshot(&proxy)));
    client.write_all(b"GET /unwanted HTTP/1.1\r\nHost: it\r\n\r\n").expect("it is still open");
    assert!(client.read(&mut [0; 100]).expect("an answer") > 0);
    drop(client);
    proxy.stop().expect("nothing is left");
}
