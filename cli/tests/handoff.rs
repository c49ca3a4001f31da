//! `underdeck handoff`: certificates, what is wrong with a configuration, and what a server says of itself.

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use common::World;
use underdeck_cli::exit::Exit;

/// A report as a balancer gives it.
const REPORT: &str = r#"{"schema":1,"role":"balancer","pid":7,"uptime_ms":61500,"policy":"shard",
"connections":{"here":3,"away":12},"handoffs":{"out":40,"back":28,"aborted":{"full":2}},
"requests":5,"bytes":30,"direct_bytes":10,"relayed_bytes":20,"reset":1,"rules":{"tc":12,"capacity":100},
"handoff_us_p50":150.0,"handoff_us_p99":400.0,"steps_us":{"block":4.0},
"times":[{"name":"handoff","count":40,"sum_us":6000.0,"p50_us":150.0,"p99_us":400.0,"buckets":[[128.0,10],[256.0,40]]},
{"name":"block","count":0,"sum_us":0.0,"p50_us":0.0,"p99_us":0.0,"buckets":[]}],
"backends":[{"name":"b0","alive":true,"backed_off":true,"load":7},{"name":"b1","alive":false,"backed_off":false,"load":5}]}"#;

/// Answers so many times with `text`.
fn server(folder: &Path, text: &'static str, times: usize) -> String {
    let path = folder.join("handoff.sock");
    let listener = UnixListener::bind(&path).expect("ours");
    std::thread::spawn(move || {
        for stream in listener.incoming().take(times) {
            stream.expect("a client").write_all(text.as_bytes()).expect("it reads");
        }
    });
    path.to_str().expect("plain").to_owned()
}

#[test]
fn keys_are_made_once_and_are_secret() {
    let folder = tempfile::tempdir().expect("ours");
    let keys = folder.path().join("keys");
    let keys = keys.to_str().expect("plain");
    let arguments = ["handoff", "keys", keys, "lb", "b0", "--balancer", "lb"];
    let done = World::default().underdeck(&arguments);
    assert_eq!((done.exit, done.out.as_str()), (Exit::Ok, "lb: balancer\nb0: backend\n"), "{}", done.err);
    for name in ["authority.pem", "lb.pem", "lb.key", "b0.pem", "b0.key"] {
        let mode = std::fs::metadata(format!("{keys}/{name}")).expect(name).permissions().mode() & 0o777;
        assert_eq!(mode, if name.ends_with(".key") { 0o600 } else { 0o644 }, "{name}");
    }
    let again = World::default().underdeck(&arguments);
    assert_eq!(again.exit, Exit::Bad);
    assert!(again.err.contains("authority.pem is there already"), "{}", again.err);
    for bad in ["../x", "", "authority", ".x"] {
        let done = World::default().underdeck(&["handoff", "keys", &format!("{keys}2"), bad]);
        assert_eq!(done.exit, Exit::Bad, "{bad}");
        assert!(!Path::new(&format!("{keys}2")).exists(), "{bad}");
    }
}

#[test]
fn a_server_says_where_connections_are() {
    let folder = tempfile::tempdir().expect("ours");
    let socket = server(folder.path(), REPORT, 3);
    let status = World::default().underdeck(&["handoff", "status", "--socket", &socket]);
    assert_eq!(status.exit, Exit::Ok, "{}", status.err);
    let expected = "balancer (pid 7), up 61 s, policy shard\nconnections: 3 here, 12 with others\n\
        rules: 12 of 100 flows (tc)\nbackend b0: alive, but handoffs to it have failed: it rests, 7 connections\n\
        backend b1: dead, 5 connections\n";
    assert_eq!(status.out, expected);
    let stat = World::default().underdeck(&["handoff", "stat", "--socket", &socket]);
    for row in ["aborted: full", "bytes answered directly", "p50    150.0 us, p99    400.0 us"] {
        assert!(stat.out.contains(row), "{row}: {}", stat.out);
    }
    assert!(!stat.out.contains("block"), "no times without handoffs: {}", stat.out);
    let json = World::default().underdeck(&["handoff", "stat", "--json", "--socket", &socket]);
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(json["connections"]["away"], 12);
}

#[test]
fn what_is_not_there_says_so() {
    let folder = tempfile::tempdir().expect("ours");
    let mut world = World { run: folder.path().to_owned(), ..World::default() };
    let done = world.underdeck(&["handoff", "status"]);
    assert_eq!(done.exit, Exit::Nothing);
    assert!(done.err.contains("underdeck/handoff.sock: "), "{}", done.err);
    let socket = server(folder.path(), "hello\n", 1);
    let done = World::default().underdeck(&["handoff", "status", "--socket", &socket]);
    assert_eq!(done.exit, Exit::Bad, "{}", done.err);

    let config = folder.path().join("c.toml");
    let serve = ["handoff", "serve", "--role", "balancer", "--config", config.to_str().expect("plain")];
    assert_eq!(World::default().underdeck(&serve).exit, Exit::Nothing);
    std::fs::write(&config, "listen = 7\n").expect("ours");
    let done = World::default().underdeck(&serve);
    assert_eq!(done.exit, Exit::Bad);
    assert!(done.err.contains("c.toml:1:10: "), "{}", done.err);
}

#[test]
fn a_backend_does_not_run_with_a_balancers_certificate() {
    let folder = tempfile::tempdir().expect("ours");
    let at = folder.path().join("k");
    let at = at.to_str().expect("plain");
    World::default().underdeck(&["handoff", "keys", at, "balancer", "b0"]);
    let config = folder.path().join("c.toml");
    let text = format!(
        "listen = \"127.0.0.1:1\"\ncontrol = \"127.0.0.1:2\"\ninterfaces = [\"none\"]\npolicy = \"pin\"\n\
         authority = \"{at}/authority.pem\"\ncertificate = \"{at}/balancer.pem\"\nkey = \"{at}/balancer.key\"\n\
         [[backend]]\nname = \"b0\"\nlisten = \"127.0.0.1:1\"\ncontrol = \"127.0.0.1:2\"\n"
    );
    std::fs::write(&config, text).expect("ours");
    let serve = ["handoff", "serve", "--role", "backend", "--config", config.to_str().expect("plain")];
    let done = World::default().underdeck(&serve);
    assert_eq!(done.exit, Exit::Bad);
    assert!(done.err.contains("not a backend's certificate"), "{}", done.err);
}

#[test]
fn prometheus_gets_it_too() {
    let folder = tempfile::tempdir().expect("ours");
    let socket = server(folder.path(), REPORT, 1);
    let gone = folder.path().join("gone.sock");
    let arguments = ["metrics", "--once", "--handoff", &socket, "--handoff", gone.to_str().expect("plain")];
    // Nobody else's processes.
    let mut world = World { proc: folder.path().to_owned(), ..World::default() };
    let done = world.underdeck(&arguments);
    assert_eq!(done.exit, Exit::Ok, "{}", done.err);
    for line in [
        "underdeck_handoff_up{server=\"handoff\"} 1",
        "underdeck_handoff_up{server=\"gone\"} 0",
        "underdeck_handoff_connections{server=\"handoff\",place=\"away\"} 12",
        "underdeck_handoff_handoffs_total{server=\"handoff\",direction=\"back\"} 28",
        "underdeck_handoff_aborted_total{server=\"handoff\",reason=\"full\"} 2",
        "underdeck_handoff_body_bytes_total{server=\"handoff\",path=\"direct\"} 10",
        "underdeck_handoff_rules{server=\"handoff\",tier=\"tc\"} 12",
        "underdeck_handoff_backend_up{server=\"handoff\",backend=\"b1\"} 0",
        "underdeck_handoff_step_seconds_count{server=\"handoff\",step=\"handoff\"} 40",
        "underdeck_handoff_step_seconds_bucket{le=\"0.000256\",server=\"handoff\",step=\"handoff\"} 40",
        "underdeck_handoff_step_seconds_bucket{le=\"+Inf\",server=\"handoff\",step=\"handoff\"} 40",
    ] {
        assert!(done.out.lines().any(|one| one == line), "{line}\n{}", done.out);
    }
    let document = std::fs::read_to_string(format!("{}/../docs/metrics.md", env!("CARGO_MANIFEST_DIR"))).expect("ours");
    for family in done.out.lines().filter_map(|line| line.strip_prefix("# TYPE underdeck_handoff_")) {
        let name = family.split(' ').next().expect("a name").trim_end_matches("_max");
        assert!(document.contains(&format!("underdeck_handoff_{name}")), "docs/metrics.md lacks {name}");
    }
}
