//! What is known of Linux's sockmaps and must not hurt. Two more facts have their tests elsewhere: `FIONREAD` in
//! `streams.rs`, and that a verdict's redirection is done later, by a worker of the kernel, in `order.rs`. Needs root,
//! Envoy and clang.

mod support;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use support::backend::{Backend, pattern};
use support::client::Client;
use support::{WAYS, inside, start_with};
use underdeck_lab::wait;

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n")
}

fn post(path: &str, size: usize) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: shop.test\r\nContent-Length: {size}\r\n\r\n");
    [head.as_bytes(), &pattern(size)].concat()
}

fn is_upload(client: &mut Client, size: usize) {
    let text = client.receive(false).expect("an answer").text();
    assert!(text.ends_with(&format!("|body {size} 1")), "{text}");
}

/// What the kernel decides goes its way before the agent has accepted the connection, and what the agent has to do waits.
#[test]
fn bytes_that_come_before_the_agent_accepts_are_not_lost() {
    let name = "bytes_that_come_before_the_agent_accepts_are_not_lost";
    inside(name, |group| {
        for more in WAYS {
            let backend = Backend::start();
            let (agent, service) = start_with(name, group, "127.92.0.1:80", backend.address, more);
            agent.freeze();
            let send = |bytes: &[u8]| {
                let mut client = Client::connect(service);
                client.send(bytes);
                client
            };
            let mut kernel = send(get("/size/1000").as_bytes());
            assert_eq!(kernel.receive(false).expect("without the agent").matches(1000), Ok(()), "{more}");
            let mut uploads = [("/up", 70_000), ("/edited/up", 30_000), ("/envoy", 90_000)]
                .map(|(path, size)| (send(&post(path, size)), size));
            let mut answered = send(get("/forbidden").as_bytes());
            let sizes = [("chunked", 20_000), ("size", 2_000_000), ("chunked", 300_000)];
            let mut relayed = sizes.map(|(path, size)| (send(get(&format!("/{path}/{size}")).as_bytes()), size));
            let mut half = send(get("/chunked/5000").as_bytes());
            half.stream.get_ref().0.shutdown(Shutdown::Write).expect("open");
            drop(send(get("/chunked/6000").as_bytes()));
            let mut many =
                send([get("/forbidden"), get("/envoy"), get("/size/70"), get("/size/80")].concat().as_bytes());
            let mut parts = send(&get("/edited/a").as_bytes()[..20]);
            agent.signal(libc::SIGCONT);
            uploads.iter_mut().for_each(|(client, size)| is_upload(client, *size));
            assert_eq!(answered.receive(false).expect("an answer").status, 403);
            for (client, size) in &mut relayed {
                assert_eq!(client.receive(false).expect("an answer").matches(*size), Ok(()), "{more}");
            }
            assert_eq!(half.receive(false).expect("an answer").matches(5000), Ok(()), "{more}");
            assert!(half.has_ended());
            assert_eq!(many.receive(false).expect("an answer").status, 403);
            assert!(many.receive(false).expect("an answer").text().starts_with("GET /envoy "));
            for size in [70, 80] {
                assert_eq!(many.receive(false).expect("an answer").matches(size), Ok(()), "{more}");
            }
            parts.send(&get("/edited/a").as_bytes()[20..]);
            assert!(parts.receive(false).expect("an answer").text().starts_with("GET /a "));
            let mut all = vec![kernel, answered, many, parts];
            all.extend(uploads.into_iter().chain(relayed).map(|(client, _)| client));
            for client in &mut all {
                assert_eq!(client.get("/size/10").matches(10), Ok(()), "{more}");
            }
            drop(all);
            agent.until("no connection is left", |status| status.connections == 0);
            agent.stop();
        }
    });
}

/// Bytes that wait for a server, as TCP counts them: of all connections to its port.
fn waiting(server: SocketAddr) -> u64 {
    let text = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let port = format!(":{:04X}", server.port());
    let queues = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_server = queues.filter(|words| words[1].ends_with(&port) && words[3] == "01");
    of_server.map(|words| u64::from_str_radix(words[4].split(':').nth(1).expect("two"), 16).expect("a number")).sum()
}

/// Answers each request with the size of its body. `looks`: waits for readiness, reads a byte, and asks how much is left.
fn serve(mut stream: TcpStream, looks: bool) -> Option<()> {
    loop {
        let mut first = [0; 1];
        if looks {
            let mut set = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure, which outlives the call.
            assert_eq!(unsafe { libc::poll(&raw mut set, 1, -1) }, 1);
        }
        if stream.read(&mut first).ok()? == 0 {
            return None;
        }
        let mut left = 1;
        if looks {
            // SAFETY: FIONREAD writes an int.
            assert_eq!(unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut left) }, 0);
        }
        if left == 0 {
            // So ends a program that trusts what it was told.
            return None;
        }
        let mut input = BufReader::new((&first[..]).chain(&mut stream));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if input.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        input.read_exact(&mut body).ok()?;
        let text = format!("|body {} {}", body.len(), u8::from(body == pattern(body.len())));
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        stream.write_all(response.as_bytes()).ok()?;
    }
}

/// The same on the other side. A verdict cannot read what came before `accept`: a socket has no file until then.
#[test]
fn bytes_that_come_before_an_endpoint_accepts_are_not_lost() {
    let name = "bytes_that_come_before_an_endpoint_accepts_are_not_lost";
    inside(name, |group| {
        for (more, looks) in WAYS.into_iter().flat_map(|more| [(more, false), (more, true)]) {
            let server = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = server.local_addr().expect("bound");
            let (agent, service) = start_with(name, group, "127.92.0.2:80", address, more);
            let sizes = [0, 100, 60_000, 70_000, 300_000, 0];
            let mut clients = sizes.map(|size| {
                let mut client = Client::connect(service);
                client.send(&post("/up", size));
                client
            });
            agent
                .until("requests are on their way", |status| (status.requests.kernel, status.requests.agent) == (4, 2));
            let wait = wait::until("bytes wait for the server", Duration::from_secs(60), || {
                (waiting(address) > 10_000).then_some(())
            });
            wait.expect("they wait");
            std::thread::spawn(move || {
                for stream in server.incoming().map_while(Result::ok) {
                    std::thread::spawn(move || serve(stream, looks));
                }
            });
            for (client, size) in clients.iter_mut().zip(sizes) {
                is_upload(client, size);
                client.send(&post("/up", 10));
                is_upload(client, 10);
            }
            agent.stop();
        }
    });
}

/// Ends each connection with a FIN of its own: after a whole response to `/whole`, after a part of one to others. Counts
/// these ends.
fn ending_server() -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let ends = Arc::new(AtomicU64::new(0));
    let count = ends.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let count = count.clone();
            std::thread::spawn(move || {
                let (mut input, mut head) = (BufReader::new(stream), String::new());
                while !head.ends_with("\r\n\r\n") {
                    if input.read_line(&mut head).unwrap_or(0) == 0 {
                        return;
                    }
                }
                let size = if head.contains(" /whole ") { 4000 } else { 1500 };
                let response =
                    [&b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n"[..], &pattern(4000)[..size]].concat();
                let _ = input.get_mut().write_all(&response);
                let _ = input.get_mut().shutdown(Shutdown::Write);
                count.fetch_add(1, Ordering::Relaxed);
                let _ = input.read_to_end(&mut Vec::new());
            });
        }
    });
    (address, ends)
}

/// How a connection ends; None: it was answered with 503.
fn end_of(client: &mut Client) -> Option<std::io::Result<()>> {
    let (mut got, mut piece) = (Vec::new(), [0; 4096]);
    while !got.starts_with(b"HTTP/1.1 503 ") {
        match client.stream.read(&mut piece) {
            Ok(0) => return Some(Ok(())),
            Ok(size) => got.extend_from_slice(&piece[..size]),
            Err(error) => return Some(Err(error)),
        }
    }
    None
}

/// A verdict gets it as a message without bytes. It is the end of the connection that it came on: what is redirected to an
/// application would be the end of that one, in order, whatever was missing.
#[test]
fn a_fin_alone_is_not_redirected() {
    let name = "a_fin_alone_is_not_redirected";
    inside(name, |group| {
        for more in WAYS {
            let (server, ends) = ending_server();
            let (agent, service) =
                start_with(name, group, "127.92.0.3:80", server, &format!("{more}\npool: {{min: 64}}"));
            let mut stays = Client::connect(service);
            let mut parts = 0;
            for turn in 0..30 {
                let mut goes = Client::connect(service);
                goes.send(get("/part").as_bytes());
                // A 503: it was sent to the connection of `/whole` before the agent saw the end of that.
                if let Some(end) = end_of(&mut goes) {
                    let reset = end.expect_err("a part of it is not all of it").kind();
                    assert_eq!(reset, ErrorKind::ConnectionReset, "turn {turn} {more}");
                    parts += 1;
                }
                assert_eq!(stays.get("/whole").matches(4000), Ok(()), "turn {turn} {more}");
                let ended = wait::until("its connection ends", Duration::from_secs(60), || {
                    (ends.load(Ordering::Relaxed) == 2 * turn + 2).then_some(())
                });
                ended.expect("its connection ends");
            }
            assert!(parts > 10, "{parts}");
            drop(stays);
            let status = agent.until("no connection is left", |status| status.connections == 0);
            assert!(status.requests.kernel > 30 && status.responses.agent == 0, "{more}: {status:#?}");
            agent.stop();
        }
    });
}

/// A sockmap of somebody else: its object, and the link of one of its programs.
struct Foreign {
    object: Object,
    _link: Link,
}

impl Foreign {
    /// It takes the sockets of a control group that `hook` sees.
    fn attach(group: &Path, hook: &str) -> Self {
        let place = tempfile::tempdir().expect("a folder");
        let out = place.path().join("foreign.o");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let clang = std::env::var("UNDERDECK_CLANG").unwrap_or_else(|_| "clang-19".into());
        let include = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
        let mut command = Command::new(clang);
        command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-c", &include]);
        command.arg("-I").arg(root.join("../../abi")).arg("-I").arg(root.join("../compiler/bpf"));
        command.arg(root.join("tests/programs/foreign.bpf.c")).arg("-o").arg(&out);
        assert!(command.status().expect("clang runs").success());
        let bytes = std::fs::read(out).expect("clang wrote it");
        let object = ObjectBuilder::default().open_memory(&bytes).and_then(libbpf_rs::OpenObject::load);
        let object = object.expect("the kernel takes it");
        let program = |name: &str| object.progs_mut().find(|program| program.name() == name).expect("it is there");
        let map = object.maps().find(|map| map.name() == "foreign_sockets").expect("it is there");
        program("foreign_message").attach_sockmap(map.as_fd().as_raw_fd()).expect("nobody else does");
        let folder = std::fs::File::open(group).expect("the group is there");
        let link = program(hook).attach_cgroup(folder.as_raw_fd()).expect("root may");
        Self { object, _link: link }
    }

    fn map(&self, name: &str) -> MapHandle {
        let map = self.object.maps().find(|map| map.name() == name).expect("it is there");
        MapHandle::try_from(&map).expect("it is open")
    }

    /// How many sockets it has got.
    fn count(&self) -> u64 {
        let value = self.map("foreign_count").lookup(&0u32.to_ne_bytes(), MapFlags::ANY).expect("an array");
        u64::from_ne_bytes(value.expect("an array").try_into().expect("eight bytes"))
    }
}

fn ask_all(client: &mut Client) {
    for size in [0, 1000, 60_000, 500_000] {
        assert_eq!(client.get(&format!("/size/{size}")).matches(size), Ok(()), "{size} bytes");
        client.send(&post("/up", size));
        is_upload(client, size);
    }
    assert_eq!(client.get("/forbidden").text(), "not you");
    assert_eq!(client.get("/chunked/7000").matches(7000), Ok(()));
}

/// Linux allows one program of a type for each socket. Who comes second is refused.
#[test]
fn sockets_that_another_program_holds_go_to_envoy() {
    let name = "sockets_that_another_program_holds_go_to_envoy";
    inside(name, |group| {
        let foreign = Foreign::attach(group, "foreign_connected");
        let backend = Backend::start();
        let (agent, service) = start_with(name, group, "127.92.0.4:80", backend.address, "");
        let before = foreign.count();
        let mut client = Client::connect(service);
        assert!(foreign.count() > before, "it has the socket");
        ask_all(&mut client);
        let status = agent.status();
        // The agent says why.
        assert_eq!((status.requests.kernel, status.requests.envoy), (0, 10), "{status:#?}");
        assert_eq!(status.requests.envoy_by_reason.get("socket"), Some(&10), "{status:#?}");
        // Those that come when it is gone are the kernel's again.
        drop(foreign);
        ask_all(&mut client);
        let mut other = Client::connect(service);
        ask_all(&mut other);
        let requests = agent.status().requests;
        assert_eq!((requests.kernel, requests.agent, requests.answered), (8, 1, 1), "{requests:?}");
        assert_eq!(requests.envoy, 20, "{requests:?}");
        drop((client, other));
        agent.until("no connection is left", |status| status.connections == 0);
        agent.stop();
    });
}

#[test]
fn endpoints_that_another_program_holds_are_reached_by_tcp() {
    let name = "endpoints_that_another_program_holds_are_reached_by_tcp";
    inside(name, |group| {
        let foreign = Foreign::attach(group, "foreign_accepted");
        let backend = Backend::start();
        let (agent, service) = start_with(name, group, "127.92.0.5:80", backend.address, "");
        assert!(foreign.count() >= 8, "it has the sockets of the pool");
        let mut client = Client::connect(service);
        ask_all(&mut client);
        let status = agent.status();
        // A response of 500 000 bytes goes through the kernel only past TCP.
        assert_eq!((status.requests.kernel, status.requests.agent), (8, 1), "{status:#?}");
        assert_eq!((status.responses.kernel, status.responses.agent), (6, 2), "{status:#?}");
        assert_eq!(status.requests.envoy, 0, "{status:#?}");
        agent.stop();
    });
}

/// The other way round: an application that puts its own socket into a sockmap with programs gets an error.
#[test]
fn a_socket_that_was_taken_over_is_refused_to_others() {
    let name = "a_socket_that_was_taken_over_is_refused_to_others";
    inside(name, |group| {
        let backend = Backend::start();
        let (agent, service) = start_with(name, group, "127.92.0.6:80", backend.address, "");
        let mut client = Client::connect(service);
        assert_eq!(client.get("/size/10").matches(10), Ok(()));
        let foreign = Foreign::attach(group, "foreign_connected");
        let socket = u64::try_from(client.stream.get_ref().0.as_raw_fd()).expect("positive");
        let put = foreign.map("foreign_sockets").update(&7u64.to_ne_bytes(), &socket.to_ne_bytes(), MapFlags::ANY);
        assert_eq!(put.expect_err("there is a program already").to_string(), "Device or resource busy (os error 16)");
        let before = agent.status().requests;
        ask_all(&mut client);
        let requests = agent.status().requests;
        assert_eq!((requests.kernel, requests.envoy), (before.kernel + 8, 0), "{requests:?}");
        agent.stop();
    });
}
