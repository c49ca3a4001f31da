//! Peers that break exchanges, limits that are met. After each: no wrong byte, nothing leaked, and it still works.

use std::time::Duration;

use underdeck_lab::behaviour::{Behaviour, Delimit, End};
use underdeck_lab::client::{Connection, Expect, Leave, Pace, Request, Upload};
use underdeck_lab::engine::{self as counters, Reason, Role};
use underdeck_lab::proxy::{Envoy, Haproxy, Nginx, Spec};
use underdeck_lab::twin::{Exchange, Step, judge, observe};
use underdeck_lab::{proc, wait};
use underdeck_tests::matrix::{Lane, SETTLE, engine};
use underdeck_tests::payload::Must;

const MIB: u64 = 1 << 20;
const ANCHOR: &[Must] = &[Must::Anchor(Role::Connected)];

fn specs() -> [(&'static str, Spec); 5] {
    [
        ("nginx", Spec::Nginx(Nginx::default())),
        ("nginx-large", Spec::Nginx(Nginx::large())),
        ("nginx-unbuffered", Spec::Nginx(Nginx { buffering: false, request_buffering: false, ..Nginx::large() })),
        ("haproxy", Spec::Haproxy(Haproxy { threads: 2, ..Haproxy::default() })),
        ("envoy", Spec::Envoy(Envoy::default())),
    ]
}

/// Sends broken exchanges, some at once, and returns what was wrong with the bytes that did arrive.
fn send_all(lane: &Lane, exchanges: &[Exchange]) -> Vec<String> {
    let mut wrong = Vec::new();
    for batch in exchanges.chunks(8) {
        std::thread::scope(|scope| {
            let send = |it| scope.spawn(move || observe(it, lane.side()).map(|seen| judge(it, &seen)));
            let threads: Vec<_> = batch.iter().map(send).collect();
            for thread in threads {
                match thread.join().expect("a client does not panic") {
                    Ok(found) => wrong.extend(found),
                    Err(error) => wrong.push(error.to_string()),
                }
            }
        });
    }
    wrong
}

fn descriptors(lane: &Lane) -> usize {
    let count = |it: &proc::Census| it.sockets + it.pipes + it.deleted + it.others + it.memfds.values().sum::<usize>();
    lane.proxy.census().iter().map(count).sum()
}

/// A whole, right exchange: the proxy still works.
fn still_works(lane: &Lane, name: &str) {
    let steps = [5000, 300_000, 2 * MIB].map(|n| Step::get(Behaviour::body(n, Delimit::Length)));
    let exchange = Exchange::new(format!("after-{name}"), steps.to_vec());
    let it = observe(&exchange, lane.side()).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(judge(&exchange, &it), Vec::<String>::new(), "{name}");
}

/// Counters settle, nothing panicked, and the engine reset no connection: what broke was broken by the peers. It did
/// what it must.
fn settled(lane: &Lane, name: &str, musts: &[Must]) {
    assert_eq!(lane.check_counters(musts), Vec::<String>::new(), "{name}");
}

/// Runs broken exchanges in rounds: from the second round on the number of descriptors must not grow.
fn rounds(name: &str, spec: &Spec, make: impl Fn(usize) -> Vec<Exchange>) {
    let lane = Lane::underdeck(spec);
    let mut after = Vec::new();
    for round in 0..3 {
        let exchanges = make(round);
        assert_eq!(send_all(&lane, &exchanges), Vec::<String>::new(), "{name}");
        still_works(&lane, &format!("{name}-{round}"));
        settled(&lane, name, ANCHOR);
        after.push(descriptors(&lane));
    }
    // Connections that are about to be closed and idle ones to the backend: a few more or less.
    let slack = 8;
    let shrunk = || (descriptors(&lane) <= after[0] + slack).then_some(());
    wait::until("", SETTLE, shrunk).unwrap_or_else(|_| panic!("{name}: descriptors grow by round: {after:?}"));
    lane.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
}

fn broken(name: String, behaviour: Behaviour, pace: Pace) -> Exchange {
    Exchange::new(name, vec![Step::get(behaviour)]).pace(Pace { deadline: Duration::from_secs(8), ..pace }).faulty()
}

#[test]
fn backend_dies_in_the_middle_of_a_body() {
    for (name, spec) in specs() {
        rounds(name, &spec, |round| {
            let mut all = Vec::new();
            for at in [0, 50, 200, 700, 5000, 70_000, 500_000, MIB] {
                for delimit in [Delimit::Length, Delimit::Chunked(5000)] {
                    for end in [End::Fin(at), End::Reset(at)] {
                        let it = Behaviour { end, ..Behaviour::body(MIB, delimit) };
                        all.push(broken(format!("dies-{round}-{}", all.len()), it, Pace::default()));
                    }
                }
            }
            all
        });
    }
}

#[test]
fn client_leaves_in_the_middle_of_a_body() {
    for (name, spec) in specs() {
        rounds(name, &spec, |round| {
            let mut all = Vec::new();
            for after in [0, 1, 300, 5000, 70_000, 700_000] {
                for how in [Leave::Close, Leave::Reset] {
                    for delimit in [Delimit::Length, Delimit::Chunked(30_000)] {
                        let pace = Pace { leave: Some((after, how)), receive_buffer: Some(16_384), ..Pace::default() };
                        let name = format!("leaves-{round}-{}", all.len());
                        all.push(broken(name, Behaviour::body(4 * MIB, delimit), pace));
                    }
                }
            }
            all
        });
    }
}

#[test]
fn client_leaves_in_the_middle_of_an_upload() {
    for (name, spec) in specs() {
        rounds(name, &spec, |round| {
            let early = |i: usize| {
                let behaviour = Behaviour { early: true, close: true, ..Behaviour::body(70_000, Delimit::Length) };
                let step = Step::post(Upload::Length(2 * MIB), behaviour);
                let pace = Pace { deadline: Duration::from_secs(8), ..Pace::default() };
                Exchange::new(format!("early-{round}-{i}"), vec![step]).pace(pace).faulty()
            };
            (0..6).map(early).collect()
        });
    }
}

#[test]
fn a_client_leaves_and_the_cache_has_all_of_the_body() {
    const BODY: u64 = 2 * MIB;
    let spec = Spec::Nginx(Nginx { cache: true, ..Nginx::large() });
    // The backend sends slowly, or all at once.
    let cases = [5000, 0].into_iter().flat_map(|it| [300, 5000, 300_000, 1_000_000].map(|after| (it, after)));
    for (i, (pause_us, left_after)) in cases.enumerate() {
        // New ones each time: a payload that goes to files is copied before long.
        for lane in [Lane::plain(&spec), Lane::underdeck(&spec)] {
            let id = format!("cached-{i}");
            let splits = if pause_us > 0 { (1..16).map(|n| n * BODY / 16).collect() } else { Vec::new() };
            let behaviour = Behaviour { splits, pause_us, ..Behaviour::body(BODY, Delimit::Length) };
            let target = behaviour.target(&id);
            let leave = Some((left_after, if i % 2 == 0 { Leave::Close } else { Leave::Reset }));
            let pace = Pace { leave, receive_buffer: Some(16_384), ..Pace::default() };
            let mut client = Connection::open(&lane.front, &pace).expect("connected");
            let (request, expect) = (Request::get(&target), Expect { seed: behaviour.seed, from: 0 });
            client.send(&request).expect("sent");
            client.receive(&request, expect).expect("a part is received");
            drop(client);
            lane.backend.wait_seen(&id, 1, SETTLE).expect("nginx goes on without the client");
            // The file is in its place a moment after the backend has sent the last byte.
            let file = || (!lane.proxy.cached().is_empty()).then_some(());
            wait::until("the file is in the cache", SETTLE, file).unwrap_or_else(|error| {
                panic!("{}, left after {left_after}: {error}: {}", lane.name, lane.proxy.error_log())
            });
            let mut client = Connection::open(&lane.front, &Pace::default()).expect("connected");
            client.send(&request).expect("sent");
            let body = client.receive(&request, expect).expect("received").body;
            assert_eq!((body.len, body.first_wrong), (BODY, None), "{}, left after {left_after}", lane.name);
            assert_eq!(lane.backend.seen(&id).len(), 1, "{}, left after {left_after}: asked again", lane.name);
            settled(&lane, &lane.name, ANCHOR);
            lane.stop().expect("nothing is left");
        }
    }
}

#[test]
fn client_reads_ten_kilobytes_per_second() {
    for (name, spec) in specs() {
        let lane = Lane::underdeck(&spec);
        let slow = |i: usize, delimit| {
            let pace = Pace {
                read_rate: Some(10_000),
                leave: Some((30_000, Leave::Close)),
                receive_buffer: Some(4096),
                ..Pace::default()
            };
            broken(format!("slow-{i}"), Behaviour::body(8 * MIB, delimit), pace)
        };
        let all: Vec<Exchange> =
            (0..8).map(|i| slow(i, if i % 2 == 0 { Delimit::Length } else { Delimit::Chunked(20_000) })).collect();
        assert_eq!(send_all(&lane, &all), Vec::<String>::new(), "{name}");
        still_works(&lane, name);
        settled(&lane, name, ANCHOR);
        if let Some(it) = counters::snapshot(&lane.proxy) {
            let limit = 3 * MIB * all.len() as u64;
            assert!(it.bytes_held_max <= limit, "{name}: {} bytes were held, limit {limit}", it.bytes_held_max);
        }
        lane.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn descriptors_run_out() {
    // Envoy aborts by itself when it gets no socket, so it is left out. HAProxy never accepts more than it has
    // descriptors for: there it is the engine that runs out of them.
    let haproxy = Haproxy { connections: 30, ..Haproxy::default() };
    for (name, spec, descriptors) in [
        ("nginx", Spec::Nginx(Nginx::default()), 60),
        ("nginx-large", Spec::Nginx(Nginx::large()), 60),
        ("haproxy", Spec::Haproxy(haproxy), 88),
    ] {
        let tiny = engine().map(|it| it.min_body(64));
        let lane = Lane::start_with("squeezed", &spec, tiny, Some(descriptors)).expect("started");
        still_works(&lane, &format!("start-of-{name}"));
        let it = |i: usize| {
            let splits = vec![100_000, 200_000, 400_000];
            let behaviour = Behaviour { splits, pause_us: 50_000, ..Behaviour::body(600_000, Delimit::Length) };
            broken(format!("squeezed-{i}"), behaviour, Pace { deadline: Duration::from_secs(4), ..Pace::default() })
        };
        let wrong = std::thread::scope(|scope| {
            let all: Vec<Exchange> = (0..60).map(it).collect();
            let send = |it: Exchange| {
                let lane = &lane;
                scope.spawn(move || observe(&it, lane.side()).map(|seen| judge(&it, &seen)).unwrap_or_default())
            };
            let threads: Vec<_> = all.into_iter().map(send).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect::<Vec<String>>()
        });
        assert_eq!(wrong, Vec::<String>::new(), "{name}");
        // nginx does not accept for half a second after it ran out.
        let again = || {
            let exchange = Exchange::new("again", vec![Step::get(Behaviour::body(300_000, Delimit::Length))]).faulty();
            let it = observe(&exchange, lane.side()).ok()?;
            it.replies.first().filter(|reply| reply.body.len == 300_000).map(|_| ())
        };
        wait::until(format!("{name} serves again"), SETTLE, again).expect("it recovers");
        still_works(&lane, name);
        settled(&lane, name, &[Must::Anchor(Role::Connected), Must::CopyFor(Role::Connected, Reason::NoPipe)]);
        let met = lane.proxy.error_log().contains("Too many open files");
        assert!(met || name == "haproxy", "{name} had descriptors enough: {}", lane.proxy.error_log());
        lane.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
