//! Peers that break exchanges, limits that are met. After each: no wrong byte, nothing leaked, and it still works.

use std::time::Duration;

use underdeck_lab::behaviour::{Behaviour, Delimit, End};
use underdeck_lab::client::{Connection, Expect, Leave, Pace, Request, Upload};
use underdeck_lab::engine::{self as counters, Reason, Role, Snapshot};
use underdeck_lab::proxy::{Envoy, Haproxy, Nginx, Spec};
use underdeck_lab::twin::{Exchange, Manner, Step, judge, observe};
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

/// Runs a test for all proxies at once. Less of nginx: its buffers for responses change nothing about uploads and tunnels.
fn at_once(test: impl Fn(&'static str, &Spec) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for (name, spec) in specs().into_iter().filter(|(name, _)| *name != "nginx-large") {
            scope.spawn(move || test(name, &spec));
        }
    });
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

/// Whole uploads: from the first one on the engine knows where they leave.
fn is_proven(lane: &Lane, name: &str) {
    let step = Step::post(Upload::Length(MIB), Behaviour::body(10, Delimit::Length));
    let exchange = Exchange::new(format!("before-{name}"), vec![step.clone(), step]);
    let it = observe(&exchange, lane.side()).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(judge(&exchange, &it), Vec::<String>::new(), "{name}");
}

/// Counters settle, nothing panicked, and the engine reset no connection: what broke was broken by the peers. It did
/// what it must.
fn settled(lane: &Lane, name: &str, musts: &[Must]) {
    assert_eq!(lane.check_counters(musts), Vec::<String>::new(), "{name}");
}

/// What the backend was given of uploads and of tunnels is right as far as it came. Returns how many uploads came in part.
fn uploads_are_right(lane: &Lane, name: &str, exchanges: &[Exchange]) -> usize {
    let mut partial = 0;
    for exchange in exchanges {
        for seen in lane.backend.seen(&exchange.id(0)) {
            let wrong = seen.upload.first_wrong;
            assert_eq!(wrong, None, "{name}: {}: {} bytes at the backend", exchange.name, seen.upload.len);
            partial += usize::from(!seen.upload_complete && seen.upload.len > 0);
        }
    }
    partial
}

/// Runs broken exchanges in rounds: from the second round on the number of descriptors must not grow.
///
/// Returns the lane's last counters, if it has any, and how many uploads the backend got in part.
fn rounds(name: &str, spec: &Spec, make: impl Fn(usize) -> Vec<Exchange>) -> (Option<Snapshot>, usize) {
    let lane = Lane::underdeck(spec);
    is_proven(&lane, name);
    let (mut after, mut partial) = (Vec::new(), 0);
    for round in 0..3 {
        let exchanges = make(round);
        assert_eq!(send_all(&lane, &exchanges), Vec::<String>::new(), "{name}");
        still_works(&lane, &format!("{name}-{round}"));
        settled(&lane, name, ANCHOR);
        partial += uploads_are_right(&lane, name, &exchanges);
        after.push(descriptors(&lane));
    }
    // Connections that are about to be closed and idle ones to the backend: a few more or less.
    let slack = 8;
    let shrunk = || (descriptors(&lane) <= after[0] + slack).then_some(());
    wait::until("", SETTLE, shrunk).unwrap_or_else(|_| panic!("{name}: descriptors grow by round: {after:?}"));
    let counters = counters::snapshot(&lane.proxy);
    lane.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
    (counters, partial)
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
fn backend_answers_before_it_has_the_upload() {
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

/// An upload that a peer breaks. The backend is slow to read, so that the proxy holds some of it.
fn broken_upload(name: String, upload: Upload, upload_end: End, pace: Pace) -> Exchange {
    let answer = Behaviour { upload_pause_us: 100_000, upload_end, ..Behaviour::body(70_000, Delimit::Length) };
    let pace = Pace { deadline: Duration::from_secs(8), ..pace };
    Exchange::new(name, vec![Step::post(upload, answer)]).pace(pace).faulty()
}

/// Of uploads that were broken, some had been anchored, and came to the backend in part.
fn assert_broken(name: &str, counters: Option<Snapshot>, partial: usize) {
    if name == "nginx" {
        // It keeps them in a file until they are complete.
        return;
    }
    let anchored = counters.map(|it| it.role(Role::Accepted).bytes_anchored);
    assert!(anchored.is_none_or(|bytes| bytes > BROKEN_UPLOAD), "{name}: {anchored:?} bytes were anchored");
    assert_ne!(partial, 0, "{name}: no upload was broken on its way");
}

const BROKEN_UPLOAD: u64 = 8 * MIB;

fn uploads() -> [Upload; 2] {
    [Upload::Length(BROKEN_UPLOAD), Upload::Chunked(BROKEN_UPLOAD, 300_000)]
}

#[test]
fn client_leaves_in_the_middle_of_an_upload() {
    at_once(|name, spec| {
        let (counters, partial) = rounds(name, spec, |round| {
            let mut all = Vec::new();
            for after in [300, 500_000, 6_000_000] {
                for how in [Leave::Close, Leave::Reset] {
                    let upload = uploads()[all.len() / 2 % 2];
                    let pace = Pace { leave_sending: Some((after, how)), ..Pace::default() };
                    let name = format!("leaves-sending-{round}-{}", all.len());
                    all.push(broken_upload(name, upload, End::Complete, pace));
                }
            }
            all
        });
        assert_broken(name, counters, partial);
    });
}

#[test]
fn backend_dies_in_the_middle_of_an_upload() {
    at_once(|name, spec| {
        let (counters, partial) = rounds(name, spec, |round| {
            let mut all = Vec::new();
            for at in [0, 500_000, 6_000_000] {
                for end in [End::Fin(at), End::Reset(at)] {
                    let upload = uploads()[all.len() / 2 % 2];
                    all.push(broken_upload(
                        format!("dies-reading-{round}-{}", all.len()),
                        upload,
                        end,
                        Pace::default(),
                    ));
                }
            }
            all
        });
        assert_broken(name, counters, partial);
    });
}

#[test]
fn tunnels_are_cut() {
    at_once(|name, spec| {
        let (counters, _) = rounds(name, spec, |round| {
            let mut all = Vec::new();
            for after in [1000, 300_000, 3_000_000] {
                let client = |how| (End::Complete, Some((after, how)));
                let cuts =
                    [client(Leave::Close), client(Leave::Reset), (End::Fin(after), None), (End::Reset(after), None)];
                for (end, leave) in cuts {
                    let pace = Pace { leave, deadline: Duration::from_secs(8), ..Pace::default() };
                    let step = Step::get(Behaviour { end, ..Behaviour::default() }).upgrade();
                    let exchange = Exchange::new(format!("cut-{round}-{}", all.len()), vec![step]);
                    all.push(exchange.manner(Manner::Tunnel(8 * MIB)).pace(pace).faulty());
                }
            }
            all
        });
        for role in Role::ALL {
            let anchored = counters.as_ref().map(|it| it.role(role).bytes_anchored);
            assert!(anchored.is_none_or(|bytes| bytes > MIB), "{name}: {role:?}: {anchored:?} bytes were anchored");
        }
    });
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
fn the_limit_of_the_process_is_reached() {
    const TOTAL: u64 = 128 * 1024;
    let server = "proxy_max_temp_file_size 0;".to_owned();
    // Not counted in the limit: what several threads take at once, and what is read ahead.
    for (name, spec) in [
        ("nginx", Spec::Nginx(Nginx { server, ..Nginx::large() })),
        ("haproxy", Spec::Haproxy(Haproxy::default())),
        ("envoy", Spec::Envoy(Envoy::default())),
    ] {
        let Some(mut engine) = engine() else { return };
        let settings = [("UNDERDECK_MAX_ANCHORED_TOTAL", TOTAL), ("UNDERDECK_READ_AHEAD", 0)];
        engine.environment.extend(settings.map(|(name, bytes)| (name.to_owned(), bytes.to_string())));
        let lane = Lane::start("little", &spec, Some(engine)).expect("started");
        let over = |it: &Snapshot| counters::copied_for(it, Role::Connected, Reason::TotalLimit);
        let behaviour = Behaviour::body(8 * MIB, Delimit::Length);
        let pace = Pace { receive_buffer: Some(16_384), ..Pace::default() };
        // They do not read before others had to be copied.
        let ask = |i: usize| {
            let request = Request::get(behaviour.target(&format!("total-{i}")));
            let mut client = Connection::open(&lane.front, &pace).expect("connected");
            client.send(&request).expect("sent");
            (client, request)
        };
        let clients: Vec<_> = (0..8).map(ask).collect();
        let copies = || counters::snapshot(&lane.proxy).filter(|it| over(it) > 0);
        wait::until("others are copied", SETTLE, copies)
            .unwrap_or_else(|error| panic!("{name}: {error}: {:?}", counters::snapshot(&lane.proxy)));
        let expect = Expect { seed: behaviour.seed, from: 0 };
        for (mut client, request) in clients {
            let body = client.receive(&request, expect).expect("received").body;
            assert_eq!((body.len, body.first_wrong), (8 * MIB, None), "{name}: {}", request.target);
        }
        settled(&lane, name, ANCHOR);
        let before = counters::snapshot(&lane.proxy).expect("counters");
        still_works(&lane, name);
        let after = counters::settled(&lane.proxy, SETTLE).expect("settled");
        assert!(counters::anchored(&after) > counters::anchored(&before), "{name}: there is room again");
        assert!(after.bytes_held_max <= TOTAL, "{name}: {} bytes were held", after.bytes_held_max);
        settled(&lane, name, ANCHOR);
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
