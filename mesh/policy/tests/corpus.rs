//! Policies of a directory of the tester's own (`UNDERDECK_POLICY_CORPUS`): every file is read, and the share of rules
//! for the kernel never falls below what was recorded for it (`UNDERDECK_POLICY_CORPUS_SHARE`: a file that holds the
//! best share so far, in hundredths of a percent; it is made and raised by this test).

use std::path::PathBuf;

use underdeck_mesh_policy::check::report;
use underdeck_mesh_policy::read::{load, read};

#[test]
fn the_share_of_the_kernel_only_grows() {
    let Some(directory) = std::env::var_os("UNDERDECK_POLICY_CORPUS").map(PathBuf::from) else {
        eprintln!("SKIPPED: UNDERDECK_POLICY_CORPUS names no directory of policies");
        return;
    };
    let sources = load(&[directory]).expect("readable files");
    let reading = read(&sources);
    let summary = report(&reading).summary;
    assert!(summary.rules > 0, "no rules in {} files", sources.len());
    assert_eq!(summary.rules, summary.rules_kernel + summary.rules_envoy);
    let share = summary.rules_kernel * 10_000 / summary.rules;
    eprintln!("{} files, {} errors, {summary:?}: {share} of 10000", sources.len(), reading.errors.len());
    let Some(record) = std::env::var_os("UNDERDECK_POLICY_CORPUS_SHARE").map(PathBuf::from) else {
        eprintln!("UNDERDECK_POLICY_CORPUS_SHARE names no file: nothing is recorded");
        return;
    };
    let best = std::fs::read_to_string(&record).map_or(0, |text| text.trim().parse().expect("a number"));
    assert!(share >= best, "{share} of 10000 rules for the kernel, {best} before ({})", record.display());
    std::fs::write(&record, format!("{share}\n")).expect("the record");
}
