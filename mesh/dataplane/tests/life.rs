//! The life of the agent: policies that change, policies that cannot come into force, SIGTERM and SIGKILL. Needs root
//! and Envoy.

mod support;

use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use support::client::Client;
use support::{POLICIES, inside, start};
use underdeck_lab::wait;

#[test]
fn a_reload_under_load_loses_no_request() {
    inside("a_reload_under_load_loses_no_request", |group| {
        let (_backend, agent, service) = start("a_reload_under_load_loses_no_request", group, "127.83.0.1:80");
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let (stop, done) = (stop.clone(), done.clone());
                std::thread::spawn(move || {
                    let mut client = Client::connect(service);
                    while !stop.load(Ordering::Relaxed) {
                        match thread % 4 {
                            0 => assert!(client.get("/envoy").text().contains("x-forwarded-proto")),
                            1 => assert_eq!(client.get("/response/a").status, 200),
                            2 => {
                                let status = client.get("/forbidden").status;
                                assert!(status == 403 || status == 451, "{status}");
                            }
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
            wait::until("more requests are done", Duration::from_secs(10), || {
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

/// Whether a program, map or link with this id is in the kernel.
fn is_there((kind, id): &(&'static str, u32)) -> bool {
    let shown = Command::new("bpftool").args([kind, "show", "id", &id.to_string()]).output().expect("bpftool");
    shown.status.success()
}

/// Whether a process runs; one that is dead and not waited for does not.
fn runs(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn nothing_is_left(objects: &[(&'static str, u32)], envoys: &[u32]) {
    let gone = wait::until("nothing is left in the kernel", Duration::from_secs(20), || {
        objects.iter().all(|object| !is_there(object)).then_some(())
    });
    gone.expect("nothing is left in the kernel");
    let ended =
        wait::until("Envoy is gone", Duration::from_secs(20), || envoys.iter().all(|pid| !runs(*pid)).then_some(()));
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
            assert!(kinds[0] >= 5 && kinds[1] >= 10 && kinds[2] == 3, "{objects:?}");
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
