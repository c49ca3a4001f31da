//! curl as the client: what it stores and what it says must be the same through both twins.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use underdeck_lab::backend::UPLOAD_SEED;
use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::content;
use underdeck_lab::proxy::{Envoy, Haproxy, Nginx, Spec};
use underdeck_lab::tools::Tool;
use underdeck_tests::matrix::Lane;
use underdeck_tests::payload::{ALL_UPLOADS_TO_FILES, BOTH_WAYS, ENCRYPTED};

/// Runs curl; returns what it stored and its own figures: status, bytes down, bytes up, size of the head.
fn curl(lane: &Lane, dir: &Path, target: &str, options: &[&str]) -> (Vec<u8>, String) {
    let out = dir.join("out");
    let scheme = if lane.front.tls.is_some() { "https" } else { "http" };
    let output = Command::new(Tool::Curl.path().expect("curl"))
        .args(["--silent", "--show-error", "--insecure", "--max-time", "60", "--header", "Host: lab.test"])
        .args(["--write-out", "%{http_code} %{size_download} %{size_upload} %{size_header}"])
        .arg("--output")
        .arg(&out)
        .args(options)
        .arg(format!("{scheme}://{}{target}", lane.front.addr))
        .output()
        .expect("curl runs");
    assert!(output.status.success(), "{}: {}: {output:?}", lane.name, target);
    (std::fs::read(&out).unwrap_or_default(), String::from_utf8_lossy(&output.stdout).into_owned())
}

const WITHIN: Duration = Duration::from_secs(20);

fn upload(dir: &Path, len: usize) -> PathBuf {
    let path = dir.join(format!("upload-{len}"));
    std::fs::write(&path, content::bytes(UPLOAD_SEED, 0, len)).expect("written");
    path
}

#[test]
fn curl_sees_no_difference() {
    let dir = tempfile::tempdir().expect("a directory");
    let large = upload(dir.path(), 3_000_000);
    let large = large.to_str().expect("a name");
    for (name, spec, musts) in [
        ("nginx", Spec::Nginx(Nginx::default()), ALL_UPLOADS_TO_FILES),
        ("nginx-tls", Spec::Nginx(Nginx { tls: true, ..Nginx::large() }), ENCRYPTED),
        ("haproxy", Spec::Haproxy(Haproxy::default()), BOTH_WAYS),
        ("envoy", Spec::Envoy(Envoy::default()), BOTH_WAYS),
    ] {
        let lanes = [Lane::plain(&spec), Lane::underdeck(&spec), Lane::underdeck_tiny(&spec)];
        let mut cases: Vec<(u64, Delimit, Vec<&str>)> = Vec::new();
        for delimit in [Delimit::Length, Delimit::Chunked(10_000), Delimit::Close] {
            cases.push((0, delimit, vec![]));
            cases.push((70_000, delimit, vec![]));
            cases.push((3_000_000, delimit, vec!["--http1.0"]));
        }
        cases.push((500_000, Delimit::Length, vec!["--range", "1000-300000"]));
        cases.push((500_000, Delimit::Length, vec!["--upload-file", large]));
        cases.push((9, Delimit::Length, vec!["--upload-file", large, "--header", "Transfer-Encoding: chunked"]));
        cases.push((9, Delimit::Length, vec!["--data-binary", "@/dev/null"]));
        for (i, (len, delimit, options)) in cases.into_iter().enumerate() {
            let behaviour = Behaviour::body(len, delimit);
            let target = behaviour.target(&format!("curl-{i}"));
            let results = lanes.each_ref().map(|lane| curl(lane, dir.path(), &target, &options));
            let (from, to) = if options.contains(&"--range") { (1000, 300_001) } else { (0, len) };
            let want = content::bytes(behaviour.seed, from, (to - from) as usize);
            for (lane, (body, figures)) in lanes.iter().zip(&results) {
                let at = body.iter().zip(&want).position(|(a, b)| a != b);
                let right = body.len() == want.len() && at.is_none();
                assert!(right, "{name} {}: {target} {options:?}: {} bytes, wrong at {at:?}", lane.name, body.len());
                assert_eq!(figures, &results[0].1, "{name} {}: {target} {options:?}", lane.name);
            }
            let uploads = lanes.each_ref().map(|lane| {
                // curl may be gone before the backend has written down that it answered.
                let seen = lane.backend.wait_seen(&format!("curl-{i}"), 1, WITHIN).expect("a request");
                seen.into_iter().map(|it| (it.head.raw, it.upload, it.upload_complete)).collect::<Vec<_>>()
            });
            assert!(uploads.iter().all(|it| *it == uploads[0]), "{name}: {target} {options:?}: the backends differ");
        }
        for lane in lanes {
            assert_eq!(lane.check_counters(musts), Vec::<String>::new(), "{name}");
            lane.stop().expect("nothing is left");
        }
    }
}
