//! `demo-mesh` compares every byte, says what went through the kernel, and leaves nothing.

use std::process::Command;

use serde_json::Value;
use underdeck_lab::tools::{self, Tool};

#[test]
fn a_short_demo_of_the_mesh_is_right_and_leaves_nothing() {
    if let Err(missing) = tools::underdeck().and(Tool::Envoy.path()) {
        return eprintln!("skipped: {missing}");
    }
    // SAFETY: it only asks.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: control groups and eBPF need root");
    }
    let folder = tempfile::tempdir().expect("a directory");
    let json = folder.path().join("demo-mesh.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo-mesh"));
    command.args(["--smoke", "--json"]).arg(&json);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("it starts");
    let pid = child.id();
    let done = child.wait_with_output().expect("it ends");
    let (table, said) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}\n{table}");

    let text = std::fs::read_to_string(&json).expect("JSON");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((report["schema"].as_u64(), report["wrong"].as_u64()), (Some(1), Some(0)), "{text}");
    let planes = report["planes"].as_array().expect("planes");
    let names: Vec<_> = planes.iter().filter_map(|plane| plane["name"].as_str()).collect();
    assert_eq!(names, ["envoy", "envoy-l4", "underdeck"]);
    for plane in planes {
        let rates = plane["rates"].as_array().expect("rates");
        assert!(!rates.is_empty() && rates.iter().all(|rate| rate["p50_us"].is_number() && rate["p99_us"].is_number()));
        assert!(plane["max_rps"].is_number() && plane["cpu_us_per_request"].is_number(), "{plane}");
        let share = plane["kernel_share"].as_f64().expect("a share");
        if plane["name"] == "underdeck" { assert!(share > 0.5, "{plane}") } else { assert!(share == 0.0, "{plane}") }
    }
    assert!(!report["hops"].as_array().expect("hops").is_empty());
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu"];
    let groups = roots.iter().flat_map(std::fs::read_dir).flatten();
    let left: Vec<_> = groups.flatten().map(|entry| entry.file_name()).collect();
    let left: Vec<_> = left.iter().filter(|name| name.to_string_lossy().contains(&format!("-{pid}-"))).collect();
    assert!(left.is_empty(), "{left:?}");
}
