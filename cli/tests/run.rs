//! `underdeck run`: what it refuses, what it sets, and that the program is then on its own.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

use common::{Done, World, installed, sh, some_library};
use underdeck_cli::exit::Exit;

/// Runs it in memory with some library.
fn run(world: World, args: &[&str]) -> Done {
    let library = some_library();
    let mut all = vec!["run", "--library", library.to_str().expect("a plain path")];
    all.extend(args);
    let mut world = world;
    world.underdeck(&all)
}

fn refused(path: &Path, words: &str) {
    let done = run(World::default(), &["--", path.to_str().expect("a plain path")]);
    assert_eq!(done.exit, Exit::Bad, "{}", done.err);
    assert!(done.err.contains(words), "{:?} is not in {}", words, done.err);
    assert!(done.err.contains(path.to_str().expect("a plain path")), "{}", done.err);
    assert!(done.launches.is_empty());
}

/// The real command, for what only exec shows.
fn real(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_underdeck"));
    command.arg("run").arg("--library").arg(some_library()).args(args);
    command
}

#[test]
fn the_programs_exit_code_and_output_come_through() {
    assert_eq!(real(&["--", "/bin/true"]).status().expect("starts").code(), Some(0));
    assert_eq!(real(&["--", "sh", "-c", "exit 7"]).status().expect("starts").code(), Some(7));
    let echo = real(&["--", "echo", "a  b"]).output().expect("starts");
    assert_eq!(String::from_utf8_lossy(&echo.stdout), "a  b\n");
    assert!(echo.stderr.is_empty(), "{}", String::from_utf8_lossy(&echo.stderr));
}

#[test]
fn the_program_gets_the_signals_itself() {
    assert_eq!(real(&["--", "sh", "-c", "kill -TERM $$"]).status().expect("starts").signal(), Some(15));
    // It is the same process, and SIGPIPE is not ignored in it although Rust ignores it in ours.
    let mut child = real(&["--", "sh", "-c", "echo $$; grep SigIgn /proc/$$/status"]);
    let child = child.stdout(std::process::Stdio::piped()).spawn().expect("starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (own, ignored) = text.split_once('\n').expect("two lines");
    assert_eq!(own, pid.to_string());
    let ignored = u64::from_str_radix(ignored.trim_start_matches("SigIgn:").trim(), 16).expect("hexadecimal");
    assert_eq!(ignored & (1 << 12), 0, "SIGPIPE is not ignored");
}

#[test]
fn an_ordinary_user_can_run_it() {
    if !rustix::process::geteuid().is_root() {
        return the_programs_exit_code_and_output_come_through();
    }
    let place = tempfile::tempdir().expect("a directory");
    let own = common::copy_of_the_command(place.path());
    let mut command = Command::new(&own);
    command.arg("run").arg("--library").arg(some_library()).args(["--", "id", "-u"]).current_dir("/");
    let output = command.uid(65534).gid(65534).output().expect("starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "65534\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn settings_become_variables() {
    let args = [
        "--min-body",
        "4k",
        "--max-anchored",
        "3m",
        "--max-anchored-total",
        "1g",
        "--read-ahead",
        "0",
        "--",
        "true",
        "-x",
    ];
    let done = run(World::default().var("LD_PRELOAD", "/other.so"), &args);
    let [launch] = &done.launches[..] else { panic!("{}", done.err) };
    let var =
        |name: &str| launch.vars.get(std::ffi::OsStr::new(name)).map(|value| value.to_string_lossy().into_owned());
    let library = some_library().canonicalize().expect("it is there");
    assert_eq!(var("LD_PRELOAD"), Some(format!("{}:/other.so", library.display())));
    assert_eq!(var("UNDERDECK_PROTOCOL").as_deref(), Some("http1"));
    assert_eq!(var("UNDERDECK_MIN_BODY").as_deref(), Some("4096"));
    assert_eq!(var("UNDERDECK_MAX_ANCHORED").as_deref(), Some("3145728"));
    assert_eq!(var("UNDERDECK_READ_AHEAD").as_deref(), Some("0"));
    assert_eq!(var("UNDERDECK_MAX_ANCHORED_TOTAL").as_deref(), Some("1073741824"));
    assert_eq!((var("UNDERDECK_FORCE"), var("UNDERDECK_LEAVE_OUT")), (None, None));
    assert_eq!(launch.argv, ["true", "-x"], "as typed");
    assert!(launch.program.is_absolute(), "found on PATH");
}

#[test]
fn what_is_not_asked_for_is_left_to_the_engine() {
    let done = run(World::default(), &["--", "true"]);
    let names: Vec<_> =
        done.launches[0].vars.keys().filter(|name| name.to_string_lossy().starts_with("UNDERDECK")).collect();
    assert_eq!(names, ["UNDERDECK_PROTOCOL"]);
}

#[test]
fn force_is_told_to_the_engine() {
    let done = run(World::default(), &["--force", "--", "true"]);
    assert_eq!(done.launches[0].vars.get(std::ffi::OsStr::new("UNDERDECK_FORCE")), Some(&"1".into()));
}

#[test]
fn off_in_the_environment_is_respected() {
    // The words that the library understands.
    for off in ["off", "OFF", "Off", "0", "no", "False"] {
        let done = run(World::default().var("UNDERDECK", off), &["--", "true"]);
        assert!(done.err.contains("without the engine"), "{}", done.err);
        assert!(!done.launches[0].vars.contains_key(std::ffi::OsStr::new("LD_PRELOAD")));
    }
    for on in ["", "on", "1", "yes", "offline"] {
        let done = run(World::default().var("UNDERDECK", on), &["--", "true"]);
        assert!(done.launches[0].vars.contains_key(std::ffi::OsStr::new("LD_PRELOAD")), "{on}: {}", done.err);
    }
}

#[test]
fn missing_programs_and_libraries_have_their_own_codes() {
    let done = run(World::default(), &["--", "no-such-program"]);
    assert_eq!((done.exit, done.err.contains("not found")), (Exit::NotFound, true), "{}", done.err);
    let done = run(World::default(), &["--", "/no/such/program"]);
    assert_eq!(done.exit, Exit::NotFound);
    let done = run(World::default(), &["--", "/etc/passwd"]);
    assert_eq!((done.exit, done.err.contains("not executable")), (Exit::CannotExecute, true), "{}", done.err);
    let done = World::default().underdeck(&["run", "--library", "/no/lib.so", "--", "true"]);
    assert_eq!((done.exit, done.err.contains("/no/lib.so")), (Exit::Nothing, true), "{}", done.err);
    let done = World::default().underdeck(&["run", "--", "true"]);
    assert_eq!((done.exit, done.err.contains("/nowhere/lib/underdeck/")), (Exit::Nothing, true), "{}", done.err);
}

#[test]
fn the_library_is_found_near_the_command() {
    for near in ["bin", "lib/underdeck", "release"] {
        let place = tempfile::tempdir().expect("a directory");
        let library = place.path().join(near).join("libunderdeck_anchor.so");
        std::fs::create_dir_all(library.parent().expect("a directory")).expect("ours");
        std::fs::copy(some_library(), &library).expect("a copy");
        let mut world = World { executable: place.path().join("bin/underdeck"), ..World::default() };
        let done = world.underdeck(&["run", "--", "true"]);
        let preload = done.launches[0].vars[std::ffi::OsStr::new("LD_PRELOAD")].clone();
        assert_eq!(Path::new(&preload), library.canonicalize().expect("it is there"));
    }
}

#[test]
fn a_library_that_other_users_cannot_read_is_a_warning() {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o700)).expect("ours");
    let library = place.path().join("lib.so");
    std::fs::copy(some_library(), &library).expect("a copy");
    let done = World::default().underdeck(&["run", "--library", library.to_str().expect("plain"), "--", "true"]);
    assert!(done.err.contains("warning: other users cannot read"), "{}", done.err);
    assert_eq!(done.launches.len(), 1);
}

#[test]
fn a_library_that_ld_preload_cannot_name_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let library = place.path().join("a b.so");
    std::fs::copy(some_library(), &library).expect("a copy");
    let done = World::default().underdeck(&["run", "--library", library.to_str().expect("plain"), "--", "true"]);
    assert_eq!((done.exit, done.err.contains("a space or a colon")), (Exit::Nothing, true), "{}", done.err);
}

#[test]
fn static_and_go_programs_are_refused() {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::write(place.path().join("a.c"), "int main(void) { return 0; }").expect("ours");
    if installed("gcc") {
        sh("gcc -static -o static a.c", place.path());
        refused(&place.path().join("static"), "statically linked");
        // What Go's linker leaves, in a program that is not Go's: there need not be a compiler for it here.
        std::fs::write(place.path().join("note"), b"Go").expect("ours");
        sh("gcc -o plain a.c && objcopy --add-section .note.go.buildid=note plain marked", place.path());
        refused(&place.path().join("marked"), "a Go program");
    }
    if installed("go") {
        std::fs::write(place.path().join("a.go"), "package main\nfunc main() {}\n").expect("ours");
        sh("GOFLAGS=-mod=mod GO111MODULE=off HOME=$PWD GOCACHE=$PWD/cache go build -o go a.go", place.path());
        refused(&place.path().join("go"), "a Go program");
        sh(
            "go_=go; cp go stripped; objcopy --strip-section-headers stripped 2>/dev/null || strip stripped",
            place.path(),
        );
        refused(&place.path().join("stripped"), "a Go program");
    }
}

#[test]
fn other_machines_and_libcs_are_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let header = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = std::fs::read("/bin/true").expect("it is there");
        change(&mut bytes);
        let path = place.path().join(name);
        std::fs::write(&path, bytes).expect("ours");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("ours");
        path
    };
    // e_machine: 183 is EM_AARCH64, 62 EM_X86_64.
    let other = if cfg!(target_arch = "x86_64") { (183, "aarch64") } else { (62, "x86_64") };
    refused(&header("arch", &|bytes| bytes[18] = other.0), &format!("built for {}", other.1));
    let musl = header("musl", &|bytes| {
        let at = bytes.windows(8).position(|part| part == b"ld-linux").expect("PT_INTERP");
        bytes[at..at + 8].copy_from_slice(b"ld-musl-");
    });
    refused(&musl, "not that of glibc");
    refused(&header("broken", &|bytes| bytes[32..40].fill(0xff)), "damaged ELF");
    refused(&header("text", &|bytes| *bytes = b"hello\n".to_vec()), "neither an ELF program nor a script");
}

#[test]
fn programs_with_more_rights_are_refused() {
    let place = tempfile::tempdir().expect("a directory");
    for (mode, word) in [(0o4755, "setuid"), (0o2755, "setgid")] {
        let path = place.path().join(word);
        std::fs::copy("/bin/true", &path).expect("a copy");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("ours");
        refused(&path, word);
    }
    let path = place.path().join("capable");
    std::fs::copy("/bin/true", &path).expect("a copy");
    // Version 2, effective; CAP_NET_BIND_SERVICE is bit 10.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    match rustix::fs::setxattr(&path, c"security.capability", &capability, rustix::fs::XattrFlags::empty()) {
        Ok(()) => refused(&path, "file capabilities"),
        Err(error) => {
            assert!(!rustix::process::geteuid().is_root() || error == rustix::io::Errno::OPNOTSUPP, "{error}")
        }
    }
}

#[test]
fn scripts_are_followed_to_their_interpreter() {
    let place = tempfile::tempdir().expect("a directory");
    let script = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).expect("ours");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("ours");
        path.to_str().expect("plain").to_owned()
    };
    for text in ["#!/bin/sh\nexit 0\n", "#! /usr/bin/env -S A=b sh -e\n"] {
        let done = run(World::default(), &["--", &script("good", text)]);
        assert!(done.err.contains("is a script for /") && done.launches.len() == 1, "{}", done.err);
    }
    let looping = script("loop", &format!("#!{}/loop\n", place.path().display()));
    let done = run(World::default(), &["--", &looping]);
    assert_eq!((done.exit, done.err.contains("interpreters in a row")), (Exit::Bad, true), "{}", done.err);
    let done = run(World::default(), &["--", &script("gone", "#!/no/such/interpreter\n")]);
    assert_eq!((done.exit, done.err.contains("/no/such/interpreter")), (Exit::NotFound, true), "{}", done.err);
    refused(Path::new(&script("empty", "#!\n")), "neither an ELF program");
}

#[test]
fn nonsense_is_a_usage_error() {
    for args in [&["--min-body", "63", "--", "true"][..], &["--max-anchored", "3x", "--", "true"], &[]] {
        let done = run(World::default(), args);
        assert_eq!(done.exit, Exit::Usage, "{args:?}");
        assert!(done.out.is_empty() && !done.err.is_empty());
    }
}
