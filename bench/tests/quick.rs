//! The bench measures, and what it leaves is what it promises.

use std::process::Command;

use underdeck_bench::bars;
use underdeck_bench::result::{Case, Document, SCHEMA};
use underdeck_lab::tools;

#[test]
fn the_quick_run_visits_every_axis_and_leaves_a_table_json_and_plots() {
    if let Err(missing) = tools::library() {
        return eprintln!("skipped: {missing}");
    }
    let folder = tempfile::tempdir().expect("a directory");
    let (json, svg) = (folder.path().join("anchor.json"), folder.path().join("sub/anchor.svg"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_underdeck-bench"));
    // Fewer rounds than a person would want.
    command.args(["anchor", "--quick", "--pairs", "2"]).arg("--json").arg(&json).arg("--svg").arg(&svg);
    let done = command.output().expect("it runs");
    let (table, said) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}\n{table}");

    let text = std::fs::read_to_string(&json).expect("JSON");
    let document: Document = serde_json::from_str(&text).expect("the documented layout");
    assert_eq!(document.schema, SCHEMA);
    assert!(!document.machine.kernel.is_empty() && document.machine.versions.contains_key("nginx"));
    for case in &document.cases {
        assert_eq!((case.errors, case.resets), (0, 0), "{case:?}");
        assert!(case.requests_per_s.is_some_and(|it| it.median > 0.0), "{case:?}");
        assert_eq!(case.gb_per_cpu_s.is_some(), case.mode != "direct", "{case:?}");
    }
    type Sees = fn(&Case) -> bool;
    let axes: [(&str, Sees); 10] = [
        ("nginx", |case| case.proxy == "nginx"),
        ("haproxy-64k", |case| case.proxy == "haproxy-64k"),
        ("envoy", |case| case.proxy == "envoy"),
        ("4 KiB", |case| case.body_bytes == 4 << 10),
        ("sendfile", |case| case.backend == "sendfile"),
        ("uploads", |case| case.direction == "upload"),
        ("chunked", |case| case.framing == "chunked"),
        ("veth", |case| case.network == "veth"),
        ("veth-none", |case| case.network == "veth-none"),
        ("an open loop", |case| case.p999_ms.is_some()),
    ];
    for (axis, sees) in axes {
        assert!(document.cases.iter().any(|case| case.mode == "underdeck" && sees(case)), "{axis}");
    }
    assert!(document.cases.iter().any(|case| case.mode == "splice" && case.system_calls.is_some()));
    for case in document.cases.iter().filter(|case| case.mode == "underdeck") {
        let copied = case.bytes_copied_per_request.expect("counted").median;
        let anchored = case.bytes_anchored_per_request.expect("counted").median;
        // A window ends in the middle of messages: their bytes are counted, they are not.
        assert!(copied + anchored > case.body_bytes as f64 * 0.5, "{copied} copied, {anchored} anchored: {case:?}");
        // Chunks of 64 KiB are below what is anchored.
        let is_anchored = case.body_bytes >= 1 << 20 && case.framing == "length";
        assert!(!is_anchored || anchored > copied, "{copied} copied, {anchored} anchored: {case:?}");
        assert!(case.ratio_to_plain.is_some() && case.ratio_to_relay.is_some(), "{case:?}");
    }
    let bars = bars::of(&document);
    for backend in ["write", "sendfile"] {
        let case = format!("nginx-64k, 1 MiB, {backend}");
        assert!(bars.iter().any(|bar| bar.case == case && bar.asked == "at least 3 times plain"), "{bars:?}");
        assert!(table.contains(&format!("{case}, 64 connections")), "{table}");
    }
    let plots = std::fs::read_to_string(&svg).expect("plots");
    assert!(plots.starts_with("<svg") && plots.contains("nginx-64k underdeck"), "{plots}");
}

#[test]
fn nonsense_is_refused_before_anything_starts() {
    for wrong in [
        &["anchor", "--body", "1x"][..],
        &["anchor", "--profile", "none"],
        &["anchor", "--pairs", "0"],
        &["anchor", "--backend", "read"],
        &[],
    ] {
        let done = Command::new(env!("CARGO_BIN_EXE_underdeck-bench")).args(wrong).output().expect("it runs");
        assert_eq!(done.status.code(), Some(2), "{wrong:?}");
    }
}
