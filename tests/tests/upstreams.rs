//! The very first uploads, with nothing but the library: where they leave is not known when they arrive. To servers that are
//! spoken to in HTTP/1.1 in clear text they are anchored as soon as one was seen to leave; to others nothing fails.

use std::time::Duration;

use underdeck_lab::backend::Backend;
use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::{Pace, Upload};
use underdeck_lab::engine::{self as counters, Reason, Role};
use underdeck_lab::proxy::{Envoy, Haproxy, Mode, Nginx, Proxy, Spec};
use underdeck_lab::twin::{Exchange, Side, Step, judge, observe};
use underdeck_tests::matrix::{Lane, SETTLE, engine};

const MIB: u64 = 1 << 20;

fn upload(id: String, upload: Upload) -> Exchange {
    let step = Step::post(upload, Behaviour::body(300_000, Delimit::Length));
    Exchange::new(id, vec![step]).pace(Pace { deadline: Duration::from_secs(30), ..Pace::default() })
}

fn right(name: &str, exchange: &Exchange, side: Side<'_>) {
    let it = observe(exchange, side).unwrap_or_else(|error| panic!("{name}: {}: {error}", exchange.name));
    assert_eq!(judge(exchange, &it), Vec::<String>::new(), "{name}: {}", exchange.name);
}

/// Uploads by way of `spec` to the lab's backend, before which `before` stands: it speaks what the backend does not. None of them
/// fails, and none is anchored.
fn unseen(name: &str, spec: &Spec, before: Haproxy) {
    for mode in [Mode::Plain].into_iter().chain(engine().map(Mode::Underdeck)) {
        let backend = Backend::start().expect("a backend");
        let before = Proxy::start(&Spec::Haproxy(before.clone()), &Mode::Plain, backend.addr()).expect("started");
        let inner = before.front().expect("a front");
        let proxy = Proxy::start(spec, &mode, inner.addr).expect("started");
        let front = proxy.front().expect("a front");
        let side = Side { proxy: None, front: &front, backend: &backend };
        for round in 0..3 {
            std::thread::scope(|scope| {
                for i in 0..4 {
                    let body = if i % 2 == 0 { Upload::Length(MIB) } else { Upload::Chunked(MIB, 300_000) };
                    scope.spawn(move || right(name, &upload(format!("up-{round}-{i}"), body), side));
                }
            });
        }
        if let Mode::Underdeck(_) = mode {
            let it = counters::settled(&proxy, SETTLE).expect("settled");
            assert_eq!((it.resets, it.panics), (0, 0), "{name}: {it:?}");
            assert_eq!(it.role(Role::Accepted).bytes_anchored, 0, "{name}: {it:?}");
            assert_ne!(counters::copied_for(&it, Role::Accepted, Reason::RouteUnproven), 0, "{name}: {it:?}");
        }
        proxy.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
        before.stop().expect("nothing is left");
    }
}

#[test]
fn haproxy_http2() {
    let spec = Spec::Haproxy(Haproxy { upstream_http2: true, ..Haproxy::default() });
    unseen("haproxy, HTTP/2 to the server", &spec, Haproxy::default());
}

#[test]
fn haproxy_tls() {
    let spec = Spec::Haproxy(Haproxy { upstream_tls: true, ..Haproxy::default() });
    unseen("haproxy, TLS to the server", &spec, Haproxy { tls: true, ..Haproxy::default() });
}

#[test]
fn haproxy_proxy_protocol() {
    let spec = Spec::Haproxy(Haproxy { upstream_proxy_protocol: true, ..Haproxy::default() });
    unseen("haproxy, PROXY to the server", &spec, Haproxy { proxy_protocol: true, ..Haproxy::default() });
}

#[test]
fn envoy_http2() {
    let spec = Spec::Envoy(Envoy { upstream_http2: true, ..Envoy::default() });
    unseen("envoy, HTTP/2 to the server", &spec, Haproxy::default());
}

#[test]
fn envoy_tls() {
    let spec = Spec::Envoy(Envoy { upstream_tls: true, ..Envoy::default() });
    unseen("envoy, TLS to the server", &spec, Haproxy { tls: true, ..Haproxy::default() });
}

/// Bytes of a placeholder inside TLS would be seen by nobody but the server.
#[test]
fn envoy_tls_to_one_of_two_servers() {
    let Some(engine) = engine() else { panic!("no library") };
    let backend = Backend::start().expect("a backend");
    let before = Spec::Haproxy(Haproxy { tls: true, ..Haproxy::default() });
    let before = Proxy::start(&before, &Mode::Plain, backend.addr()).expect("started");
    let secure = Some(before.front().expect("a front").addr);
    let spec = Spec::Envoy(Envoy { secure, ..Envoy::default() });
    let proxy = Proxy::start(&spec, &Mode::Underdeck(engine), backend.addr()).expect("started");
    let front = proxy.front().expect("a front");
    let side = Side { proxy: None, front: &front, backend: &backend };
    let now = || counters::settled(&proxy, SETTLE).expect("settled");
    let by_tls = |id: String| {
        let mut exchange = upload(id, Upload::Length(MIB));
        exchange.steps[0].fields.push(("secure".into(), "yes".into()));
        exchange
    };
    for n in 0..3 {
        right("in clear text", &upload(format!("clear-{n}"), Upload::Length(MIB)), side);
    }
    let proven = now();
    assert!(proven.role(Role::Accepted).bytes_forwarded > 0, "otherwise this would test nothing: {proven:?}");
    // It was anchored before Envoy has connected: it fails, and nothing that is wrong arrives.
    right("anchored too early", &Exchange { any_status: true, ..by_tls("first".into()).faulty() }, side);
    let failed = now();
    assert_eq!((failed.resets, failed.panics), (1, 0), "{failed:?}");
    for n in 0..4 {
        right("by TLS", &by_tls(format!("tls-{n}")), side);
        right("in clear text again", &upload(format!("again-{n}"), Upload::Chunked(MIB, 300_000)), side);
    }
    let it = now();
    assert_eq!((it.resets, it.panics), (1, 0), "{it:?}");
    assert_eq!(it.role(Role::Accepted).bytes_anchored, failed.role(Role::Accepted).bytes_anchored, "{it:?}");
    proxy.stop().expect("nothing is left");
    before.stop().expect("nothing is left");
    assert_eq!(backend.wrong_uploads(), vec![]);
}

#[test]
fn uploads_are_anchored_after_the_first() {
    let unbuffered = Nginx { request_buffering: false, ..Nginx::large() };
    for (name, spec) in [
        ("nginx", Spec::Nginx(unbuffered)),
        ("haproxy", Spec::Haproxy(Haproxy::default())),
        ("haproxy, own splicing", Spec::Haproxy(Haproxy { splice: true, ..Haproxy::default() })),
        ("envoy", Spec::Envoy(Envoy::default())),
    ] {
        for (i, body) in [Upload::Length(4 * MIB), Upload::Chunked(4 * MIB, 300_000)].into_iter().enumerate() {
            let lane = Lane::underdeck(&spec);
            let now = || counters::settled(&lane.proxy, SETTLE).expect("settled");
            right(name, &upload(format!("first-{i}"), body), lane.side());
            let first = now();
            let unproven = counters::copied_for(&first, Role::Accepted, Reason::RouteUnproven);
            assert!(unproven > 0 || first.role(Role::Accepted).bytes_anchored == 0, "{name}: {first:?}");
            for n in 0..4 {
                right(name, &upload(format!("later-{i}-{n}"), body), lane.side());
            }
            let later = now();
            assert_eq!(
                counters::copied_for(&later, Role::Accepted, Reason::RouteUnproven),
                unproven,
                "{name}: {later:?}"
            );
            let forwarded = later.role(Role::Accepted).bytes_forwarded - first.role(Role::Accepted).bytes_forwarded;
            let least = if name.ends_with("splicing") { MIB } else { 4 * 4 * MIB / 10 * 9 };
            assert!(forwarded >= least, "{name}, {body:?}: {forwarded} bytes were forwarded: {later:?}");
            assert_eq!((later.resets, later.panics), (0, 0), "{name}: {later:?}");
            lane.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
