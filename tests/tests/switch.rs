//! Off is off: by the environment from the start, by a file while bodies are on their way.

use std::time::Duration;

use underdeck_lab::backend::Backend;
use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::{Front, Pace};
use underdeck_lab::engine::{Reason, Role};
use underdeck_lab::ports::Port;
use underdeck_lab::proxy::{Engine, Haproxy, Nginx, Spec};
use underdeck_lab::twin::{Exchange, Step};
use underdeck_lab::{engine, proc, wait};
use underdeck_tests::cases;
use underdeck_tests::matrix::{self, Lane};
use underdeck_tests::user::{Home, WITHIN, fetch, opens, right, worker};

const BODY: u64 = 1_000_000;

fn lane(spec: &Spec, environment: &[(&str, &str)]) -> Lane {
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let engine = Engine { environment, ..matrix::engine().expect("these tests need the library") };
    Lane::start("switched", spec, Some(engine.min_body(64))).unwrap_or_else(|error| panic!("{error}"))
}

/// How many of the workers' descriptors are the engine's memory.
fn memories(lane: &Lane) -> usize {
    let of = |pid| proc::census(pid).memfds.iter().filter(|(name, _)| name.contains("underdeck")).count();
    lane.proxy.workers().into_iter().map(of).sum()
}

#[test]
fn a_library_that_the_environment_switches_off_does_nothing() {
    for spec in [Spec::Nginx(Nginx::large()), Spec::Haproxy(Haproxy::default())] {
        for (word, is_off) in [("off", true), ("OFF", true), ("on", false)] {
            // The lane itself looks that the library is loaded.
            let lane = lane(&spec, &[("UNDERDECK", word)]);
            for exchange in [cases::connections(&[300_000, 1000, 70_000]), cases::uploads(&[200_000])].concat() {
                right(&exchange, &lane.front, &lane.backend);
            }
            let counters = engine::snapshot(&lane.proxy);
            let expected = if is_off { (None, 0) } else { (Some(true), 1) };
            let seen = (counters.map(|it| engine::anchored(&it) > 0), memories(&lane));
            assert_eq!(seen, expected, "{} with UNDERDECK={word}", spec.name());
            let pipes: usize = lane.proxy.census().iter().map(|census| census.pipes).sum();
            assert!(!is_off || pipes <= 4, "{pipes} ends of pipes in {}", spec.name());
            lane.stop().expect("nothing is left");
        }
    }
}

#[test]
fn off_and_on_again_while_requests_go_on() {
    let home = Home::new();
    let backend = Backend::start().expect("a backend");
    let port = Port::free().expect("a port");
    let front = Front::from(port.addr());
    let server = format!(
        "server {{ listen {}; location / {{ proxy_pass http://{}; proxy_buffers 16 64k; }} }}",
        port.addr(),
        backend.addr()
    );
    let nginx = home.nginx("", &server);
    opens(port.addr());
    let worker = worker(nginx.pid(), &[]);
    let counters = || engine::of_pid(worker).expect("the library is in it");
    let switched_off = || counters().role(Role::Connected).copied_by_reason[Reason::SwitchedOff as usize];
    let mut requests = 0;
    let mut request = || {
        requests += 1;
        fetch(&format!("request-{requests}"), &front, &backend, BODY);
    };
    request();
    assert!(engine::anchored(&counters()) >= BODY / 10 * 9 && switched_off() == 0, "{:?}", counters());
    std::thread::scope(|scope| {
        // Bodies that are on their way at both moments.
        for i in 0..4 {
            let (front, backend) = (&front, &backend);
            let splits = (1..40).map(|k| k * BODY / 40).collect();
            let slow = Behaviour { splits, pause_us: 100_000, ..Behaviour::body(BODY, Delimit::Length) };
            let pace = Pace { deadline: WITHIN, ..Pace::default() };
            let exchange = Exchange::new(format!("slow-{i}"), vec![Step::get(slow)]).pace(pace);
            scope.spawn(move || right(&exchange, front, backend));
        }
        home.said(&["off"]);
        let mut is_off = || {
            request();
            (switched_off() > 0).then_some(())
        };
        wait::until("it is off", Duration::from_secs(20), &mut is_off).expect("it is off");
        let before = (counters(), switched_off());
        assert!(!before.0.enabled);
        for _ in 0..3 {
            request();
        }
        let messages = |it: &engine::Snapshot| it.role(Role::Connected).messages_anchored;
        assert_eq!(messages(&counters()), messages(&before.0), "a message was anchored although it is off");
        assert!(switched_off() >= before.1 + 3 * BODY / 10 * 9, "{:?}", counters());
        home.said(&["on"]);
        let mut is_on = || {
            request();
            (messages(&counters()) > messages(&before.0)).then_some(())
        };
        wait::until("it is on", Duration::from_secs(20), &mut is_on).expect("it is on");
        assert!(counters().enabled);
    });
    assert_eq!((counters().resets, counters().panics), (0, 0));
    nginx.stop().expect("nothing is left");
}
