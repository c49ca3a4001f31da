//! The bench measures, and what it leaves is what it promises.

use std::process::Command;

use underdeck_bench::bars;
use underdeck_bench::result::{Case, Document, SCHEMA};
use underdeck_lab::tools;

#[test]
fn the_smoke_run_leaves_a_table_json_and_plots() {
    if let Err(missing) = tools::library() {
        return eprintln!("skipped: {missing}");
    }
    let folder = tempfile::tempdir().expect("a directory");
    let (json, svg) = (folder.path().join("anchor.json"), folder.path().join("sub/anchor.svg"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_underdeck-bench"));
    command.args(["anchor", "--profile", "smoke"]).arg("--json").arg(&json).arg("--svg").arg(&svg);
    let done = command.output().expect("it runs");
    let (table, said) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}\n{table}");

    let text = std::fs::read_to_string(&json).expect("JSON");
    let document: Document = serde_json::from_str(&text).expect("the documented layout");
    assert_eq!(document.schema, SCHEMA);
    assert!(!document.machine.kernel.is_empty() && document.machine.versions.contains_key("nginx"));
    for (body, backend) in [(16 << 10, "write"), (1 << 20, "write"), (1 << 20, "sendfile")] {
        let case = |mode: &str| -> &Case {
            let wanted = |case: &&Case| (&*case.mode, &*case.backend, case.body_bytes) == (mode, backend, body);
            document.cases.iter().find(wanted).unwrap_or_else(|| panic!("no {mode}, {body} bytes, {backend} in {text}"))
        };
        for mode in ["plain", "underdeck", "relay", "direct"] {
            assert_eq!((case(mode).errors, case(mode).resets), (0, 0), "{mode} {body}");
            assert!(case(mode).requests_per_s.is_some_and(|it| it.median > 0.0), "{mode} {body}");
        }
        assert!(case("underdeck").ratio_to_plain.is_some() && case("underdeck").ratio_to_relay.is_some());
        assert!(case("plain").gb_per_cpu_s.is_some() && case("direct").gb_per_cpu_s.is_none());
        let copied = case("underdeck").bytes_copied_per_request.expect("counted").median;
        let anchored = case("underdeck").bytes_anchored_per_request.expect("counted").median;
        // A window ends in the middle of messages: their bytes are counted, they are not.
        assert!(copied + anchored > body as f64 * 0.5, "{body}: {copied} copied, {anchored} anchored");
        assert!(body < 1 << 20 || anchored > copied, "{body}: {copied} copied, {anchored} anchored");
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
