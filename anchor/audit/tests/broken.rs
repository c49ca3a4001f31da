//! Broken input: an error with its place, and never a panic.

use proptest::prelude::*;
use underdeck_audit::{AuditError, Options, ProxyKind, check, check_text};

fn error(kind: ProxyKind, text: &str) -> String {
    check_text(text, "file".as_ref(), &Options::of_kind(kind)).unwrap_err().to_string()
}

#[test]
fn nginx_errors_name_the_place() {
    for (text, expected) in [
        ("http {\n  server {", "file:2:3: the block is never closed; expected `}`"),
        ("a b", "file:1:1: unexpected end of file, expected `;` or `{`"),
        ("a;\n}", "file:2:1: unexpected `}`"),
        ("a { b }", "file:1:7: unexpected `}`, expected `;`"),
        (";", "file:1:1: unexpected `;`, expected the name of a directive"),
        ("a 'b;\n", "file:1:3: the quote ' is never closed"),
        ("a \"b\"c;", "file:1:6: unexpected `c` after a closing quote; expected a space"),
        ("x_by_lua_block { '}' ", "file:1:1: the Lua block is never closed; expected `}`"),
    ] {
        assert_eq!(error(ProxyKind::Nginx, text), expected, "{text}");
    }
}

#[test]
fn includes_that_lead_nowhere_or_in_circles_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nginx.conf");
    std::fs::write(&file, "events {}\n  include missing.conf;\n").unwrap();
    let message = check(&file, None).unwrap_err().to_string();
    assert!(message.contains("nginx.conf:2:11: cannot read the included file"), "{message}");
    std::fs::write(&file, "include nginx.conf;\n").unwrap();
    assert!(matches!(check(&file, None), Err(AuditError::IncludeDepth { .. })));
    std::fs::write(&file, "include none/*.conf;\n").unwrap();
    assert!(check(&file, None).is_ok());
}

#[test]
fn a_comment_does_not_make_a_dump() {
    let text = "frobnicate on;\n# configuration file /etc/nginx/nginx.conf:\nevents {}\n";
    let report = check_text(text, "file".as_ref(), &Options::of_kind(ProxyKind::Nginx)).unwrap();
    assert_eq!((report.findings[0].code, report.findings[0].line), ("UDN002", 1));
}

#[test]
fn haproxy_errors_name_the_place() {
    for (text, expected) in [
        ("mode http\n", "file:1:1: `mode` stands before the first section (global, defaults, frontend, …)"),
        ("global\n  log \"x\n", "file:2:7: the quote is never closed"),
        ("global\n.if true\n", "file:2:1: `.if` without `.endif`"),
        ("global\n .else\n", "file:2:2: `.else` without `.if`"),
        ("frontend f from nowhere\n", "file:1:1: there is no `defaults nowhere` above this line"),
    ] {
        assert_eq!(error(ProxyKind::Haproxy, text), expected, "{text}");
    }
}

#[test]
fn envoy_errors_name_the_place() {
    let message = error(ProxyKind::Envoy, "admin:\n  a: [1, 2\n");
    assert!(message.starts_with("file:"), "{message}");
    let message = error(ProxyKind::Envoy, "a: 1\na: 2\n");
    assert!(message.starts_with("file:2:1: "), "{message}");
}

#[test]
fn a_file_that_is_not_there_or_of_no_kind_is_an_error() {
    assert!(matches!(check("/nowhere/nginx.conf".as_ref(), None), Err(AuditError::Read { .. })));
    let unknown = check_text("hello", "file".as_ref(), &Options::default());
    assert!(matches!(unknown, Err(AuditError::UnknownKind { .. })));
}

#[test]
fn a_directory_is_read_as_haproxy_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(check(directory.path(), None), Err(AuditError::NothingToRead { .. })));
    std::fs::write(directory.path().join("2.cfg"), "frontend f\nbind :80\ndefault_backend b\n").unwrap();
    std::fs::write(directory.path().join("1.cfg"), "defaults\nmode http\ncompression algo gzip\n").unwrap();
    std::fs::write(directory.path().join("3.cfg"), "backend b\nserver s 10.0.0.1:80\n").unwrap();
    std::fs::write(directory.path().join("4.txt"), "nonsense").unwrap();
    let report = check(directory.path(), Some(ProxyKind::Haproxy)).unwrap();
    assert_eq!((report.files.len(), report.findings.len()), (3, 1));
    assert!(report.findings[0].file.ends_with("1.cfg"));
}

#[test]
fn kinds_are_guessed_by_name_and_by_text() {
    for (name, text, kind) in [
        ("haproxy.cfg", "", ProxyKind::Haproxy),
        ("a.conf", "# x\nevents { }\n", ProxyKind::Nginx),
        ("a.conf", "worker_processes 1;\n", ProxyKind::Nginx),
        ("a.cfg", "frontend www\n  bind :80\n", ProxyKind::Haproxy),
        ("a.yaml", "static_resources:\n", ProxyKind::Envoy),
        ("a.json", "{\n  \"static_resources\": {}\n}", ProxyKind::Envoy),
    ] {
        assert_eq!(ProxyKind::guess(name.as_ref(), text), Some(kind), "{name} {text}");
    }
}

/// Words and signs that matter to one of the parsers, in any order.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[ -~\n\t]{0,6}",
        Just("server {".to_owned()),
        Just("location / { proxy_pass http://a;".to_owned()),
        Just("content_by_lua_block { ".to_owned()),
        Just("http {".to_owned()),
        Just("}".to_owned()),
        Just(";\n".to_owned()),
        Just("listen ".to_owned()),
        Just("\nfrontend f\n".to_owned()),
        Just("\nbackend f\nserver a ".to_owned()),
        Just("\ndefaults x from x\n".to_owned()),
        Just("\n.if a\n".to_owned()),
        Just("static_resources:\n listeners:\n - ".to_owned()),
        Just("# configuration file /a:\n".to_owned()),
        Just("error_page 1 ".to_owned()),
        Just("[::".to_owned()),
        Just("1-9:".to_owned()),
        Just("\\".to_owned()),
        Just("ü".to_owned()),
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_input_panics(text in prop_oneof![soup(), any::<String>()]) {
        for kind in [ProxyKind::Nginx, ProxyKind::Haproxy, ProxyKind::Envoy] {
            if let Ok(report) = check_text(&text, "file".as_ref(), &Options::of_kind(kind)) {
                let _ = underdeck_audit::text(&report, true);
                let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
                prop_assert_eq!(&json["schema"], 1);
                prop_assert_eq!(report.plan.to_string().parse(), Ok(report.plan));
            }
        }
        let _ = ProxyKind::guess("x".as_ref(), &text);
    }
}
