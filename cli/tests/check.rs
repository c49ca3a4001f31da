//! `underdeck check`.

mod common;

use std::path::{Path, PathBuf};

use common::World;
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

#[test]
fn a_clean_configuration_is_ok() {
    let place = tempfile::tempdir().expect("a directory");
    let done = World::default().underdeck(&["check", text(&nginx(place.path(), "nginx.conf", ""))]);
    assert_eq!((done.exit, done.err.as_str()), (Exit::Ok, ""), "{}", done.out);
    assert!(done.out.contains("untouched"), "{}", done.out);
}

#[test]
fn a_directive_that_looks_at_payload_is_named() {
    let place = tempfile::tempdir().expect("a directory");
    let path = nginx(place.path(), "nginx.conf", "sub_filter a b;");
    let done = World::default().underdeck(&["check", text(&path)]);
    assert_eq!(done.exit, Exit::Bad);
    assert!(done.out.contains(&format!("{}:8:7: warning UDN101", path.display())), "{}", done.out);

    let done = World::default().underdeck(&["check", "--json", text(&path)]);
    let json: serde_json::Value = serde_json::from_str(&done.out).expect("JSON");
    let codes: Vec<_> = json["findings"].as_array().expect("a list").iter().map(|finding| &finding["code"]).collect();
    assert_eq!((&json["schema"], codes.contains(&&"UDN101".into())), (&1.into(), true), "{codes:?}");
    assert_eq!(done.exit, Exit::Bad);
}

#[test]
fn several_nginx_files_are_checked_one_by_one() {
    let place = tempfile::tempdir().expect("a directory");
    let good = nginx(place.path(), "nginx-a.conf", "");
    let bad = nginx(place.path(), "nginx-b.conf", "sub_filter a b;");
    let done = World::default().underdeck(&["check", text(&good), text(&bad)]);
    assert_eq!(done.exit, Exit::Bad, "the second file counts");
    assert!(done.out.contains(text(&good)) && done.out.contains("UDN101"), "{}", done.out);
}

#[test]
fn codes_are_explained() {
    let done = World::default().underdeck(&["check", "--explain", "UDN101"]);
    assert_eq!((done.exit, done.out.lines().count() > 2), (Exit::Ok, true), "{}", done.out);
    let list = World::default().underdeck(&["check", "--explain", "list"]);
    assert_eq!(list.out.lines().count(), underdeck_audit::CODES.len());
    assert_eq!(World::default().underdeck(&["check", "--explain", "UDX999"]).exit, Exit::Nothing);
}

#[test]
fn what_cannot_be_checked_has_its_own_code() {
    let place = tempfile::tempdir().expect("a directory");
    assert_eq!(World::default().underdeck(&["check", "/no/such/nginx.conf"]).exit, Exit::Nothing);
    assert_eq!(World::default().underdeck(&["check"]).exit, Exit::Usage);
    let unknown = place.path().join("unknown");
    std::fs::write(&unknown, "hello\n").expect("ours");
    assert_eq!(World::default().underdeck(&["check", text(&unknown)]).exit, Exit::Usage);
    assert_eq!(World::default().underdeck(&["check", "--kind", "apache", text(&unknown)]).exit, Exit::Usage);
    let broken = place.path().join("nginx.conf");
    std::fs::write(&broken, "http {\n").expect("ours");
    let done = World::default().underdeck(&["check", text(&broken)]);
    assert_eq!((done.exit, done.err.contains("nginx.conf:")), (Exit::Bad, true), "{}", done.err);
}
