//! Streams of bytes as real clients and servers cut and end them, and what the kernel is known to do with them.
//! Needs root and Envoy.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use support::backend::{Backend, pattern};
use support::client::Client;
use support::{Agent, WAYS, inside, start, start_with};
use underdeck_lab::wait;
use underdeck_mesh_dataplane::status::Status;

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n")
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    inside("pipelined_requests_are_answered_in_their_order", |group| {
        let (_backend, agent, service) =
            start("pipelined_requests_are_answered_in_their_order", group, "127.82.0.1:80");
        let paths = ["/a", "/size/50000", "/forbidden", "/envoy", "/chunked/9000", "/size/300000", "/response/b", "/c"];
        for together in [true, false] {
            let mut client = Client::connect(service);
            for turn in 0..10 {
                let requests: Vec<_> =
                    (0..paths.len()).map(|at| get(&format!("{}?{turn}", paths[(at + turn) % paths.len()]))).collect();
                if together {
                    client.send(requests.concat().as_bytes());
                } else {
                    requests.iter().for_each(|request| client.send(request.as_bytes()));
                }
                for at in 0..paths.len() {
                    let path = paths[(at + turn) % paths.len()];
                    let response = client.receive(false).unwrap_or_else(|| panic!("no answer to {path}"));
                    match path {
                        "/forbidden" => assert_eq!(response.status, 403, "{path}"),
                        path if path.matches('/').count() == 2 && path != "/response/b" => {
                            // The backend reads no number out of `50000?0`.
                            assert!(response.text().contains(&format!("GET {path}?{turn} ")), "{path}: {response:?}");
                        }
                        path => {
                            assert!(response.text().contains(&format!("GET {path}?{turn} ")), "{path}: {response:?}")
                        }
                    }
                }
            }
        }
        assert!(agent.status().requests.kernel > 0);
        agent.stop();
    });
}

#[test]
fn a_request_may_come_in_single_bytes() {
    inside("a_request_may_come_in_single_bytes", |group| {
        let (_backend, agent, service) = start("a_request_may_come_in_single_bytes", group, "127.82.0.2:80");
        let mut client = Client::connect(service);
        for path in ["/hello", "/old", "/envoy", "/size/20000"] {
            for byte in get(path).as_bytes() {
                client.send(&[*byte]);
            }
            let response = client.receive(false).expect("an answer");
            assert_eq!(response.status, if path == "/old" { 301 } else { 200 }, "{path}");
        }
        let body = pattern(300);
        let head = "POST /up HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 300\r\n\r\n";
        for byte in head.bytes().chain(body) {
            client.send(&[byte]);
        }
        assert!(client.receive(false).expect("an answer").text().ends_with("body 300 1"));
        assert_eq!(client.get("/after").status, 200);
        let status = agent.status();
        assert_eq!((status.requests.kernel, status.requests.envoy), (1, 5), "{status:#?}");
        agent.stop();
    });
}

#[test]
fn responses_without_a_body_and_until_the_end_of_the_connection() {
    inside("responses_without_a_body_and_until_the_end_of_the_connection", |group| {
        let name = "responses_without_a_body_and_until_the_end_of_the_connection";
        let (_backend, agent, service) = start(name, group, "127.82.0.3:80");
        let mut client = Client::connect(service);
        client.send(b"HEAD /size/5000 HTTP/1.1\r\nHost: shop.test\r\n\r\n");
        let response = client.receive(true).expect("an answer");
        assert_eq!(response.header("content-length"), Some("5000"));
        assert_eq!(client.get("/size/10").matches(10), Ok(()), "the HEAD had no body");
        // The endpoint closes its connection; that of the client stays.
        assert_eq!(client.get("/bye/3000").matches(3000), Ok(()));
        assert_eq!(client.get("/size/11").matches(11), Ok(()));
        // Only the end says that this is all.
        assert_eq!(client.get("/close/200000").matches(200_000), Ok(()));
        assert!(client.has_ended());
        agent.stop();
    });
}

#[test]
fn who_expects_100_continue_gets_it_and_keeps_the_connection() {
    inside("who_expects_100_continue_gets_it_and_keeps_the_connection", |group| {
        let name = "who_expects_100_continue_gets_it_and_keeps_the_connection";
        let (_backend, agent, service) = start(name, group, "127.82.0.11:80");
        let mut client = Client::connect(service);
        for turn in 1..=10u64 {
            let size = [5, 70_000][usize::try_from(turn % 2).expect("small")];
            let lines = format!("Host: shop.test\r\nExpect: 100-continue\r\nContent-Length: {size}\r\n");
            client.send(format!("POST /up HTTP/1.1\r\n{lines}\r\n").as_bytes());
            let interim = client.receive(true).expect("a word before the body");
            assert_eq!(interim.status, 100);
            client.send(&pattern(size));
            let text = client.receive(false).expect("an answer").text();
            assert!(text.ends_with(&format!("body {size} 1")), "{text}");
            // The connection is not Envoy's for ever.
            assert_eq!(client.get("/hello").text(), "GET /hello HTTP/1.1|Host: shop.test|body 0 1");
            assert_eq!(agent.status().requests.kernel, turn);
        }
        agent.stop();
    });
}

#[test]
fn chunked_requests_are_decided_in_the_kernel_and_streamed() {
    inside("chunked_requests_are_decided_in_the_kernel_and_streamed", |group| {
        let name = "chunked_requests_are_decided_in_the_kernel_and_streamed";
        let (_backend, agent, service) = start(name, group, "127.82.0.12:80");
        let mut client = Client::connect(service);
        let head =
            |path: &str| format!("POST {path} HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n");
        for size in [0, 1, 5000, 65_536, 1_000_000] {
            for path in ["/up", "/edited/up", "/forbidden", "/envoy"] {
                client.send(head(path).as_bytes());
                for piece in pattern(size).chunks(7001) {
                    client.send(format!("{:x};ext=1\r\n", piece.len()).as_bytes());
                    client.send(piece);
                    client.send(b"\r\n");
                }
                client.send(b"0\r\nx-trailer: 1\r\n\r\n");
                let response = client.receive(false).unwrap_or_else(|| panic!("no answer to {path}"));
                if path == "/forbidden" {
                    assert_eq!(response.status, 403);
                } else {
                    assert!(response.text().ends_with(&format!("body {size} 1")), "{path}: {}", response.text());
                }
                assert_eq!(client.get("/size/100").matches(100), Ok(()), "the next one is in the kernel again");
            }
        }
        let requests = agent.status().requests;
        assert_eq!(
            [requests.kernel, requests.agent, requests.answered, requests.envoy],
            [20, 10, 5, 5],
            "{requests:?}"
        );
        agent.stop();
    });
}

#[test]
fn a_half_closed_connection_gets_its_answer() {
    inside("a_half_closed_connection_gets_its_answer", |group| {
        let (backend, agent, service) = start("a_half_closed_connection_gets_its_answer", group, "127.82.0.4:80");
        for turn in 0..15 {
            let path = ["/size/60000", "/envoy", "/forbidden", "/size/900000", "/a"][turn % 5];
            let mut client = Client::connect(service);
            client.send(get(path).as_bytes());
            client.stream.get_ref().0.shutdown(Shutdown::Write).expect("open");
            let response = client.receive(false).unwrap_or_else(|| panic!("no answer to {path}"));
            if let Some(size) = path.strip_prefix("/size/") {
                assert_eq!(response.matches(size.parse().expect("a number")), Ok(()), "{path}");
            }
            assert!(client.has_ended(), "{path}");
        }
        let mut client = Client::connect(service);
        client.send(get("/wait/500").as_bytes());
        client.stream.get_ref().0.shutdown(Shutdown::Write).expect("open");
        agent.until("the request is on its way", |status| status.requests.kernel == 10);
        backend.let_go();
        assert_eq!(client.receive(false).expect("an answer").matches(500), Ok(()));
        agent.until("no connection is left", |status| status.connections == 0);
        agent.stop();
    });
}

#[test]
fn a_half_closed_connection_that_is_read_late_loses_nothing() {
    let name = "a_half_closed_connection_that_is_read_late_loses_nothing";
    inside(name, |group| {
        let (_backend, agent, service) = start(name, group, "127.82.0.13:80");
        // How often, and how much: also more than a receive buffer holds.
        let sizes = [(1, 60_000), (1, 100), (3, 65_000), (1, 900_000), (20, 60_000)];
        let clients: Vec<_> = sizes
            .iter()
            .map(|(times, size)| {
                let mut client = Client::connect(service);
                for _ in 0..*times {
                    let before = agent.status();
                    client.send(get(&format!("/size/{size}")).as_bytes());
                    agent.until("it is answered", |now| {
                        let done = |status: &Status| status.responses.kernel + status.requests.envoy;
                        *size > 65_536 || done(now) > done(&before)
                    });
                }
                client.stream.get_ref().0.shutdown(Shutdown::Write).expect("open");
                client
            })
            .collect();
        // Another connection lives and dies after the time that the agent once gave the others.
        let start = Instant::now();
        let mut other = Client::connect(service);
        while start.elapsed() < Duration::from_millis(1500) {
            assert_eq!(other.get("/size/10").matches(10), Ok(()));
        }
        for (mut client, (times, size)) in clients.into_iter().zip(sizes) {
            for turn in 0..times {
                let response = client.receive(false).unwrap_or_else(|| panic!("no answer {turn} of {size}"));
                assert_eq!(response.matches(size), Ok(()), "{size}");
            }
            assert!(client.has_ended(), "{size}");
        }
        drop(other);
        agent.until("no connection is left", |status| status.connections == 0);
        agent.stop();
    });
}

#[test]
fn an_endpoint_that_goes_away_is_a_503_or_the_end() {
    inside("an_endpoint_that_goes_away_is_a_503_or_the_end", |group| {
        let (_backend, agent, service) =
            start("an_endpoint_that_goes_away_is_a_503_or_the_end", group, "127.82.0.5:80");
        let mut client = Client::connect(service);
        for _ in 0..30 {
            let response = client.get("/gone");
            assert_eq!(response.status, 503, "{}", response.text());
            assert_eq!(client.get("/size/100").matches(100), Ok(()), "the connection of the client stays");
        }
        for size in [5000, 500_000] {
            let mut client = Client::connect(service);
            client.send(get(&format!("/cut/{size}")).as_bytes());
            assert_eq!(client.receive(false), None, "half of {size} bytes is not all of them");
        }
        agent.until("the pool is full again", |status| status.upstreams[0].connections >= 8);
        agent.stop();
    });
}

#[test]
fn a_client_that_resets_takes_its_request_with_it() {
    inside("a_client_that_resets_takes_its_request_with_it", |group| {
        let (backend, agent, service) = start("a_client_that_resets_takes_its_request_with_it", group, "127.82.0.6:80");
        for turn in 0..20 {
            let mut client = Client::connect(service);
            match turn % 4 {
                0 => client.send(get("/wait").as_bytes()),
                1 => client.send(b"POST /up HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 1000\r\n\r\nhalf"),
                2 => client.send(b"POST /up HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 100000\r\n\r\nhalf"),
                _ => client.send(b"GET /half HTTP/1.1\r\nHost:"),
            }
            let socket = socket2::SockRef::from(&client.stream.get_ref().0);
            if turn % 8 < 4 {
                socket.set_linger(Some(Duration::ZERO)).expect("a socket");
            }
        }
        backend.let_go();
        agent.until("no connection is left", |status| status.connections == 0);
        let mut client = Client::connect(service);
        for size in 0..50 {
            assert_eq!(client.get(&format!("/size/{size}")).matches(size), Ok(()), "nothing of the others is left");
        }
        agent.stop();
    });
}

#[test]
fn a_slow_reader_gets_all_of_it() {
    inside("a_slow_reader_gets_all_of_it", |group| {
        let (_backend, agent, service) = start("a_slow_reader_gets_all_of_it", group, "127.82.0.7:80");
        let mut client = Client::connect(service);
        // More than the buffers on the way hold: all the responses lie in the kernel before the first byte is read.
        for _ in 0..40 {
            client.send(get("/size/60000").as_bytes());
        }
        client.send(get("/size/20000000").as_bytes());
        agent.until("requests are on their way", |status| status.requests.kernel > 0);
        for turn in 0..40 {
            assert_eq!(client.receive(false).expect("an answer").matches(60_000), Ok(()), "response {turn}");
        }
        assert_eq!(client.receive(false).expect("an answer").body.len(), 20_000_000);
        agent.stop();
    });
}

#[test]
fn poll_and_fionread_see_what_the_kernel_moved() {
    inside("poll_and_fionread_see_what_the_kernel_moved", |group| {
        let (_backend, agent, service) = start("poll_and_fionread_see_what_the_kernel_moved", group, "127.82.0.8:80");
        let mut stream = TcpStream::connect(service).expect("taken over");
        stream.write_all(get("/size/1000").as_bytes()).expect("open");
        let mut set = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which outlives the call.
        assert_eq!(unsafe { libc::poll(&raw mut set, 1, 20_000) }, 1);
        let mut whole = 0;
        let enough = wait::until("FIONREAD says how much there is", Duration::from_secs(60), || {
            let mut size = 0;
            // SAFETY: FIONREAD writes an int.
            assert_eq!(unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut size) }, 0);
            whole = size;
            (size > 1000).then_some(())
        });
        enough.expect("all of the response is counted");
        let mut peeked = vec![0; 4096];
        let seen = stream.peek(&mut peeked).expect("readable");
        let mut read = vec![0; usize::try_from(whole).expect("positive")];
        stream.read_exact(&mut read).expect("that much is there");
        assert_eq!(&read[..seen], &peeked[..seen]);
        assert!(read.ends_with(&pattern(1000)));
        agent.stop();
    });
}

#[test]
fn many_connections_at_once_never_get_each_others_bytes() {
    inside("many_connections_at_once_never_get_each_others_bytes", |group| {
        let name = "many_connections_at_once_never_get_each_others_bytes";
        let (_backend, agent, service) = start(name, group, "127.82.0.9:80");
        let threads: Vec<_> = (0..64usize)
            .map(|thread| {
                std::thread::spawn(move || {
                    let mut client = Client::connect(service);
                    for turn in 0..40usize {
                        let size = (thread * 997 + turn * 4099) % 70_000;
                        match (thread + turn) % 7 {
                            0 => {
                                assert!(client.post("/up", &pattern(size)).text().ends_with(&format!("body {size} 1")))
                            }
                            1 => assert_eq!(client.get(&format!("/chunked/{size}")).matches(size), Ok(())),
                            2 => assert!(client.get("/envoy").text().contains("x-forwarded-proto")),
                            3 => {
                                let text = client.get(&format!("/t{thread}/x{turn}y")).text();
                                assert!(text.starts_with(&format!("GET /t{thread}/x{turn}y ")), "{text}");
                            }
                            4 => assert_eq!(client.get("/forbidden").status, 403),
                            _ => assert_eq!(client.get(&format!("/size/{size}")).matches(size), Ok(())),
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("every client is content");
        }
        let status = agent.status();
        assert!(status.requests.kernel > 64 * 20, "{status:#?}");
        agent.stop();
    });
}

#[test]
fn ten_thousand_connections_are_open_at_once() {
    const CONNECTIONS: usize = 10_000;
    inside("ten_thousand_connections_are_open_at_once", |group| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: one structure, which outlives both calls.
        let allowed = unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            limit.rlim_max
        };
        assert!(allowed > CONNECTIONS as u64 + 100, "the limit of open files is {allowed}");
        let (_backend, agent, service) = start("ten_thousand_connections_are_open_at_once", group, "127.82.0.10:80");
        let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| Client::connect(service)).collect();
        agent.until("all of them are accepted", |status| status.connections == CONNECTIONS as u64);
        for (turn, client) in clients.iter_mut().enumerate() {
            let size = turn % 3000;
            assert_eq!(client.get(&format!("/size/{size}")).matches(size), Ok(()));
        }
        let status = agent.status();
        assert_eq!(status.requests.kernel, CONNECTIONS as u64, "{:?}", status.requests);
        drop(clients);
        agent.until("none is left", |status| status.connections == 0);
        agent.stop();
    });
}

/// Memory of the agent that is in use, in bytes.
fn memory_of(agent: &Agent) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).expect("a process");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// What waits in the buffers of all sockets of connections to or from these ports, in bytes: `r`eceived and `w`ritten.
fn memory_of_sockets(ports: [u16; 2]) -> u64 {
    let filter = ports.map(|port| format!("sport = :{port} or dport = :{port}")).join(" or ");
    let done = Command::new("ss").args(["-tmnH", &filter]).output().expect("ss runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let fields = text.split("skmem:(").skip(1).flat_map(|part| part.split(')').next().unwrap_or("").split(','));
    let number = |field: &str| ["r", "w"].iter().find_map(|name| field.strip_prefix(name)?.parse::<u64>().ok());
    fields.filter_map(number).sum()
}

#[test]
fn a_client_that_pipelines_and_does_not_read_costs_bounded_memory() {
    const REQUESTS: usize = 2000;
    const SIZE: usize = 32 << 10;
    // Of all responses, which are 64 MiB.
    const MOST: u64 = 16 << 20;
    let name = "a_client_that_pipelines_and_does_not_read_costs_bounded_memory";
    inside(name, |group| {
        for more in WAYS {
            let backend = Backend::start();
            let (agent, service) = start_with(name, group, "127.82.0.14:80", backend.address, more);
            let mut client = Client::connect(service);
            assert_eq!(client.get("/size/1000").matches(1000), Ok(()));
            let ports = [client.stream.get_ref().0.local_addr().expect("bound").port(), backend.address.port()];
            let measure = || [memory_of(&agent), memory_of_sockets(ports)];
            let before = measure();
            let mut writer = client.stream.get_ref().0.try_clone().expect("a socket");
            let writing = std::thread::spawn(move || {
                for turn in 0..REQUESTS {
                    // Every tenth one is Envoy's.
                    let path = if turn % 10 == 9 { "/envoy/size" } else { "/size" };
                    writer.write_all(get(&format!("{path}/{}", SIZE - turn % 7)).as_bytes()).expect("open");
                }
            });
            // Until nothing moves any more: a second without an answer of the endpoint.
            let (mut count, mut since) = ((0, 0), Instant::now());
            let still = wait::until("all of it stands still", Duration::from_secs(120), || {
                let status = agent.status();
                let now = (status.requests.kernel, status.requests.agent + status.requests.envoy);
                if now != count {
                    (count, since) = (now, Instant::now());
                }
                (since.elapsed() > Duration::from_secs(1)).then_some(())
            });
            still.expect("all of it stands still");
            let now = measure();
            eprintln!("{before:?} then {now:?} bytes of agent and sockets, {count:?} requests; {more:?}");
            assert!(
                now.iter().zip(before).all(|(now, before)| *now < before + MOST),
                "{before:?} then {now:?}; {more}"
            );
            for turn in 0..REQUESTS {
                let response = client.receive(false).unwrap_or_else(|| panic!("no answer {turn}; {more}"));
                assert_eq!(response.matches(SIZE - turn % 7), Ok(()), "answer {turn}; {more}");
            }
            writing.join().expect("all was taken");
            drop(client);
            agent.until("no connection is left", |status| status.connections == 0);
            agent.stop();
        }
    });
}
