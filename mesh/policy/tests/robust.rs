//! Nothing that stands in a file makes the reader or the evaluator fail.

use std::path::Path;

use proptest::prelude::*;
use underdeck_mesh_policy::check::report;
use underdeck_mesh_policy::evaluate::{evaluate, parse};
use underdeck_mesh_policy::read::{Source, load, read};

fn fixtures() -> Vec<Source> {
    load(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies")]).expect("fixtures")
}

fn survive(text: String) {
    let reading = read(&[Source { name: "made-up.yaml".into(), text }]);
    let report = report(&reading);
    assert_eq!(report.summary.rules, report.summary.rules_kernel + report.summary.rules_envoy);
    let request = parse("GET /api/v1/x?y host=shop x-user=jason").expect("a request");
    for listener in &reading.policy.listeners {
        let decision = evaluate(&reading.policy, listener, &request);
        assert!(!decision.outcomes.is_empty() || reading.policy.rules.iter().any(|rule| !rule.findings.is_empty()));
    }
    for error in &reading.errors {
        assert!(error.origin.line >= 1 && error.origin.col >= 1, "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_are_survived(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
                                  len in 0_usize..40, with in "[ -~\n]{0,12}") {
        let files = fixtures();
        let mut bytes = which.get(&files).text.clone().into_bytes();
        if !bytes.is_empty() {
            let start = at.index(bytes.len());
            let end = (start + len).min(bytes.len());
            bytes.splice(start..end, with.bytes());
        }
        survive(String::from_utf8_lossy(&bytes).into_owned());
    }

    #[test]
    fn noise_is_survived(text in "\\PC{0,200}") {
        survive(text);
    }
}
