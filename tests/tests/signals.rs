//! Signals and upgrades while bodies are on their way. Nobody who ends resets a connection or panics before, and those who
//! go on hold no more than before.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::{Ending, Pace};
use underdeck_lab::engine::{self as counters, Role, Snapshot};
use underdeck_lab::proc::Census;
use underdeck_lab::process::signal_pid;
use underdeck_lab::proxy::{Envoy, Haproxy, Nginx, Spec};
use underdeck_lab::tools;
use underdeck_lab::twin::{Exchange, Observation, Step, judge, observe};
use underdeck_lab::{proc, wait};
use underdeck_tests::matrix::Lane;
use underdeck_tests::payload::Must;

const BODY: u64 = 3_000_000;
const CLIENTS: usize = 8;
const WITHIN: Duration = Duration::from_secs(40);

/// A download that takes about a second: the backend pauses.
fn download(i: usize) -> Exchange {
    let splits = (1..20).map(|k| k * BODY / 20).collect();
    let behaviour = Behaviour { splits, pause_us: 50_000, ..Behaviour::body(BODY, Delimit::Length) };
    let pace = Pace { deadline: WITHIN, ..Pace::default() };
    Exchange::new(format!("download-{i}"), vec![Step::get(behaviour)]).pace(pace).faulty()
}

/// Starts downloads, calls `act` when the proxy has begun to forward them, and returns them all.
fn during_downloads(lane: &Lane, act: impl FnOnce()) -> Vec<Observation> {
    let (old, over) = (lane.proxy.workers(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| last_counters(&old, &over));
        let exchanges: Vec<Exchange> = (0..CLIENTS).map(download).collect();
        let fetch = |it: Exchange| {
            scope.spawn(move || {
                let seen = observe(&it, lane.side()).expect("a broken exchange is no error");
                assert_eq!(judge(&it, &seen), Vec::<String>::new());
                seen
            })
        };
        let threads: Vec<_> = exchanges.into_iter().map(fetch).collect();
        let sockets = || lane.proxy.census().iter().map(|census| census.sockets).sum::<usize>();
        let anchors =
            || !lane.has_engine() || counters::snapshot(&lane.proxy).is_some_and(|it| counters::anchored(&it) > 0);
        let busy = || (sockets() >= 2 * CLIENTS && anchors()).then_some(());
        wait::until("all downloads run", WITHIN, busy).expect("all downloads run");
        let before = seen(&old);
        act();
        let all = threads.into_iter().map(|thread| thread.join().expect("right bytes")).collect();
        over.store(true, Ordering::Relaxed);
        let last = watcher.join().expect("the watcher does not panic");
        if lane.has_engine() {
            assert_eq!(before.len(), old.len(), "the counters of {old:?} were not seen");
            assert!(before.values().chain(last.values()).all(|it| (it.resets, it.panics) == (0, 0)), "{last:?}");
        }
        all
    })
}

fn seen(pids: &[u32]) -> BTreeMap<u32, Snapshot> {
    pids.iter().filter_map(|pid| Some((*pid, counters::of_pid(*pid).ok()?))).collect()
}

/// What the counters of these processes showed last, whether or not they still live when it is over.
fn last_counters(pids: &[u32], over: &AtomicBool) -> BTreeMap<u32, Snapshot> {
    let mut last = BTreeMap::new();
    let look = || {
        let over = over.load(Ordering::Relaxed);
        last.extend(seen(pids));
        over.then_some(())
    };
    // Too late: then the downloads have failed, and that is told.
    let _ = wait::until("", 2 * WITHIN, look);
    last
}

/// Pipes that the engine keeps.
fn kept(lane: &Lane) -> usize {
    counters::snapshot(&lane.proxy).map_or(0, |it| it.pipes_open as usize)
}

/// Descriptors of a process that has served once, without the engine's pipes. Before, it may not be done with its start.
fn at_start(lane: &Lane) -> Census {
    works(lane);
    let all = lane.proxy.census();
    assert_eq!(all.len(), 1, "one process serves: {all:?}");
    Census { pipes: all[0].pipes - 2 * kept(lane), ..all[0].clone() }
}

/// Those who live have served something, hold nothing of it, and have no descriptors but those of the start, the pipes
/// that the engine keeps, and a connection or two that is kept alive.
fn nothing_is_held(lane: &Lane, start: &Census) {
    assert_eq!(lane.check_counters(&[Must::Anchor(Role::Connected)]), Vec::<String>::new());
    let right = |it: &Census| {
        let rest = (it.pipes, &it.memfds, it.deleted, it.others);
        rest == (start.pipes + 2 * kept(lane), &start.memfds, start.deleted, start.others)
            && it.sockets <= start.sockets + 2
    };
    let all = || lane.proxy.census();
    let settled = || (all().len() == 1 && all().iter().all(right)).then_some(());
    wait::until("", WITHIN, settled)
        .unwrap_or_else(|_| panic!("{:?}, {} pipes, at first {start:?}", all(), kept(lane)));
}

fn whole(all: &[Observation]) -> usize {
    let is_whole = |it: &&Observation| {
        it.replies.first().is_some_and(|reply| reply.ending == Ending::Complete && reply.body.len == BODY)
    };
    all.iter().filter(is_whole).count()
}

fn works(lane: &Lane) {
    let exchange = Exchange::new("works", vec![Step::get(Behaviour::body(500_000, Delimit::Length))]);
    let right = || {
        let it = observe(&Exchange { faulty: true, ..exchange.clone() }, lane.side()).ok()?;
        (it.replies.first()?.body.len == 500_000 && judge(&exchange, &it).iter().all(|what| !what.contains("wrong")))
            .then_some(())
    };
    wait::until("it serves", WITHIN, right).expect("it serves");
}

fn new_workers(lane: &Lane, old: &[u32]) -> Vec<u32> {
    let fresh = || {
        let workers: Vec<u32> = lane.proxy.workers().into_iter().filter(|pid| !old.contains(pid)).collect();
        (!workers.is_empty()).then_some(workers)
    };
    let log = || lane.proxy.error_log();
    wait::until("a new worker", WITHIN, fresh).unwrap_or_else(|error| panic!("{error}: {}", log()))
}

fn engine_inside(lane: &Lane, pids: &[u32]) {
    if lane.has_engine() {
        let library = tools::library().expect("the library");
        assert!(pids.iter().all(|pid| proc::maps(*pid, &library)), "a process without the engine: {pids:?}");
    }
}

#[test]
fn nginx_worker_is_killed() {
    for signal in [Signal::KILL, Signal::TERM] {
        let lane = Lane::underdeck(&Spec::Nginx(Nginx::large()));
        let (old, start) = (lane.proxy.workers(), at_start(&lane));
        let all = during_downloads(&lane, || {
            for pid in &old {
                signal_pid(*pid, signal).expect("signalled");
            }
        });
        assert!(whole(&all) < CLIENTS, "a killed worker cannot have finished everything");
        let fresh = if signal == Signal::KILL { new_workers(&lane, &old) } else { Vec::new() };
        engine_inside(&lane, &fresh);
        if signal == Signal::KILL {
            works(&lane);
            nothing_is_held(&lane, &start);
        }
        lane.stop().expect("nothing is left");
    }
}

#[test]
fn nginx_reloads() {
    let lane = Lane::underdeck(&Spec::Nginx(Nginx::large()));
    let (old, start) = (lane.proxy.workers(), at_start(&lane));
    let all = during_downloads(&lane, || lane.proxy.process().signal(Signal::HUP).expect("signalled"));
    assert_eq!(whole(&all), CLIENTS, "a reload lets transfers finish");
    engine_inside(&lane, &new_workers(&lane, &old));
    works(&lane);
    let gone = || old.iter().all(|pid| !proc::alive(*pid)).then_some(());
    wait::until("the old workers end", WITHIN, gone).expect("the old workers end");
    nothing_is_held(&lane, &start);
    lane.stop().expect("nothing is left");
}

#[test]
fn nginx_binary_upgrade() {
    let main = ["LD_PRELOAD", "UNDERDECK_PROTOCOL", "UNDERDECK_FORCE", "UNDERDECK_MIN_BODY"];
    let main = main.map(|name| format!("env {name};")).join("\n");
    let lane = Lane::underdeck(&Spec::Nginx(Nginx { main, orphan: true, ..Nginx::large() }));
    // While the shell that makes the master an orphan is still there, nginx ignores USR2.
    let orphan = || (!proc::alive(lane.proxy.process().pid())).then_some(());
    wait::until("the shell ends", WITHIN, orphan).expect("the shell ends");
    let old_master = pid_file(lane.proxy.dir(), 0);
    let (old, start) = (lane.proxy.workers(), at_start(&lane));
    let mut new_master = 0;
    let all = during_downloads(&lane, || {
        signal_pid(old_master, Signal::USR2).expect("signalled");
        engine_inside(&lane, &new_workers(&lane, &old));
        new_master = pid_file(lane.proxy.dir(), old_master);
        signal_pid(old_master, Signal::QUIT).expect("signalled");
    });
    assert_eq!(whole(&all), CLIENTS, "an upgrade lets transfers finish");
    let gone = || (!proc::alive(old_master) && old.iter().all(|pid| !proc::alive(*pid))).then_some(());
    wait::until("the old nginx ends", WITHIN, gone).expect("the old nginx ends");
    engine_inside(&lane, &lane.proxy.workers());
    works(&lane);
    nothing_is_held(&lane, &start);
    assert_eq!(lane.proxy.process().roots(), [new_master]);
    lane.stop().expect("nothing is left");
}

fn pid_file(dir: &Path, other_than: u32) -> u32 {
    let read = || std::fs::read_to_string(dir.join("nginx.pid")).ok()?.trim().parse().ok().filter(|p| *p != other_than);
    wait::until("the new master's pid", WITHIN, read).expect("the new master's pid")
}

#[test]
fn haproxy_stops_gracefully() {
    let lane = Lane::underdeck(&Spec::Haproxy(Haproxy::default()));
    let all = during_downloads(&lane, || lane.proxy.process().signal(Signal::USR1).expect("signalled"));
    assert_eq!(whole(&all), CLIENTS, "a soft stop lets transfers finish");
    let gone = || lane.proxy.process().pids().is_empty().then_some(());
    wait::until("haproxy ends", WITHIN, gone).expect("haproxy ends");
}

#[test]
fn others_are_stopped_hard() {
    for spec in [
        Spec::Haproxy(Haproxy { threads: 2, ..Haproxy::default() }),
        Spec::Envoy(Envoy { workers: 2, ..Envoy::default() }),
    ] {
        for signal in [Signal::TERM, Signal::KILL] {
            let lane = Lane::underdeck(&spec);
            during_downloads(&lane, || lane.proxy.process().signal(signal).expect("signalled"));
            let gone = || lane.proxy.process().pids().is_empty().then_some(());
            wait::until("it ends", WITHIN, gone).expect("it ends");
        }
    }
}
