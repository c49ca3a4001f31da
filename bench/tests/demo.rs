//! `make demo` compares what it forwards, and leaves the JSON that is promised.

use std::process::Command;

use underdeck_lab::tools;

#[test]
fn every_response_is_compared_and_large_ones_are_anchored() {
    if let Err(missing) = tools::library() {
        return eprintln!("SKIPPED: {missing}");
    }
    let folder = tempfile::tempdir().expect("a directory");
    let json = folder.path().join("demo.json");
    let done = Command::new(env!("CARGO_BIN_EXE_demo")).args(["--quick", "--json"]).arg(&json).output();
    let done = done.expect("it runs");
    let (table, said) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}\n{table}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("JSON")).expect("the documented layout");
    assert_eq!(report["schema"], 1);
    let cases = report["cases"].as_array().expect("cases");
    for body in [1u64 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20] {
        for mode in ["plain", "anchored"] {
            let is_it = |case: &&serde_json::Value| case["mode"] == mode && case["body_bytes"] == body;
            let case = cases.iter().find(is_it).unwrap_or_else(|| panic!("no {mode}, {body} in {report}"));
            assert_eq!((&case["proxy"], &case["mismatches"]), (&"nginx".into(), &0.into()), "{case}");
            assert_eq!(case["connections"], 64, "{case}");
            for figure in ["requests_per_s", "gb_per_cpu_s", "p99_ms"] {
                assert!(case[figure].as_f64().is_some_and(|it| it > 0.0), "{figure}: {case}");
            }
            let bytes = |name: &str| case[name].as_u64().unwrap_or_else(|| panic!("{name}: {case}"));
            let (copied, anchored) = (bytes("bytes_copied"), bytes("bytes_anchored"));
            match mode {
                "anchored" if body >= 1 << 20 => assert!(anchored > 9 * copied, "{case}"),
                "anchored" => assert!(anchored + copied > 0, "{case}"),
                _ => assert!(anchored == 0 && copied > 0, "{case}"),
            }
        }
    }
    let compared = said.lines().find_map(|line| line.split_once(" responses compared byte by byte, 0 wrong"));
    assert!(compared.is_some_and(|(count, _)| count.parse::<u64>().is_ok_and(|it| it > 1000)), "{said}");
}
