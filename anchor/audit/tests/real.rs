//! The fixtures are what the proxies themselves accept. Where one is not installed, its test says so and passes.

use std::path::{Path, PathBuf};
use std::process::Command;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn accepts(program: &str, args: &[&str], file: &Path) {
    match Command::new(program).args(args).arg(file).env("APP_HOST", "127.0.0.1").output() {
        Err(error) => eprintln!("{program} cannot be run here: {error}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{program} does not accept {}:\n{said}", file.display());
        }
    }
}

#[test]
fn nginx_accepts_its_fixtures() {
    // tls.conf needs certificates, stream.conf modules, dump.conf is a dump.
    for name in ["plain", "uploads", "inherit", "rewriting", "files", "foreign", "includes"] {
        accepts(
            "nginx",
            &["-t", "-q", "-g", "pid /dev/null; error_log stderr;", "-c"],
            &own_paths(name).path().join("nginx.conf"),
        );
    }
}

/// The fixture as it is, but without `pid` and `user`, which `-g` and an ordinary user need to be different.
fn own_paths(name: &str) -> tempfile::TempDir {
    let from = fixture(&format!("nginx/{name}.conf"));
    let text = std::fs::read_to_string(&from).unwrap();
    let there = from.parent().unwrap().join("conf.d").display().to_string();
    let text = text
        .lines()
        .filter(|line| !line.starts_with("pid ") && !line.starts_with("user "))
        .map(|line| line.replace("conf.d", &there).replace("/var/log/nginx", "/tmp") + "\n")
        .collect::<String>();
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(from.parent().unwrap().join("conf.d"), directory.path().join("conf.d")).unwrap();
    std::fs::write(directory.path().join("nginx.conf"), text).unwrap();
    directory
}

#[test]
fn haproxy_accepts_its_fixtures() {
    for name in ["plain", "bodies", "caches", "tcp", "endpoints", "conditions"] {
        accepts("haproxy", &["-c", "-q", "-f"], &fixture(&format!("haproxy/{name}.cfg")));
    }
}

#[test]
fn envoy_accepts_its_fixtures() {
    // tls.json has no certificates, dynamic.yaml no management server.
    for name in ["plain.yaml", "filters.yaml"] {
        accepts("envoy", &["--mode", "validate", "--log-level", "error", "-c"], &fixture(&format!("envoy/{name}")));
    }
}
