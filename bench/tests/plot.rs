//! The plots are drawn from whatever was measured, a disturbed run included.

use underdeck_bench::plot;
use underdeck_bench::result::Document;

/// A document with `plain` and `underdeck` at two sizes; the figures are in the JSON as the bench writes it.
fn document(cases: &str) -> Document {
    let machine = r#"{"cpu":"x","cpus":2,"last_level_cache":"","memory_bytes":0,"kernel":"Linux 6","virtual_machine":true,
        "sysctl":{},"versions":{},"library":""}"#;
    let text = format!(
        r#"{{"schema":1,"command":"","pairs":5,"window_s":1.0,"working_set_bytes":0,"machine":{machine},"cases":[{cases}]}}"#
    );
    serde_json::from_str(&text).expect("the layout")
}

fn case(mode: &str, backend: &str, body: u64, median: f64, max: f64) -> String {
    let figure = format!(r#"{{"median":{median},"min":0.0,"max":{max}}}"#);
    format!(
        r#"{{"proxy":"nginx","mode":"{mode}","body_bytes":{body},"connections":64,"network":"loopback",
        "direction":"response","backend":"{backend}","framing":"length","command":null,"gb_per_cpu_s":{figure},"cpu_us_per_request":{figure},
        "closed_p99_ms":{figure},"bytes_copied_per_request":{figure},"resets":0,"errors":0}}"#
    )
}

#[test]
fn plots_show_every_series_and_stand_an_outlier() {
    let cases = [("plain", 1024, 1.0), ("plain", 1 << 20, 2.0), ("underdeck", 1024, 1.0), ("underdeck", 1 << 20, 6.0)];
    let cases: Vec<String> =
        cases.iter().map(|(mode, body, median)| case(mode, "write", *body, *median, 1e6)).collect();
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("plots.svg");
    plot::save(&document(&cases.join(",")), &path).expect("drawn");
    let text = std::fs::read_to_string(&path).expect("written");
    for word in ["nginx plain", "nginx underdeck", "1 KiB", "1 MiB", "p99 at saturation"] {
        assert!(text.contains(word), "{word}");
    }
    // With the outlier as the height of the plot its axis would go there.
    assert!(!text.contains("1000000"), "{text}");
}

#[test]
fn both_backends_are_told_apart_and_named_once() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("plots.svg");
    let drawn = |backends: &[&str]| {
        let at = |backend: &&str| [18, 20].map(|power| case("underdeck", backend, 1 << power, 3.0, 4.0)).join(",");
        let cases: Vec<String> = backends.iter().map(at).collect();
        plot::save(&document(&cases.join(",")), &path).expect("drawn");
        let text = std::fs::read_to_string(&path).expect("written");
        (text.matches("nginx underdeck").count(), text.matches("<circle").count())
    };
    let one = drawn(&["write"]);
    assert!(one.0 > 0 && one.1 > 0, "{one:?}");
    assert_eq!(drawn(&["sendfile"]), one, "alone it has a name, too");
    assert_eq!(drawn(&["write", "sendfile"]), (one.0, one.1 * 2));
}

#[test]
fn nothing_measured_is_said() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("plots.svg");
    plot::save(&document(""), &path).expect("drawn");
    assert!(std::fs::read_to_string(&path).expect("written").contains("not measured"));
}
