//! `underdeck protocol`: over the shipped objects, which are good, and broken ones, which are not.

mod common;

use std::path::{Path, PathBuf};

use common::World;
use underdeck_cli::exit::Exit;
use underdeck_protocols::{Accepted, Digest, Program};

/// A shipped object with one byte more, so that it is nobody's but the user's.
fn own_object(directory: &Path) -> PathBuf {
    let mut elf = Program::shipped_object("lenprefix").expect("it is shipped").to_vec();
    elf.push(0);
    let path = directory.join("own.bpf.o");
    std::fs::write(&path, elf).expect("ours");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn the_shipped_programs_are_listed() {
    let done = World::default().underdeck(&["protocol", "list"]);
    assert_eq!(done.exit, Exit::Ok);
    let digest = Digest::of(Program::shipped_object("http1").expect("it is shipped")).to_string();
    assert!(done.out.lines().any(|line| line.starts_with("http1 ") && line.ends_with(&digest)), "{}", done.out);
}

#[test]
fn an_object_is_checked_and_accepted() {
    let place = tempfile::tempdir().expect("a directory");
    let object = own_object(place.path());
    let mut world = World { etc: place.path().join("etc"), ..World::default() };
    let done = world.underdeck(&["protocol", "check", text(&object)]);
    if !rustix::process::geteuid().is_root() {
        assert_eq!((done.exit, done.err.contains("CAP_BPF")), (Exit::Missing, true), "{}", done.err);
        return;
    }
    assert_eq!(done.exit, Exit::Ok, "{}", done.err);
    assert!(done.out.contains("protocol lenprefix") && done.out.contains("engine   interpreter"), "{}", done.out);

    let done = world.underdeck(&["protocol", "accept", text(&object)]);
    assert_eq!(done.exit, Exit::Ok, "{}", done.err);
    let accepted = Accepted::read(&world.etc.join("underdeck/protocols.accepted")).expect("root's alone");
    assert!(accepted.contains(&Digest::of(&std::fs::read(&object).expect("ours"))));
    let again = world.underdeck(&["protocol", "accept", text(&object)]);
    assert!(again.err.contains("accepted already"), "{}", again.err);
    assert!(world.underdeck(&["protocol", "check", text(&object)]).out.contains("engine   machine code"));
    assert_eq!(Path::new(Accepted::PATH), Path::new("/etc/underdeck/protocols.accepted"), "where the engine looks");
}

#[test]
fn a_stream_is_cut_as_the_program_says() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let object = place.path().join("http1.bpf.o");
    std::fs::write(&object, Program::shipped_object("http1").expect("it is shipped")).expect("ours");
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n";
    let stream = place.path().join("requests");
    std::fs::write(&stream, format!("{head}{}", "x".repeat(1000)).repeat(3)).expect("ours");
    let done = World::default().underdeck(&["protocol", "check", "--requests", text(&stream), text(&object)]);
    assert_eq!(done.exit, Exit::Ok, "{}", done.err);
    let expected = format!("{} bytes metadata, 3000 opaque, 0 after a pass", 3 * head.len());
    assert!(done.out.contains(&expected), "{}", done.out);
}

#[test]
fn what_is_no_program_is_bad() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("text.bpf.o");
    std::fs::write(&path, "hello").expect("ours");
    let done = World::default().underdeck(&["protocol", "check", text(&path)]);
    assert_eq!((done.exit, done.err.contains("not an eBPF object")), (Exit::Bad, true), "{}", done.err);
    assert_eq!(World::default().underdeck(&["protocol", "check", "/no/such.o"]).exit, Exit::Nothing);
}

#[test]
fn run_takes_an_object_by_its_absolute_path() {
    let place = tempfile::tempdir().expect("a directory");
    let object = own_object(place.path());
    let library = common::some_library();
    let run = |protocol: &str| {
        World::default().underdeck(&["run", "--library", text(&library), "--protocol", protocol, "--", "true"])
    };
    let done = run(text(&object));
    let value = &done.launches[0].vars[std::ffi::OsStr::new("UNDERDECK_PROTOCOL")];
    assert_eq!(Path::new(value), object.canonicalize().expect("it is there"));
    let done = run("no-such-protocol");
    assert_eq!((done.exit, done.launches.len()), (Exit::Nothing, 0));
    assert!(done.err.contains("underdeck protocol list"), "{}", done.err);
}
