//! The check that `run` does first.

mod common;

use std::path::{Path, PathBuf};

use common::{World, some_library};
use underdeck_cli::exit::Exit;

fn nginx(directory: &Path, name: &str, directive: &str) -> PathBuf {
    let text = format!(
        "events {{}}\nhttp {{\n  server {{\n    listen 80;\n    proxy_request_buffering off;\n    location / {{\n      proxy_pass http://10.0.0.5:8080;\n      \
         {directive}\n    }}\n  }}\n}}\n"
    );
    let path = directory.join(name);
    std::fs::write(&path, text).expect("ours");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A directory with a harmless program of this name.
fn program(name: &str) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join(name);
    std::fs::copy("/bin/true", &path).expect("a copy");
    (place, path)
}

fn run(before: &[&str], program: &Path, config: &Path) -> common::Done {
    let library = some_library();
    let mut args = vec!["run", "--library", text(&library)];
    args.extend(before);
    args.extend(["--", text(program), "-c", text(config)]);
    World::default().underdeck(&args)
}

#[test]
fn run_leaves_out_what_is_looked_at() {
    let (place, program) = program("nginx");
    let done = run(&[], &program, &nginx(place.path(), "a.conf", "sub_filter a b;"));
    assert!(done.err.contains("UDN101"), "{}", done.err);
    let left_out = &done.launches[0].vars[std::ffi::OsStr::new("UNDERDECK_LEAVE_OUT")];
    assert!(left_out.to_string_lossy().contains("rx-client:10.0.0.5:8080"), "{left_out:?}");

    let done = run(&["--no-check"], &program, &nginx(place.path(), "a.conf", "sub_filter a b;"));
    assert!(!done.err.contains("UDN101"), "{}", done.err);
    assert!(!done.launches[0].vars.contains_key(std::ffi::OsStr::new("UNDERDECK_LEAVE_OUT")));
}

#[test]
fn run_refuses_what_it_cannot_read_unless_forced() {
    let (place, program) = program("nginx");
    let broken = place.path().join("broken.conf");
    std::fs::write(&broken, "http {\n").expect("ours");
    let done = run(&[], &program, &broken);
    assert_eq!((done.exit, done.launches.len()), (Exit::Bad, 0), "{}", done.err);
    assert!(done.err.contains("broken.conf:") && done.err.contains("--force"), "{}", done.err);

    let done = run(&["--force"], &program, &broken);
    assert_eq!(done.launches.len(), 1);
    assert!(done.err.contains("--force: started although"), "it is logged: {}", done.err);
    assert_eq!(done.launches[0].vars[std::ffi::OsStr::new("UNDERDECK_FORCE")], "1");
}

#[test]
fn other_programs_have_nothing_to_check() {
    let (place, program) = program("something");
    let done = run(&[], &program, &place.path().join("no-such.conf"));
    assert_eq!((done.launches.len(), done.err.lines().count()), (1, 1), "only what our exec said: {}", done.err);
}

#[test]
fn openssl_is_seen_where_it_is_linked() {
    if !common::installed("gcc") {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let script = "echo 'int SSL_write(void) { return 0; }' > ssl.c && gcc -shared -fPIC -o libssl.so.3 -Wl,-soname,libssl.so.3 ssl.c
        echo 'int SSL_write(void); int main(void) { return SSL_write(); }' > main.c && gcc -o with main.c ./libssl.so.3
        echo 'int main(void) { return 0; }' > main.c && gcc -o without main.c";
    common::sh(script, place.path());
    for (name, links) in [("with", true), ("without", false)] {
        let program = underdeck_cli::program::Program::examine(&place.path().join(name), "/bin".as_ref()).expect("fit");
        assert_eq!(program.links_openssl, links, "{name}");
    }
}
