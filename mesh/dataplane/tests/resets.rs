//! Resets in the middle of a message, by either side: the other one sees an end that does not look like a whole message,
//! nobody else sees anything, and nothing is left. Needs root and Envoy.

mod support;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use support::backend::pattern;
use support::client::Client;
use support::{Agent, WAYS, inside, start_with};
use underdeck_lab::wait;

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n")
}

/// What a server saw.
#[derive(Default)]
struct Seen {
    /// Heads of requests.
    begun: AtomicU64,
    /// Requests with all of their bodies.
    whole: AtomicU64,
    /// Bodies that were not whole when their connection ended.
    cut: AtomicU64,
    /// Responses that could not be sent.
    unsent: AtomicU64,
}

/// Answers `.../FRAMING/SIZE`. In the middle of its response to `.../reset/FRAMING/SIZE` it waits at the gate, and resets
/// the connection; to `.../wait/FRAMING/SIZE` it goes on after that.
struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
    gate: Arc<Barrier>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (seen, gate) = (Arc::new(Seen::default()), Arc::new(Barrier::new(2)));
        let shared = (seen.clone(), gate.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, gate) = shared.clone();
                std::thread::spawn(move || while serve(&stream, &seen, &gate).is_some() {});
            }
        });
        Self { address, seen, gate }
    }

    fn until(&self, what: &str, is: impl Fn(&Seen) -> bool) {
        let found = wait::until(what, Duration::from_secs(60), || is(&self.seen).then_some(()));
        let now = [&self.seen.whole, &self.seen.cut, &self.seen.unsent].map(|of| of.load(Ordering::Relaxed));
        found.unwrap_or_else(|error| panic!("{error}: {now:?}"));
    }
}

fn read_body(input: &mut impl BufRead, head: &str) -> Option<()> {
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            input.read_line(&mut line).ok()?;
            let size = usize::from_str_radix(line.trim(), 16).ok()?;
            input.read_exact(&mut vec![0; size + 2]).ok()?;
            if size == 0 {
                return Some(());
            }
        }
    }
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    input.read_exact(&mut vec![0; length.unwrap_or(0)]).ok()
}

/// One request, and its response.
fn serve(stream: &TcpStream, seen: &Seen, gate: &Barrier) -> Option<()> {
    let count = |of: &AtomicU64| {
        of.fetch_add(1, Ordering::Relaxed);
    };
    let (mut input, mut output) = (BufReader::new(stream), stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if input.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    count(&seen.begun);
    if read_body(&mut input, &head).is_none() {
        count(&seen.cut);
        return None;
    }
    count(&seen.whole);
    let parts: Vec<_> = head.split(' ').nth(1)?.rsplit('/').collect();
    let (size, framing, what) = (parts[0].parse().unwrap_or(2), *parts.get(1)?, parts.get(2));
    let lines = match framing {
        "chunked" => "Transfer-Encoding: chunked\r\n".to_owned(),
        "until" => String::new(),
        _ => format!("Content-Length: {size}\r\n"),
    };
    let body = match framing {
        "chunked" => [format!("{size:x}\r\n").as_bytes(), &pattern(size), b"\r\n0\r\n\r\n"].concat(),
        _ => pattern(size),
    };
    let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
    let (first, second) = body.split_at(size / 2);
    let mut sent = output.write_all(&[head.as_bytes(), first].concat());
    if what == Some(&"reset") {
        gate.wait();
        let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
        return None;
    }
    if what == Some(&"wait") {
        gate.wait();
        gate.wait();
    }
    sent = sent.and_then(|()| output.write_all(second));
    // What was waited for is short: the server may get rid of it, or be told late.
    if sent.is_err() && what != Some(&"wait") {
        count(&seen.unsent);
    }
    (framing != "until").then(|| sent.ok())?
}

fn reset(client: Client) {
    let socket = socket2::SockRef::from(&client.stream.get_ref().0);
    socket.set_linger(Some(Duration::ZERO)).expect("a socket");
}

/// One connection that nothing may happen to, and new ones.
fn all_is_well(stays: &mut Client, service: SocketAddr) {
    for client in [stays, &mut Client::connect(service)] {
        for (framing, size) in [("length", 3000), ("chunked", 300), ("length", 100_000)] {
            assert_eq!(client.get(&format!("/{framing}/{size}")).matches(size), Ok(()));
        }
    }
}

/// Small and large, that the kernel moves and that the agent does.
const RESPONSES: [(&str, usize); 9] = [
    ("length", 4000),
    ("length", 60_000),
    ("length", 500_000),
    ("length", 3_000_000),
    ("chunked", 4000),
    ("chunked", 3_000_000),
    ("until", 4000),
    ("until", 60_000),
    ("until", 3_000_000),
];

#[test]
fn an_endpoint_that_resets_in_the_middle_of_a_response() {
    let name = "an_endpoint_that_resets_in_the_middle_of_a_response";
    inside(name, |group| {
        for more in WAYS {
            let server = Server::start();
            let (agent, service) = start_with(name, group, "127.93.0.1:80", server.address, more);
            let sockets = agent.sockets();
            let mut stays = Client::connect(service);
            for (framing, size) in RESPONSES {
                for way in ["", "/edited", "/response", "/envoy"] {
                    if (way, framing) == ("/envoy", "until") {
                        // Envoy takes the reset for the end of the response, and says so to the client.
                        continue;
                    }
                    let path = format!("{way}/reset/{framing}/{size}");
                    let mut client = Client::connect(service);
                    client.send(get(&path).as_bytes());
                    let mut got = vec![0; 1];
                    client.stream.read_exact(&mut got).expect("the beginning");
                    let gate = server.gate.clone();
                    let resetting = std::thread::spawn(move || gate.wait());
                    let end = client.stream.read_to_end(&mut got);
                    resetting.join().expect("the server is there");
                    assert!(got.starts_with(b"HTTP/1.1 200 OK\r\n") && got.len() < size, "{path} {more}");
                    let kind = end.map_err(|error| error.kind());
                    assert_eq!(kind, Err(ErrorKind::ConnectionReset), "{path} {more}: {} bytes", got.len());
                    all_is_well(&mut stays, service);
                }
            }
            drop(stays);
            agent.is_as_new(sockets);
            let requests = agent.status().requests;
            let all = requests.kernel + requests.agent + requests.envoy;
            assert_eq!((all, requests.envoy), (33 * 7, 6), "{more}: {requests:?}");
            agent.stop();
        }
    });
}

#[test]
fn a_client_that_resets_in_the_middle_of_its_request() {
    let name = "a_client_that_resets_in_the_middle_of_its_request";
    inside(name, |group| {
        for more in WAYS {
            let server = Server::start();
            let (agent, service) = start_with(name, group, "127.93.0.2:80", server.address, more);
            let sockets = agent.sockets();
            let mut stays = Client::connect(service);
            let (mut cut, mut well) = (0, 0);
            for (path, size) in
                [("/up/length/2", 1 << 20), ("/envoy/up/length/2", 1 << 20), ("/edited/length/2", 1 << 24)]
            {
                let part = pattern(size / 2);
                for framing in [format!("Content-Length: {size}\r\n\r\n"), "Transfer-Encoding: chunked\r\n\r\n".into()]
                {
                    // The last one ends between two chunks.
                    let chunk = [format!("{:x}\r\n", part.len()).as_bytes(), &part, b"\r\n"].concat();
                    let body = if framing.starts_with('C') { &part } else { &chunk };
                    let mut client = Client::connect(service);
                    client.send(format!("POST {path} HTTP/1.1\r\nHost: shop.test\r\n{framing}").as_bytes());
                    client.send(body);
                    server
                        .until("the server has the head", |seen| seen.begun.load(Ordering::Relaxed) == cut + well + 1);
                    reset(client);
                    cut += 1;
                    server.until("the server sees the end", |seen| seen.cut.load(Ordering::Relaxed) == cut);
                    all_is_well(&mut stays, service);
                    well += 6;
                }
            }
            // What the kernel keeps together does not reach the server at all.
            let mut client = Client::connect(service);
            client.send(b"POST /up/length/2 HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 5000\r\n\r\nhalf");
            reset(client);
            all_is_well(&mut stays, service);
            drop(stays);
            agent.is_as_new(sockets);
            let seen = [&server.seen.whole, &server.seen.cut].map(|of| of.load(Ordering::Relaxed));
            assert_eq!(seen, [well + 6, cut], "{more}: nothing that was cut was taken for whole");
            agent.stop();
        }
    });
}

/// Sends a request, reads a byte of the response, and resets.
fn leave(server: &Server, service: SocketAddr, path: &str, agent: &Agent) {
    let mut client = Client::connect(service);
    client.send(get(path).as_bytes());
    client.stream.read_exact(&mut [0]).expect("the beginning");
    if path.contains("/wait/") {
        server.gate.wait();
    }
    reset(client);
    // Also while the server sends nothing.
    agent.until("the agent sees the end", |status| status.connections == 1);
    if path.contains("/wait/") {
        server.gate.wait();
    }
}

#[test]
fn a_client_that_resets_in_the_middle_of_a_response() {
    let name = "a_client_that_resets_in_the_middle_of_a_response";
    inside(name, |group| {
        for more in WAYS {
            let server = Server::start();
            let (agent, service) = start_with(name, group, "127.93.0.3:80", server.address, more);
            let sockets = agent.sockets();
            let mut stays = Client::connect(service);
            all_is_well(&mut stays, service);
            agent.until("one connection is left", |status| status.connections == 1);
            let mut unsent = 0;
            for way in ["", "/edited", "/response", "/envoy"] {
                for framing in ["length", "chunked", "until"] {
                    // More than all buffers on the way hold: the server is told, and not held for ever.
                    leave(&server, service, &format!("{way}/{framing}/64000000"), &agent);
                    unsent += 1;
                    server.until("the server is told", |seen| seen.unsent.load(Ordering::Relaxed) == unsent);
                    all_is_well(&mut stays, service);
                }
                // The kernel has moved the first half.
                for (framing, size) in [("length", 30_000), ("length", 500_000), ("chunked", 30_000), ("until", 30_000)]
                {
                    leave(&server, service, &format!("{way}/wait/{framing}/{size}"), &agent);
                    all_is_well(&mut stays, service);
                }
            }
            drop(stays);
            agent.is_as_new(sockets);
            agent.stop();
        }
    });
}
