//! The life of the agent: policies that change, policies that cannot come into force, SIGTERM and SIGKILL, failing open
//! and closed. Needs root and Envoy.

mod support;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use libbpf_rs::libbpf_sys;
use support::backend::{Backend, pattern};
use support::client::Client;
use support::{Agent, POLICIES, Setup, inside, start};
use underdeck_lab::wait;
use underdeck_mesh_dataplane::guard;

#[test]
fn a_reload_under_load_loses_no_request() {
    inside("a_reload_under_load_loses_no_request", |group| {
        let (_backend, agent, service) = start("a_reload_under_load_loses_no_request", group, "127.83.0.1:80");
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..12)
            .map(|thread| {
                let (stop, done) = (stop.clone(), done.clone());
                std::thread::spawn(move || {
                    let mut client = Client::connect(service);
                    while !stop.load(Ordering::Relaxed) {
                        match thread % 6 {
                            0 => assert!(client.get("/envoy").text().contains("x-forwarded-proto")),
                            1 => assert_eq!(client.get("/response/a").status, 200),
                            2 => {
                                let status = client.get("/forbidden").status;
                                assert!(status == 403 || status == 451, "{status}");
                            }
                            3 => assert_eq!(client.get("/chunked/200000").matches(200_000), Ok(())),
                            4 => assert!(client.post("/up", &pattern(100_000)).text().ends_with("body 100000 1")),
                            _ => assert_eq!(client.get("/a").status, 200),
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut client = Client::connect(service);
        for generation in 2..6 {
            let status = if generation % 2 == 0 { "451" } else { "403" };
            let text = POLICIES.replace("status: 403", &format!("status: {status}"));
            std::fs::write(agent.place.path().join("policies.yaml"), text).expect("ours");
            agent.signal(libc::SIGHUP);
            agent.until("the new policies are in force", |status| status.generation >= generation);
            let before = done.load(Ordering::Relaxed);
            wait::until("more requests are done", Duration::from_secs(60), || {
                (done.load(Ordering::Relaxed) > before + 100).then_some(())
            })
            .expect("requests go on");
        }
        let wanted = if agent.status().generation % 2 == 0 { [451, 403] } else { [403, 451] };
        assert!(wanted.contains(&client.get("/forbidden").status));
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("no request failed"));
        agent.stop();
    });
}

#[test]
fn services_and_endpoints_change_with_the_configuration() {
    inside("services_and_endpoints_change_with_the_configuration", |group| {
        let name = "services_and_endpoints_change_with_the_configuration";
        let (first, second) = (Backend::start(), Backend::start());
        let (one, two) = (Backend::start_at("127.83.0.8:0"), Backend::start_at("127.83.0.8:0"));
        let agent = start_before(name, group, &one, first.address, "closed");
        let path = agent.place.path().join("mesh.yaml");
        let config = std::fs::read_to_string(&path).expect("ours");
        let mut old = Client::connect(one.address);
        let is_taken_over = |at: SocketAddr| Client::connect(at).get("/forbidden").status == 403;
        assert!(old.get("/a").status == 200 && is_taken_over(one.address) && !is_taken_over(two.address));
        let text = config.replace(&one.address.to_string(), &two.address.to_string());
        std::fs::write(&path, text.replace(&first.address.to_string(), &second.address.to_string())).expect("ours");
        agent.signal(libc::SIGHUP);
        let before = first.connections();
        agent.until("the new ones hold", |status| status.generation >= 2);
        let moved = wait::until("the service is another one", Duration::from_secs(60), || {
            (is_taken_over(two.address) && !is_taken_over(one.address)).then_some(())
        });
        moved.expect("the service is another one");
        let guarded = guard::find().expect("root").into_iter().find(|guard| guard.cgroup == group);
        assert_eq!(guarded.expect("there is one").services, [two.address]);
        // A connection that is open stays taken over, and gets to the new endpoint.
        let (count, served) = (agent.status().requests.kernel, second.connections());
        assert!(old.get("/a").status == 200 && agent.status().requests.kernel == count + 1 && served > 0);
        assert_eq!(first.connections(), before);
        // What cannot change leaves all of it as it is.
        std::fs::write(&path, config.replace("fail: closed", "fail: open")).expect("ours");
        let status = agent.until("the agent says why", |status| status.trouble.is_some());
        assert!(status.trouble.is_some_and(|text| text.contains("`fail`")));
        assert!(is_taken_over(two.address) && !is_taken_over(one.address));
        agent.stop();
        guard::release(group).expect("the group is there");
    });
}

#[test]
fn policies_that_cannot_come_into_force_leave_the_old_ones() {
    inside("policies_that_cannot_come_into_force_leave_the_old_ones", |group| {
        let name = "policies_that_cannot_come_into_force_leave_the_old_ones";
        let (_backend, agent, service) = start(name, group, "127.83.0.2:80");
        let mut client = Client::connect(service);
        assert_eq!(client.get("/forbidden").status, 403);
        for (broken, why) in [("kind: [\n", "policies.yaml:"), ("kind: None\n", "listener")] {
            std::fs::write(agent.place.path().join("policies.yaml"), broken).expect("ours");
            agent.signal(libc::SIGHUP);
            let says = |text: &String| text.contains(why);
            let status = agent.until("the agent says why", |status| status.trouble.as_ref().is_some_and(says));
            assert_eq!(status.generation, 1);
            assert_eq!(client.get("/forbidden").status, 403);
        }
        std::fs::write(agent.place.path().join("policies.yaml"), POLICIES.replace("403", "418")).expect("ours");
        agent.until("the repaired ones are in force", |status| status.generation >= 2 && status.trouble.is_none());
        assert_eq!(client.get("/forbidden").status, 418);
        agent.stop();
    });
}

#[test]
fn policies_that_do_not_compile_or_verify_leave_the_old_ones() {
    let name = "policies_that_do_not_compile_or_verify_leave_the_old_ones";
    inside(name, |group| {
        let place = tempfile::tempdir().expect("a folder");
        let clang = place.path().join("clang");
        let path = std::env::var("UNDERDECK_CLANG").unwrap_or_else(|_| "clang-19".into());
        let be = |before: &str| {
            let text = format!("#!/bin/sh\n{before}\nexec {path} \"$@\"\n");
            // Another file in its place: this one may be running.
            let new = place.path().join("new");
            std::fs::write(&new, text).expect("ours");
            std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o700)).expect("ours");
            std::fs::rename(&new, &clang).expect("ours");
        };
        be("");
        // SAFETY: this test has the process for itself, and no other thread looks at variables.
        unsafe { std::env::set_var("UNDERDECK_CLANG", &clang) };
        let (_backend, agent, service) = start(name, group, "127.83.0.9:80");
        let mut client = Client::connect(service);
        let wild = "echo 'SEC(\"sk_msg\") int wild(struct sk_msg_md *m) { return *(volatile int *)(long)m->size; }' >> policy.bpf.c";
        let broken = [("echo no such register >&2; exit 1", "clang refuses"), (wild, "the kernel refuses")];
        for (before, why) in broken {
            be(before);
            std::fs::write(agent.place.path().join("policies.yaml"), POLICIES.replace("403", "418")).expect("ours");
            agent.signal(libc::SIGHUP);
            let says = |text: &String| text.contains(why);
            let status = agent.until("the agent says why", |status| status.trouble.as_ref().is_some_and(says));
            assert_eq!(status.generation, 1);
            assert_eq!(client.get("/forbidden").status, 403);
            assert_eq!(client.get("/size/100").matches(100), Ok(()));
            let gone = wait::until("the Envoy of the policies that failed is gone", Duration::from_secs(60), || {
                (agent.children().len() == 1).then_some(())
            });
            gone.expect("the Envoy of the policies that failed is gone");
        }
        be("");
        agent.signal(libc::SIGHUP);
        agent.until("the same ones are in force", |status| status.generation >= 2 && status.trouble.is_none());
        assert_eq!(client.get("/forbidden").status, 418);
        agent.stop();
    });
}

#[test]
fn envoy_gets_another_port_if_somebody_took_the_first() {
    let name = "envoy_gets_another_port_if_somebody_took_the_first";
    inside(name, |group| {
        let (_backend, agent, service) = start(name, group, "127.83.0.12:80");
        let (config, envoy) = (agent.place.path().join("mesh.yaml"), agent.place.path().join("late-envoy"));
        let text = std::fs::read_to_string(&config).expect("ours");
        let (_, path) = text.lines().find_map(|line| line.split_once("envoy: ")).expect("the program");
        // Once for the signal and once for the file that has changed, the agent begins anew by itself.
        let late = "n=$(cat \"$0.tries\" 2>/dev/null || echo 0); echo $((n + 1)) > \"$0.tries\"\n\
                    [ $n -ge 3 ] || { echo \"cannot bind: Address already in use\" >&2; exit 1; }";
        std::fs::write(&envoy, format!("#!/bin/sh\n{late}\nexec {path} \"$@\"\n")).expect("ours");
        std::fs::set_permissions(&envoy, std::fs::Permissions::from_mode(0o700)).expect("ours");
        std::fs::write(&config, text.replace(path, &envoy.display().to_string())).expect("ours");
        agent.signal(libc::SIGHUP);
        agent.until("it has another Envoy", |status| status.generation >= 2 && status.trouble.is_none());
        let tries = std::fs::read_to_string(envoy.with_extension("tries")).expect("counted");
        assert!(tries.trim().parse::<u32>().is_ok_and(|tries| tries >= 4), "{tries}");
        assert!(Client::connect(service).get("/envoy").text().contains("x-forwarded-proto"));
        agent.stop();
    });
}

/// Whether a program, map or link with this id is in the kernel. None is opened: a program array that is opened and
/// closed twice, while the kernel is still busy emptying it, is never freed (Linux 6.18).
fn is_there((kind, id): &(&'static str, u32)) -> bool {
    let ask = match *kind {
        "prog" => libbpf_sys::bpf_prog_get_next_id,
        "map" => libbpf_sys::bpf_map_get_next_id,
        _ => libbpf_sys::bpf_link_get_next_id,
    };
    let mut next = 0;
    // SAFETY: the number is written to `next`.
    unsafe { ask(id - 1, &raw mut next) == 0 && next == *id }
}

/// Whether a process runs; one that is dead and not waited for does not.
fn runs(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn nothing_is_left(objects: &[(&'static str, u32)], envoys: &[u32]) {
    let gone = wait::until("nothing is left in the kernel", Duration::from_secs(60), || {
        objects.iter().all(|object| !is_there(object)).then_some(())
    });
    gone.expect("nothing is left in the kernel");
    let ended =
        wait::until("Envoy is gone", Duration::from_secs(60), || envoys.iter().all(|pid| !runs(*pid)).then_some(()));
    ended.expect("Envoy is gone");
}

#[test]
fn an_envoy_that_dies_is_replaced() {
    inside("an_envoy_that_dies_is_replaced", |group| {
        let (_backend, agent, service) = start("an_envoy_that_dies_is_replaced", group, "127.83.0.4:80");
        let mut client = Client::connect(service);
        assert_eq!(client.get("/envoy").status, 200);
        let envoys = agent.children();
        assert_eq!(envoys.len(), 1);
        // SAFETY: a child of the agent, which has not waited for it.
        assert_eq!(unsafe { libc::kill(i32::try_from(envoys[0]).expect("a pid"), libc::SIGKILL) }, 0);
        agent.until("another one is there", |status| status.generation == 2);
        assert_eq!(Client::connect(service).get("/envoy").status, 200);
        assert_eq!(client.get("/envoy").status, 200, "the connection finds the new one");
        agent.stop();
    });
}

#[test]
fn sigterm_and_sigkill_leave_nothing_behind_and_connections_end() {
    inside("sigterm_and_sigkill_leave_nothing_behind_and_connections_end", |group| {
        let name = "sigterm_and_sigkill_leave_nothing_behind_and_connections_end";
        for hard in [false, true] {
            let (backend, agent, service) = start(name, group, "127.83.0.3:80");
            let place = agent.place.path().to_owned();
            let (objects, envoys) = (agent.objects(), agent.children());
            assert!(envoys.len() == 1 && runs(envoys[0]));
            let kinds = ["prog", "map", "link"].map(|kind| objects.iter().filter(|(of, _)| *of == kind).count());
            assert!(kinds[0] >= 5 && kinds[1] >= 10 && kinds[2] == 5, "{objects:?}");
            assert!(objects.iter().all(is_there));
            let mut idle = Client::connect(service);
            assert_eq!(idle.get("/a").status, 200);
            let mut waiting = Client::connect(service);
            waiting.send(b"GET /wait HTTP/1.1\r\nHost: shop.test\r\n\r\n");
            agent.until("the request is on its way", |status| status.requests.kernel == 2);
            if hard {
                let kept = agent.kill();
                assert!(kept.path().join("agent.sock").exists(), "it had no time to clean up");
            } else {
                agent.stop();
                assert!(!place.join("agent.sock").exists());
            }
            assert!(idle.has_ended() && waiting.has_ended());
            // Nothing takes connections over any more, and nobody listens where they were meant to go.
            assert!(TcpStream::connect(service).is_err());
            nothing_is_left(&objects, &envoys);
            backend.let_go();
            // Another one takes over.
            let (_backend, agent, service) = start(name, group, "127.83.0.3:80");
            assert_eq!(Client::connect(service).get("/a").status, 200);
            agent.stop();
        }
    });
}

/// What a client saw of its connections.
#[derive(Debug, Default)]
struct Seen {
    whole: u64,
    ended: u64,
    refused: u64,
}

/// Opens connections and asks, until it is told to stop. What it gets is right and whole, or the connection ends.
fn ask_on(service: SocketAddr, thread: usize, stop: &AtomicBool, whole: &AtomicU64) -> Seen {
    let path = ["/size/60000", "/size/300000", "/forbidden", "/envoy", "/chunked/20000", "/response/a"][thread % 6];
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let stream = match TcpStream::connect(service) {
            Ok(stream) => stream,
            Err(error) => {
                let kinds = [ErrorKind::PermissionDenied, ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset];
                assert!(kinds.contains(&error.kind()), "{error}");
                seen.refused += 1;
                std::thread::yield_now();
                continue;
            }
        };
        let mut client = Client::of(stream);
        for _ in 0..20 {
            let request = format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n");
            let answer = client.try_send(request.as_bytes()).ok().and_then(|()| client.receive(false));
            let Some(answer) = answer else {
                assert!(!client.has_waited(), "{path}: neither an answer nor an end");
                seen.ended += 1;
                break;
            };
            let size = path.rsplit('/').next().and_then(|size| size.parse().ok());
            match (size, answer.status) {
                (Some(size), 200) => assert_eq!(answer.matches(size), Ok(()), "{path}"),
                (None, 200) => assert!(answer.text().contains(&format!("GET {path} ")), "{path}: {}", answer.text()),
                (None, 403) => assert_eq!((path, answer.text().as_str()), ("/forbidden", "not you")),
                (_, status) => panic!("{path}: {status}"),
            }
            seen.whole += 1;
            whole.fetch_add(1, Ordering::Relaxed);
        }
    }
    seen
}

/// The service has a server of its own, which connections reach only if no agent takes them over.
fn start_before(name: &str, group: &Path, direct: &Backend, endpoint: SocketAddr, fail: &str) -> Agent {
    Agent::start(&Setup {
        name,
        group,
        policies: POLICIES,
        services: &[direct.address],
        endpoints: &[("shop.test||", endpoint)],
        more: &format!("fail: {fail}"),
    })
}

fn more_requests(whole: &AtomicU64) {
    let before = whole.load(Ordering::Relaxed);
    wait::until("requests are answered", Duration::from_secs(30), || {
        (whole.load(Ordering::Relaxed) > before + 200).then_some(())
    })
    .expect("requests are answered");
}

/// Kills an agent under load; `look` sees what comes after. Then another one takes over.
fn kill_under_load(name: &'static str, fail: &'static str, look: fn(&Path, &Backend, &[(&'static str, u32)])) {
    inside(name, |group| {
        let (direct, backend) = (Backend::start_at("127.83.0.5:0"), Backend::start());
        let mut agent = start_before(name, group, &direct, backend.address, fail);
        let (stop, whole) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let service = direct.address;
        let threads: Vec<_> = (0..12)
            .map(|thread| {
                let (stop, whole) = (stop.clone(), whole.clone());
                std::thread::spawn(move || ask_on(service, thread, &stop, &whole))
            })
            .collect();
        for _ in 0..2 {
            more_requests(&whole);
            let objects = agent.objects();
            let envoys = agent.children();
            agent.kill();
            let ended = wait::until("Envoy is gone", Duration::from_secs(60), || {
                envoys.iter().all(|pid| !runs(*pid)).then_some(())
            });
            ended.expect("Envoy is gone");
            look(group, &direct, &objects);
            agent = start_before(name, group, &direct, backend.address, fail);
            // What is taken over is not direct.
            assert_eq!(Client::connect(service).get("/forbidden").status, 403);
        }
        more_requests(&whole);
        stop.store(true, Ordering::Relaxed);
        let seen: Vec<Seen> = threads.into_iter().map(|thread| thread.join().expect("all was right")).collect();
        assert!(seen.iter().all(|seen| seen.whole > 0), "{seen:?}");
        assert!(seen.iter().map(|seen| seen.ended).sum::<u64>() > 0, "the agent was killed under load: {seen:?}");
        agent.stop();
        guard::release(group).expect("the group is there");
    });
}

#[test]
fn killed_under_load_it_fails_open() {
    kill_under_load("killed_under_load_it_fails_open", "open", |group, direct, objects| {
        nothing_is_left(objects, &[]);
        assert!(guard::find().expect("root").iter().all(|guard| guard.cgroup != group));
        let before = direct.connections();
        assert_eq!(Client::connect(direct.address).get("/forbidden").status, 200, "it goes past the policies");
        assert!(direct.connections() > before);
    });
}

#[test]
fn killed_under_load_it_fails_closed() {
    kill_under_load("killed_under_load_it_fails_closed", "closed", |group, direct, objects| {
        let guard = wait::until("the guard refuses", Duration::from_secs(60), || {
            let mut found = guard::find().expect("root").into_iter().filter(|guard| guard.cgroup == group);
            found.next().filter(|guard| !guard.is_served)
        });
        assert_eq!(guard.expect("the guard refuses").services, [direct.address]);
        // What is left is the guard alone: two programs, and the three maps that they use.
        let left = || objects.iter().filter(|object| is_there(object)).collect::<BTreeSet<_>>();
        let count = |kind| left().iter().filter(|(of, _)| *of == kind).count();
        let only = wait::until("only the guard is left", Duration::from_secs(60), || (left().len() <= 5).then_some(()));
        assert!(only.is_ok(), "{:?}", left());
        assert_eq!([count("prog"), count("map"), count("link")], [2, 3, 0]);
        for _ in 0..100 {
            let refused = TcpStream::connect(direct.address).expect_err("refused");
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
        }
        assert_eq!(direct.connections(), 0, "nothing went past the policies");
    });
}

#[test]
fn a_guard_stays_until_it_is_released_or_an_agent_fails_open() {
    let name = "a_guard_stays_until_it_is_released_or_an_agent_fails_open";
    inside(name, |group| {
        let (direct, backend) = (Backend::start_at("127.83.0.6:0"), Backend::start());
        let guard_of = || guard::find().expect("root").into_iter().find(|guard| guard.cgroup == group);
        let is_refused = || TcpStream::connect(direct.address).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
        let refused = || {
            wait::until("it refuses", Duration::from_secs(60), || is_refused().then_some(())).expect("it refuses");
        };
        for _ in 0..2 {
            let agent = start_before(name, group, &direct, backend.address, "closed");
            assert!(guard_of().is_some_and(|guard| guard.is_served));
            assert_eq!(Client::connect(direct.address).get("/forbidden").status, 403);
            agent.stop();
            refused();
        }
        assert!(guard::release(group).expect("there is one"));
        assert!(!guard::release(group).expect("the group is there"), "there is none any more");
        assert_eq!(Client::connect(direct.address).get("/forbidden").status, 200);
        start_before(name, group, &direct, backend.address, "closed").stop();
        refused();
        // The switch is turned.
        let agent = start_before(name, group, &direct, backend.address, "open");
        assert_eq!(Client::connect(direct.address).get("/forbidden").status, 403);
        agent.stop();
        assert_eq!(guard_of(), None);
        assert_eq!(Client::connect(direct.address).get("/forbidden").status, 200);
    });
}

#[test]
fn what_only_the_end_says_is_whole_does_not_end_in_order_when_the_agent_is_killed() {
    let name = "what_only_the_end_says_is_whole_does_not_end_in_order_when_the_agent_is_killed";
    inside(name, |group| {
        let (backend, agent, service) = start(name, group, "127.83.0.7:80");
        let half = |stream: &mut TcpStream, way: &str| {
            let request = format!("GET /half/100000 HTTP/1.1\r\nHost: shop.test\r\n{way}\r\n");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
            stream.write_all(request.as_bytes()).expect("open");
            let mut got = Vec::new();
            while got.len() < 50_000 {
                let mut piece = [0; 65_536];
                let size = stream.read(&mut piece).expect("the first half");
                assert!(size > 0, "the first half");
                got.extend_from_slice(&piece[..size]);
            }
        };
        let ways = ["", "Transfer-Encoding: chunked\r\n\r\n0\r\n"];
        let mut streams = ways.map(|_| TcpStream::connect(service).expect("taken over"));
        streams.iter_mut().zip(ways).for_each(|(stream, way)| half(stream, way));
        drop(agent.kill());
        for stream in &mut streams {
            let rest = stream.read_to_end(&mut Vec::new());
            assert_eq!(rest.expect_err("half of it is not all of it").kind(), ErrorKind::ConnectionReset);
        }
        backend.let_go();
    });
}
