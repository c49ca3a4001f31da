//! HTTP/2 to the client or to the backend: streams that the engine does not follow, beside HTTP/1.1 that it does. Both byte by
//! byte.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use underdeck_lab::backend::{Backend, UPLOAD_SEED};
use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::{Connection, Expect, Pace, Request, Upload};
use underdeck_lab::engine::{self as counters, Reason, Role};
use underdeck_lab::proxy::{Envoy, Haproxy, Mode, Nginx, Proxy, Spec};
use underdeck_lab::tools::Tool;
use underdeck_lab::twin::{Exchange, Side, Step, judge, observe};
use underdeck_lab::{content, wait};
use underdeck_tests::matrix::{Lane, SETTLE, engine};

const MIB: u64 = 1 << 20;
const UPLOAD: u64 = 3 * MIB + 5;

/// What curl carries at once: name, the backend's answer, whether a body is uploaded.
fn streams() -> Vec<(String, Behaviour, bool)> {
    let get = |(i, (len, delimit)): (usize, (u64, Delimit))| (format!("h2-{i}"), Behaviour::body(len, delimit), false);
    let mut all: Vec<_> = [
        (0, Delimit::Length),
        (300, Delimit::Length),
        (70_000, Delimit::Chunked(5000)),
        (4 * MIB, Delimit::Length),
        (3 * MIB + 1, Delimit::Chunked(200_000)),
        (3 * MIB + 2, Delimit::Close),
        (5 * MIB, Delimit::Length),
    ]
    .into_iter()
    .enumerate()
    .map(get)
    .collect();
    for i in 0..2 {
        all.push((format!("h2-up-{i}"), Behaviour::body(MIB + i, Delimit::Length), true));
    }
    all
}

/// Sends all streams at once with one curl: what it stored, and its figures by stream.
fn curl(lane: &Lane, dir: &Path, upload: &Path) -> Vec<(Vec<u8>, String)> {
    // With prior knowledge, curl 7.88 fails at the second stream of a connection: there each stream gets one of its own.
    let (scheme, version, parallel) = match lane.front.tls {
        Some(_) => ("https", "--http2", "--parallel"),
        None => ("http", "--http2-prior-knowledge", "--parallel-immediate"),
    };
    let mut command = Command::new(Tool::Curl.path().expect("curl"));
    command.args(["--parallel", parallel, "--parallel-max", "20"]);
    let out = |i: usize| dir.join(format!("{}-{i}", lane.name));
    let all = streams();
    for (i, (id, behaviour, uploads)) in all.iter().enumerate() {
        command.args(if i > 0 { &["--next"][..] } else { &[] });
        command.args(["--silent", "--show-error", "--insecure", "--max-time", "60", version]);
        let figures = "%{http_version} %{http_code} %{size_download} %{size_upload}";
        command.args(["--header", "Host: lab.test", "--write-out"]).arg(format!("{i} {figures} %{{num_connects}}\n"));
        if *uploads {
            command.arg("--upload-file").arg(upload);
        }
        command.arg("--output").arg(out(i)).arg(format!("{scheme}://{}{}", lane.front.addr, behaviour.target(id)));
    }
    let output = command.output().expect("curl runs");
    assert!(output.status.success(), "{}: {output:?}: {}", lane.name, lane.proxy.error_log());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut connects = 0;
    let mut results = Vec::new();
    for i in 0..all.len() {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("{i} "))).expect("figures of each stream");
        let (figures, connected) = line.rsplit_once(' ').expect("several figures");
        connects += connected.parse::<usize>().expect("a number");
        assert!(figures.starts_with("2 200 "), "{}: not HTTP/2: {figures}", lane.name);
        results.push((std::fs::read(out(i)).unwrap_or_default(), figures.to_owned()));
    }
    let shared = lane.front.tls.is_none() || connects < all.len();
    assert!(shared, "{}: {connects} connections, no two streams shared one", lane.name);
    results
}

fn download(id: &str) -> Exchange {
    Exchange::new(id, vec![Step::get(Behaviour::body(4 * MIB, Delimit::Length))])
}

fn http1(lane: &Lane, id: &str) {
    let exchange = download(id);
    let it = observe(&exchange, lane.side()).unwrap_or_else(|error| panic!("{}: {error}", lane.name));
    assert_eq!(judge(&exchange, &it), Vec::<String>::new(), "{}", lane.name);
}

/// HTTP/2 streams while one HTTP/1.1 download stands still half-way, and others run.
fn at_once(lane: &Lane, dir: &Path, upload: &Path, anchors: bool) -> Vec<(Vec<u8>, String)> {
    let pace = Pace { receive_buffer: Some(16_384), ..Pace::default() };
    let behaviour = Behaviour::body(8 * MIB, Delimit::Length);
    let request = Request::get(behaviour.target("held"));
    let mut held = Connection::open(&lane.front, &pace).expect("connected");
    held.send(&request).expect("sent");
    held.tcp().peek(&mut [0]).expect("it has begun");
    if anchors && lane.has_engine() {
        let open = || counters::snapshot(&lane.proxy).filter(|it| it.bytes_held > 0);
        wait::until("payload of the held download is anchored", SETTLE, open).expect("anchored");
    }
    let over = AtomicBool::new(false);
    let results = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut n = 0;
            while n == 0 || !over.load(Ordering::Relaxed) {
                http1(lane, &format!("beside-{n}"));
                n += 1;
            }
        });
        let streams = scope.spawn(|| curl(lane, dir, upload));
        let results = streams.join();
        over.store(true, Ordering::Relaxed);
        others.join().unwrap_or_else(|_| panic!("{}: a download beside HTTP/2 failed", lane.name));
        results.unwrap_or_else(|_| panic!("{}: curl failed", lane.name))
    });
    let body = held.receive(&request, Expect { seed: behaviour.seed, from: 0 }).expect("received").body;
    assert_eq!((body.len, body.first_wrong), (8 * MIB, None), "{}: the held download", lane.name);
    results
}

fn right(name: &str, lane: &Lane, results: &[(Vec<u8>, String)], of_plain: &[(Vec<u8>, String)]) {
    for ((id, behaviour, uploads), (i, (body, figures))) in streams().iter().zip(results.iter().enumerate()) {
        let want = content::bytes(behaviour.seed, 0, behaviour.len as usize);
        let at = body.iter().zip(&want).position(|(a, b)| a != b);
        let right = body.len() == want.len() && at.is_none();
        assert!(right, "{name} {}: {id}: {} of {} bytes, wrong at {at:?}", lane.name, body.len(), want.len());
        assert_eq!(*figures, of_plain[i].1, "{name} {}: {id}", lane.name);
        let seen = lane.backend.wait_seen(id, 1, SETTLE).expect("a request");
        assert_eq!(seen.len(), 1, "{name} {}: {id} was sent again", lane.name);
        let upload = (seen[0].upload.len, seen[0].upload.first_wrong, seen[0].upload_complete);
        assert_eq!(upload, (if *uploads { UPLOAD } else { 0 }, None, true), "{name} {}: {id}", lane.name);
    }
}

/// When payload of a proxy is copied because of connections that nobody follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copies {
    /// While HTTP/2 is open: beside it, HTTP/1.1 can be followed.
    Beside,
    /// Always: TLS of a static library is seen from outside only.
    Always,
    /// For other reasons: TLS of a shared library is followed inside, and gains nothing.
    Otherwise,
}

fn guarded(name: &str, lane: &Lane, copies: Copies) {
    let now = || counters::snapshot(&lane.proxy).expect("counters");
    let before = now();
    let copied = counters::copied_for(&before, Role::Connected, Reason::ProtocolPass);
    assert_ne!(copied, 0, "{name} {}: nothing was copied because of HTTP/2: {before:?}", lane.name);
    if copies == Copies::Always {
        assert_eq!(counters::anchored(&before), 0, "{name} {}", lane.name);
        return;
    }
    let (mut n, anchored) = (0, counters::anchored(&before));
    let again = || {
        n += 1;
        http1(lane, &format!("after-{n}"));
        (counters::anchored(&now()) > anchored).then_some(())
    };
    wait::until("it anchors again", SETTLE, again).unwrap_or_else(|error| panic!("{name} {}: {error}", lane.name));
}

fn http2(name: &str, spec: &Spec, copies: Copies) {
    let dir = tempfile::tempdir().expect("a directory");
    let upload: PathBuf = dir.path().join("upload");
    std::fs::write(&upload, content::bytes(UPLOAD_SEED, 0, UPLOAD as usize)).expect("written");
    let anchors = copies == Copies::Beside;
    let lanes = [Lane::plain(spec), Lane::underdeck(spec), Lane::underdeck_tiny(spec)];
    let of_plain = at_once(&lanes[0], dir.path(), &upload, anchors);
    right(name, &lanes[0], &of_plain, &of_plain);
    for lane in &lanes[1..] {
        let results = at_once(lane, dir.path(), &upload, anchors);
        right(name, lane, &results, &of_plain);
        if copies != Copies::Otherwise && lane.has_engine() {
            guarded(name, lane, copies);
        }
        assert_eq!(lane.check_counters(&[]), Vec::<String>::new(), "{name}");
    }
    for lane in lanes {
        lane.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Nothing goes to files, so that a download that stands still stays anchored.
fn nginx() -> Nginx {
    Nginx { http2: true, server: "proxy_max_temp_file_size 0;".to_owned(), ..Nginx::large() }
}

#[test]
fn nginx_tls() {
    http2("nginx 1.22, TLS", &Spec::Nginx(Nginx { tls: true, ..nginx() }), Copies::Otherwise);
}

#[test]
fn nginx_clear_text() {
    // 1.22 takes either HTTP/2 or HTTP/1.1 on one port.
    http2("nginx 1.28", &Spec::Nginx(Nginx { tool: Tool::NginxStable, ..nginx() }), Copies::Beside);
}

#[test]
fn haproxy_tls() {
    http2("haproxy, TLS", &Spec::Haproxy(Haproxy { tls: true, http2: true, ..Haproxy::default() }), Copies::Otherwise);
}

#[test]
fn haproxy_clear_text() {
    http2("haproxy", &Spec::Haproxy(Haproxy { threads: 2, ..Haproxy::default() }), Copies::Beside);
}

#[test]
fn envoy_tls() {
    http2("envoy, TLS", &Spec::Envoy(Envoy { tls: true, http2: true, ..Envoy::default() }), Copies::Always);
}

#[test]
fn envoy_clear_text() {
    http2("envoy", &Spec::Envoy(Envoy { http2: true, ..Envoy::default() }), Copies::Beside);
}

/// HTTP/1.1 from the client, HTTP/2 to the backend, by way of a plain HAProxy: the lab's own backend does not speak it.
fn to_the_backend(name: &str, spec: &Spec) {
    let post = |upload, delimit| Step::post(upload, Behaviour::body(3 * MIB, delimit));
    let steps = [
        post(Upload::Length(4 * MIB), Delimit::Length),
        post(Upload::Chunked(3 * MIB + 1, 200_000), Delimit::Chunked(200_000)),
        post(Upload::Length(MIB), Delimit::Close),
    ];
    for mode in [Mode::Plain].into_iter().chain(engine().map(Mode::Underdeck)) {
        let backend = Backend::start().expect("a backend");
        let before = Proxy::start(&Spec::Haproxy(Haproxy::default()), &Mode::Plain, backend.addr()).expect("started");
        let front = before.front().expect("a front");
        let proxy = Proxy::start(spec, &mode, front.addr).expect("started");
        let front = proxy.front().expect("a front");
        let send = |exchange: Exchange| {
            let side = Side { proxy: None, front: &front, backend: &backend };
            let it = observe(&exchange, side).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(judge(&exchange, &it), Vec::<String>::new(), "{name}");
        };
        std::thread::scope(|scope| {
            for i in 0..4 {
                let exchange = Exchange::new(format!("up-{i}"), steps.to_vec());
                scope.spawn(|| send(exchange));
            }
        });
        if let Mode::Underdeck(_) = mode {
            let it = counters::settled(&proxy, SETTLE).expect("settled");
            assert_eq!((it.resets, it.panics), (0, 0), "{name}");
            let copied =
                [Reason::RouteUnproven, Reason::ProtocolPass].map(|why| counters::copied_for(&it, Role::Accepted, why));
            assert!(copied[1] > MIB, "{name}: {copied:?} bytes were copied because of HTTP/2: {it:?}");
            assert_eq!(it.role(Role::Accepted).bytes_anchored, 0, "{name}: {it:?}");
        }
        proxy.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
        before.stop().expect("nothing is left");
    }
}

#[test]
fn haproxy_to_the_backend() {
    to_the_backend("haproxy", &Spec::Haproxy(Haproxy { upstream_http2: true, ..Haproxy::default() }));
}

#[test]
fn envoy_to_the_backend() {
    to_the_backend("envoy", &Spec::Envoy(Envoy { upstream_http2: true, ..Envoy::default() }));
}
