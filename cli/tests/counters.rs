//! `stat` and `metrics` over real processes with real counters.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::{Child, World};
use underdeck_cli::exit::Exit;

#[test]
fn stat_of_one_process_says_everything() {
    let child = Child::counting("origin");
    let done = World::default().underdeck(&["stat", &child.pid.to_string()]);
    assert_eq!(done.exit, Exit::Ok, "{}", done.err);
    insta::assert_snapshot!(done.out.replace(&child.pid.to_string(), "PID"));
}

#[test]
fn stat_lists_all_processes_and_their_sum() {
    let children = [Child::counting("list-a"), Child::counting("list-b")];
    let done = World::default().underdeck(&["stat"]);
    let line = |start: &str| done.out.lines().find(|line| line.trim_start().starts_with(start)).expect("a line");
    for child in &children {
        let words: Vec<_> = line(&child.pid.to_string()).split_whitespace().skip(1).collect();
        assert!(words[0].starts_with("list-"), "{words:?}");
        assert_eq!(words[1..], "http1 on 2 1.00 MiB 4.10 KiB 1000 B 99.5 % 0 1 0".split(' ').collect::<Vec<_>>());
    }
    assert!(line("total").contains("MiB"), "{}", done.out);
}

#[test]
fn stat_as_json_has_a_schema_and_names() {
    let child = Child::counting("json");
    let done = World::default().underdeck(&["stat", &child.pid.to_string(), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(json["schema"], 1);
    let process = &json["processes"][0];
    assert_eq!((&process["pid"], &process["comm"]), (&child.pid.into(), &"json".into()));
    assert_eq!(process["roles"]["connected"]["bytes_anchored"], (1 << 20) - 4096);
    assert_eq!(process["roles"]["accepted"]["copied_by_reason"]["below-min-body"], 100);
    assert_eq!(process["roles"]["connected"]["materialised_by_reason"]["exit-tls"], 1000);
    assert_eq!(json["total"]["roles"]["connected"]["messages"], 1);
    assert_eq!((&process["resets"], &process["bytes_held_max"]), (&0.into(), &65536.into()));
}

#[test]
fn watch_shows_rates_until_stdin_closes() {
    let child = Child::counting("watched");
    let pid = child.pid.to_string();
    let mut child = child;
    let mut world = World { pauses: 2, meanwhile: Box::new(move || child.again()), ..World::default() };
    let done = world.underdeck(&["stat", &pid, "--watch"]);
    assert_eq!(done.exit, Exit::Ok, "{}", done.err);
    let blocks: Vec<_> = done.out.split(&format!("watched ({pid})")).skip(1).collect();
    assert_eq!(blocks.len(), 2, "{}", done.out);
    assert!(!blocks[0].contains("/s"), "no rate at first: {}", blocks[0]);
    assert!(blocks[1].contains("+1.00 MiB/s"), "{}", blocks[1]);
    assert!(!done.out.contains('\x1b'), "no control sequences into a file");

    let child = Child::counting("watched2");
    let (pid, mut child) = (child.pid.to_string(), child);
    let mut world = World { pauses: 2, terminal: true, meanwhile: Box::new(move || child.again()), ..World::default() };
    let done = world.underdeck(&["stat", "--watch"]);
    assert!(done.out.starts_with("\x1b[H"), "a terminal is redrawn");
    let last = done.out.rsplit("\x1b[H").next().expect("a screen");
    let line = last.lines().find(|line| line.starts_with(&pid)).expect("its line");
    assert!(line.contains("1.00 MiB/s"), "{line}");
}

#[test]
fn watch_ends_well_when_the_process_ends() {
    let child = Child::counting("mortal");
    let pid = child.pid.to_string();
    let mut child = Some(child);
    let mut world = World { pauses: 5, meanwhile: Box::new(move || drop(child.take())), ..World::default() };
    let done = world.underdeck(&["stat", &pid, "--watch", "--json"]);
    assert_eq!(done.exit, Exit::Ok, "{}", done.err);
    assert_eq!(done.out.lines().count(), 1, "one document per line");
    assert!(done.err.contains("no process"), "{}", done.err);
}

#[test]
fn stat_of_what_is_not_there_ends_with_3() {
    let done = World::default().underdeck(&["stat", "4294967295"]);
    assert_eq!((done.exit, done.out.as_str()), (Exit::Nothing, ""));
    let own = std::process::id().to_string();
    let done = World::default().underdeck(&["stat", &own]);
    assert_eq!((done.exit, done.err.contains("no Underdeck counters")), (Exit::Nothing, true), "{}", done.err);
    let empty = tempfile::tempdir().expect("a directory");
    let done = World { proc: empty.path().into(), ..World::default() }.underdeck(&["stat"]);
    assert_eq!((done.exit, done.err.contains("underdeck run")), (Exit::Nothing, true), "{}", done.err);
}

#[test]
fn metrics_once_prints_openmetrics() {
    let _child = Child::counting("scraped");
    let done = World::default().underdeck(&["metrics", "--once"]);
    assert_eq!(done.exit, Exit::Ok, "{}", done.err);
    for line in [
        "underdeck_anchor_anchored_bytes_total{comm=\"scraped\",role=\"connected\"} 1044480",
        "underdeck_anchor_copied_bytes_total{comm=\"scraped\",role=\"connected\",reason=\"head-of-body\"} 4096",
        "underdeck_anchor_materialised_bytes_total{comm=\"scraped\",role=\"connected\",reason=\"exit-tls\"} 1000",
        "underdeck_anchor_resets_total{comm=\"scraped\"} 0",
        "underdeck_anchor_processes{comm=\"scraped\"} 1",
        "# UNIT underdeck_anchor_held_bytes bytes",
    ] {
        assert!(done.out.lines().any(|there| there == line), "{line} is missing in\n{}", done.out);
    }
    assert!(done.out.ends_with("# EOF\n"));
    let scraped: Vec<_> = done.out.lines().filter(|line| line.contains("scraped")).collect();
    assert!(scraped.iter().all(|line| !line.contains("pid")), "labels are bounded");
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    text
}

#[test]
fn metrics_are_served_over_http() {
    let child = Child::counting("served");
    let mut server = Command::new(env!("CARGO_BIN_EXE_underdeck"))
        .args(["metrics", "--listen", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut line = String::new();
    BufReader::new(server.stderr.take().expect("piped")).read_line(&mut line).expect("says where");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();

    let first = get(&address, "/metrics");
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    assert!(first.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{first}");
    let series = "underdeck_anchor_messages_total{comm=\"served\",role=\"connected\"} 1";
    assert!(first.contains(series), "{first}");
    drop(child);
    assert!(get(&address, "/metrics").contains(series), "counters of the dead stay");
    assert!(get(&address, "/").starts_with("HTTP/1.1 404"));
    server.kill().expect("ours");
    server.wait().expect("ours");
}

#[test]
fn an_address_in_use_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let done = World::default().underdeck(&["metrics", "--listen", &address]);
    assert_eq!((done.exit, done.err.contains("--listen")), (Exit::Missing, true), "{}", done.err);
}

#[test]
fn watch_into_a_pipe_ends_when_stdin_closes() {
    let child = Child::counting("piped");
    let mut watch = Command::new(env!("CARGO_BIN_EXE_underdeck"))
        .args(["stat", &child.pid.to_string(), "--watch", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    for _ in 0..2 {
        let line = lines.next().expect("a line each second").expect("readable");
        assert!(line.contains("\"comm\":\"piped\""), "{line}");
    }
    drop(watch.stdin.take());
    assert_eq!(watch.wait().expect("ends").code(), Some(0));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let _child = Child::counting("unread");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_underdeck")).arg("stat").stdout(writer).output().expect("starts");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn processes_of_others_are_denied_not_missing() {
    if !rustix::process::geteuid().is_root() {
        let done = World::default().underdeck(&["stat", "1"]);
        assert_eq!(done.exit, Exit::Missing, "{}", done.err);
        return;
    }
    let child = Child::counting("of-root");
    let place = tempfile::tempdir().expect("a directory");
    let own = common::copy_of_the_command(place.path());
    let stat = |args: &[&str]| {
        let mut command = Command::new(&own);
        let output = command.arg("stat").args(args).uid(65534).gid(65534).current_dir("/").output().expect("starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, message) = stat(&[&child.pid.to_string()]);
    assert_eq!((code, message.contains("as root")), (Some(4), true), "{message}");
    let (code, message) = stat(&[]);
    assert_eq!((code, message.contains("belong to others")), (Some(3), true), "{message}");
}
