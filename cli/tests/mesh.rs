//! `underdeck mesh check`, `compile` and `explain`.

mod common;

use std::path::{Path, PathBuf};

use common::World;
use underdeck_cli::exit::Exit;

const ROUTES: &str = "\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: reviews }
spec:
  hosts: [reviews]
  http:
  - match: [{ uri: { prefix: /api }, headers: { x-user: { exact: jason } } }]
    route: [{ destination: { host: reviews, subset: v2 } }]
  - timeout: 2s
    route: [{ destination: { host: reviews } }]
";

fn file(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("ours");
    path
}

#[test]
fn json_has_the_schema_of_the_documentation() {
    let place = tempfile::tempdir().expect("a directory");
    let path = file(place.path(), "reviews.yaml", ROUTES);
    let done = World::default().underdeck(&["mesh", "check", "--json", place.path().to_str().expect("plain")]);
    assert_eq!((done.exit, done.err.as_str()), (Exit::Ok, ""));
    let json: serde_json::Value = serde_json::from_str(&done.out).expect("JSON");
    let mut members: Vec<_> = json.as_object().expect("a map").keys().cloned().collect();
    members.sort();
    assert_eq!(members, ["rules", "schema", "summary"]);
    let summary = serde_json::json!({
        "documents": 1, "rules": 2, "rules_kernel": 1, "rules_envoy": 1, "by_reason": {"timeout": 1},
    });
    assert_eq!((&json["schema"], &json["summary"]), (&serde_json::json!(1), &summary));
    let (first, second) = (&json["rules"][0], &json["rules"][1]);
    assert_eq!((&first["placement"], &first["line"], &first["col"]), (&"kernel".into(), &7.into(), &5.into()));
    assert_eq!(second["file"], path.to_str().expect("plain"));
    assert_eq!(second["reasons"][0]["code"], "timeout");
    assert_eq!((&second["reasons"][0]["line"], &second["reasons"][0]["col"]), (&9.into(), &14.into()));
}

#[test]
fn a_broken_file_does_not_hide_the_others() {
    let place = tempfile::tempdir().expect("a directory");
    file(place.path(), "a.yaml", "kind: [\n");
    file(place.path(), "b.yaml", ROUTES);
    file(place.path(), "notes.txt", "{{");
    let done = World::default().underdeck(&["mesh", "check", place.path().to_str().expect("plain")]);
    assert_eq!(done.exit, Exit::Bad);
    assert!(done.err.contains("a.yaml:"), "{}", done.err);
    assert!(done.out.contains("b.yaml:7:5: kernel VirtualService default/reviews http[0]"), "{}", done.out);
    assert!(done.out.contains("2 rules in 2 documents: 1 kernel (50.0 %), 1 envoy"), "{}", done.out);
}

#[test]
fn explain_says_which_rule_what_and_where() {
    let place = tempfile::tempdir().expect("a directory");
    let path = file(place.path(), "reviews.yaml", ROUTES);
    let path = path.to_str().expect("plain");
    let explain = |request: &str| World::default().underdeck(&["mesh", "explain", path, "--request", request]);
    let done = explain("GET /api/v1 host=reviews x-user=jason source=cluster.local/ns/a/sa/b");
    assert_eq!(done.exit, Exit::Ok, "{}", done.err);
    for part in
        ["reviews.yaml:7:13: route", "forwarded to reviews.default.svc.cluster.local||v2", "enforced by: kernel"]
    {
        assert!(done.out.contains(part), "no {part} in\n{}", done.out);
    }
    let done = explain("GET /api/v1 host=reviews x-user=Jason");
    for part in ["http[1]", "timeout", "enforced by: envoy"] {
        assert!(done.out.contains(part), "no {part} in\n{}", done.out);
    }
    let done = explain("GET / host=elsewhere");
    assert!(done.out.contains("passed on unchanged"), "{}", done.out);
    assert_eq!(explain("GET").exit, Exit::Usage);
}

#[test]
fn what_is_not_there_is_named() {
    let place = tempfile::tempdir().expect("a directory");
    let directory = place.path().to_str().expect("plain");
    let mesh = |args: &[&str]| {
        let all: Vec<_> = ["mesh"].iter().chain(args).copied().collect();
        World::default().underdeck(&all)
    };
    assert_eq!(mesh(&["check", directory]).exit, Exit::Nothing);
    assert_eq!(mesh(&["check", "/nowhere/at/all"]).exit, Exit::Nothing);
    assert_eq!(mesh(&["check"]).exit, Exit::Usage);
    assert_eq!(mesh(&["check", "--explain", "nonsense"]).exit, Exit::Nothing);
    assert!(mesh(&["check", "--explain", "list"]).out.contains("outlier-detection"));
    let path = file(place.path(), "reviews.yaml", ROUTES);
    let args = ["explain", path.to_str().expect("plain"), "--request", "GET / host=a", "--listener", "gateway x/y"];
    let done = mesh(&args);
    assert_eq!((done.exit, done.err.contains("there are: mesh")), (Exit::Nothing, true), "{}", done.err);
}

#[test]
fn without_an_agent_or_a_configuration_there_is_nothing() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).to_str().expect("plain").to_owned();
    for noun in ["status", "stat", "metrics"] {
        let done = World::default().underdeck(&["mesh", noun, "--socket", &path("mesh.sock")]);
        assert_eq!(done.exit, Exit::Nothing);
        assert!(done.err.contains("is `underdeck mesh run` running?"), "{}", done.err);
    }
    let is_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("Linux")) == 0;
    let nothing = if is_root { Exit::Nothing } else { Exit::Missing };
    assert_eq!(World::default().underdeck(&["mesh", "release", "--cgroup", &path("none")]).exit, nothing);
    assert_eq!(World::default().underdeck(&["mesh", "run", "--config", &path("mesh.yaml")]).exit, Exit::Nothing);
    std::fs::write(path("mesh.yaml"), "cgroup: /nowhere\npolicy: []\n").expect("ours");
    let done = World::default().underdeck(&["mesh", "run", "--config", &path("mesh.yaml")]);
    assert_eq!(done.exit, Exit::Usage);
    assert!(done.err.contains("mesh.yaml") && done.err.contains("policy"), "{}", done.err);
}

#[test]
fn compile_writes_what_the_documentation_lists() {
    let place = tempfile::tempdir().expect("a directory");
    let path = file(place.path(), "reviews.yaml", ROUTES);
    let (out, cache) = (place.path().join("out"), place.path().join("cache"));
    let [path, out_text, cache] = [&path, &out, &cache].map(|path| path.to_str().expect("plain"));
    let compile = || World::default().underdeck(&["mesh", "compile", path, "-o", out_text, "--cache", cache]);
    let done = compile();
    assert_eq!(done.exit, Exit::Ok, "{}", done.err);
    assert!(done.out.contains("mesh/policy.bpf.o: listener mesh: 2 routes"), "{}", done.out);
    let read = |name: &str| std::fs::read(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let source = String::from_utf8(read("mesh/policy.bpf.c")).expect("text");
    assert!(source.contains("VirtualService default/reviews http[0] at ") && source.contains("reviews.yaml:7:13"));
    assert!(read("mesh/policy.bpf.o").starts_with(b"\x7fELF"));
    let form: serde_json::Value = serde_json::from_slice(&read("policy.json")).expect("JSON");
    assert_eq!((&form["schema"], &form["policy"]["listeners"][0]["name"]), (&1.into(), &"mesh".into()));
    let meaning: serde_json::Value = serde_json::from_slice(&read("mesh/program.json")).expect("JSON");
    assert_eq!(meaning["clusters"], serde_json::json!(["reviews.default.svc.cluster.local||v2"]));
    assert!(!read("include/underdeck_mesh.h").is_empty());
    let again = compile();
    assert!(again.out.contains("from the cache"), "{}", again.out);
    let json = World::default().underdeck(&["mesh", "compile", path, "-o", out_text, "--cache", cache, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    let only = &json["listeners"][0];
    assert_eq!((&json["schema"], &only["routes"], &only["cached"]), (&1.into(), &2.into(), &true.into()));
    assert_eq!((&only["surplus"], &only["rules"]), (&serde_json::json!([]), &serde_json::json!([0])));
    assert_eq!(compile_missing(path, out_text).0, Some(4));
    assert!(compile_missing(path, out_text).1.contains("install clang-19"));
}

/// With a compiler that is not there.
fn compile_missing(path: &str, out: &str) -> (Option<i32>, String) {
    let command = std::process::Command::new(env!("CARGO_BIN_EXE_underdeck"))
        .args(["mesh", "compile", path, "-o", out, "--cache", &format!("{out}/other")])
        .env("UNDERDECK_CLANG", "/nowhere/clang-19")
        .output()
        .expect("it starts");
    (command.status.code(), String::from_utf8_lossy(&command.stderr).into_owned())
}
