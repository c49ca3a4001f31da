//! A backend that others wrote: nginx that sends files by `sendfile`. Every body, every head and every access-log figure must
//! be the same plain and under the engine; and wrk must see nothing that breaks.

use std::process::Command;

use underdeck_lab::client::{Connection, Ending, Expect, Pace, Request};
use underdeck_lab::engine::{self as counters, Role};
use underdeck_lab::files::Files;
use underdeck_lab::proxy::{Envoy, Haproxy, LogLine, Mode, Nginx, Proxy, Spec};
use underdeck_lab::tools::Tool;
use underdeck_tests::matrix::{SETTLE, engine};
use underdeck_tests::payload::Must;

const MIB: u64 = 1 << 20;
const SIZES: [u64; 4] = [1000, 70_000, MIB, 5_000_001];

fn specs() -> [(&'static str, Spec); 3] {
    [
        ("nginx", Spec::Nginx(Nginx::large())),
        ("haproxy", Spec::Haproxy(Haproxy { threads: 2, ..Haproxy::default() })),
        ("envoy", Spec::Envoy(Envoy::default())),
    ]
}

/// Half of the payload was forwarded, nothing is held, nothing was reset.
fn check(proxy: &Proxy, name: &str) {
    let it = counters::settled(proxy, SETTLE).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!((it.resets, it.panics), (0, 0), "{name}: resets, panics");
    assert_eq!(Must::Forward(Role::Connected, 50).fault(&it, true), None, "{name}");
}

/// One file: its size, the request, offset and length of the body.
fn requests() -> Vec<(u64, Request, u64, u64)> {
    let mut all = Vec::new();
    for size in SIZES {
        let get = |what: &str| Request::get(format!("/{size}.0?{what}"));
        all.push((size, get("whole"), 0, size));
        all.push((size, Request { method: "HEAD", ..get("head") }, 0, 0));
        for (from, to) in [(1, size - 2), (size / 3, size - 1)] {
            let range = get(&format!("from-{from}")).field("Range", &format!("bytes={from}-{to}"));
            all.push((size, range, from, to - from + 1));
        }
    }
    all
}

/// The head without the clock.
fn stable(head: &[u8]) -> Vec<String> {
    let lines = String::from_utf8_lossy(head).to_lowercase();
    lines.split("\r\n").filter(|line| !line.starts_with("date:")).map(str::to_owned).collect()
}

/// Fetches everything over one connection and compares it with the files; returns heads and access-log lines.
fn fetch(proxy: &Proxy, name: &str) -> Vec<(Vec<String>, Vec<LogLine>)> {
    let mut client = Connection::open(&proxy.front().expect("a front"), &Pace::default()).expect("connected");
    let one = |(size, request, from, len): (u64, Request, u64, u64)| {
        client.send(&request).expect("sent");
        let reply = client.receive(&request, Expect { seed: size, from }).expect("received");
        let target = &request.target;
        let body = (reply.body.len, reply.body.first_wrong, reply.ending);
        assert_eq!(body, (len, None, Ending::Complete), "{name}: {target}");
        let lines = proxy.logged(target, 1).unwrap_or_else(|error| panic!("{name}: {error}"));
        // HAProxy's log does not say which bytes it counts.
        let counted = lines.iter().filter(|line| line.body_sent.is_some());
        counted.for_each(|line| assert_eq!(line.sent, reply.wire_bytes, "{name}: {target}: logged, received"));
        (stable(&reply.head.raw), lines)
    };
    requests().into_iter().map(one).collect()
}

#[test]
fn files_are_the_same_and_so_are_the_logs() {
    let files = Files::start(&SIZES, &[]).expect("a backend");
    for (name, spec) in specs() {
        let modes = [Some(Mode::Plain), engine().map(|it| Mode::Underdeck(it.min_body(64)))];
        let mut seen = Vec::new();
        for mode in modes.into_iter().flatten() {
            let proxy = Proxy::start(&spec, &mode, files.addr()).unwrap_or_else(|error| panic!("{name}: {error}"));
            seen.push(fetch(&proxy, name));
            if matches!(mode, Mode::Underdeck(_)) {
                check(&proxy, name);
            }
            proxy.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(seen.iter().all(|it| *it == seen[0]), "{name}: plain and under the engine differ: {seen:#?}");
    }
    files.stop().expect("stopped");
}

/// Two seconds. It does not look at bodies, but counts what breaks; at its end it leaves in the middle of them.
fn wrk(proxy: &Proxy, target: &str) -> String {
    let output = Command::new(Tool::Wrk.path().expect("wrk"))
        .args(["--threads", "1", "--connections", "8", "--duration", "2s", "--timeout", "60s"])
        .arg(format!("http://{}{target}", proxy.front().expect("a front").addr))
        .output()
        .expect("wrk runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn wrk_sees_nothing_that_breaks() {
    let Some(engine) = engine() else { return };
    let files = Files::start(&[MIB], &[]).expect("a backend");
    for (name, spec) in specs() {
        let mode = Mode::Underdeck(engine.clone());
        let proxy = Proxy::start(&spec, &mode, files.addr()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let said = wrk(&proxy, &format!("/{MIB}.0"));
        assert!(said.contains("Requests/sec"), "{name}: {said}");
        assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{name}: {said}");
        check(&proxy, name);
        proxy.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    files.stop().expect("stopped");
}
