//! What is said of whole files, as snapshots: rules with their places, and the tables that come out.

use std::fmt::Write as _;
use std::path::Path;

use underdeck_mesh_policy::check::report;
use underdeck_mesh_policy::form::{Action, Forward, Listener, Route};
use underdeck_mesh_policy::read::{Reading, load, read};

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies")
}

fn reading(file: &str) -> Reading {
    let mut sources = load(&[directory().join(file)]).expect("a fixture");
    sources.iter_mut().for_each(|source| file.clone_into(&mut source.name));
    read(&sources)
}

/// The report as people read it, then hosts, routes and clusters.
fn text(reading: &Reading) -> String {
    let mut out = String::new();
    for error in &reading.errors {
        let _ = writeln!(out, "error {error}");
    }
    for rule in report(reading).rules {
        let _ = writeln!(out, "{}:{} {} {}", rule.line, rule.col, rule.placement, rule.rule);
        for reason in &rule.reasons {
            let _ = writeln!(out, "    {}:{} {}: {}", reason.line, reason.col, reason.code, reason.what);
        }
        for reason in &rule.because_of {
            let _ = writeln!(out, "    because of {}:{} {}: {}", reason.line, reason.col, reason.code, reason.what);
        }
    }
    for listener in &reading.policy.listeners {
        tables(listener, &mut out);
    }
    for cluster in &reading.policy.clusters {
        let _ = write!(
            out,
            "cluster {} {:?} {:?} {:?}",
            cluster.name, cluster.protocol, cluster.discovery, cluster.balancing
        );
        let endpoints =
            cluster.endpoints.iter().map(|e| format!(" {}:{}x{}", e.address, e.port.unwrap_or(0), e.weight));
        let labels = cluster.subset.as_ref().map(|subset| format!(" {:?}", subset.labels)).unwrap_or_default();
        let _ = writeln!(out, "{labels}{}", endpoints.collect::<String>());
    }
    for (kind, origin) in &reading.passed_over {
        let _ = writeln!(out, "passed over {kind} at {}:{}", origin.line, origin.col);
    }
    out
}

fn tables(listener: &Listener, out: &mut String) {
    let _ = writeln!(out, "listener {} {:?} {:?}", listener.name, listener.ports, listener.unmatched);
    for host in &listener.virtual_hosts {
        let _ = writeln!(out, "  {}", host.domains.join(" "));
        for route in &host.routes {
            let _ = writeln!(out, "    {}", line(route));
        }
    }
}

fn line(route: &Route) -> String {
    let what = match &route.action {
        Action::Forward(forward) => targets(forward),
        Action::Redirect(redirect) => format!("redirect {}", redirect.status),
        Action::Direct(direct) => format!("answer {}", direct.status),
        Action::Envoy => "envoy".to_owned(),
    };
    let mut parts = format!("{:?}", route.matching.path.pattern);
    if let Some(method) = &route.matching.method {
        let _ = write!(parts, " method {:?}", method.pattern);
    }
    for header in &route.matching.headers {
        let _ = write!(parts, " {}{} {:?}", if header.invert { "not " } else { "" }, header.name, header.pattern);
    }
    format!("{parts} -> {what}")
}

fn targets(forward: &Forward) -> String {
    let parts = forward.targets.iter().map(|target| format!("{}*{}", target.weight, target.cluster));
    let mut out = parts.collect::<Vec<_>>().join(" ");
    if let Some(path) = &forward.path {
        let _ = write!(out, " {path:?}");
    }
    if let Some(authority) = &forward.authority {
        let _ = write!(out, " {authority:?}");
    }
    out
}

#[test]
fn files_are_read_as_they_were() {
    let entries = std::fs::read_dir(directory()).expect("fixtures");
    let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name().into_string().expect("plain")).collect();
    names.sort();
    assert!(names.len() >= 25, "{}", names.len());
    for name in names {
        insta::assert_snapshot!(name.replace('.', "_"), text(&reading(&name)));
    }
}

#[test]
fn every_reason_has_a_file_that_triggers_it() {
    let mut met = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(directory()).expect("fixtures") {
        let reading = reading(&entry.expect("an entry").file_name().into_string().expect("plain"));
        let findings = reading.policy.rules.iter().flat_map(|rule| rule.findings.iter().chain(&rule.inherited));
        met.extend(findings.map(|finding| finding.reason.code()));
        if !reading.errors.is_empty() {
            met.insert("invalid-value");
        }
    }
    let all = underdeck_mesh_policy::form::Reason::ALL.iter().map(|reason| reason.code());
    let missing: Vec<_> = all.filter(|code| !met.contains(code)).collect();
    assert!(missing.is_empty(), "no file triggers {missing:?}");
}
