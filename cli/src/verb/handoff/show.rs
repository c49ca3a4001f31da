//! Reports for people.

use std::fmt::Write;

use underdeck_handoff_serve::Report;

/// Where connections are, and the backends.
pub fn status(report: &Report) -> String {
    let mut text = String::new();
    let seconds = report.uptime_ms / 1000;
    let _ = writeln!(text, "{} (pid {}), up {seconds} s, policy {}", report.role, report.pid, report.policy);
    let connections = &report.connections;
    let _ = writeln!(text, "connections: {} here, {} with others", connections.here, connections.away);
    let _ = writeln!(text, "rules: {} of {} flows (tc)", report.rules.tc, report.rules.capacity);
    for backend in &report.backends {
        let state = match (backend.alive, backend.backed_off) {
            (false, _) => "dead",
            (true, true) => "alive, but handoffs to it have failed: it rests",
            (true, false) => "alive",
        };
        let _ = writeln!(text, "backend {}: {state}, {} connections", backend.name, backend.load);
    }
    text
}

/// All counters.
pub fn stat(report: &Report) -> String {
    let mut text = String::new();
    let handoffs = &report.handoffs;
    let rows = [
        ("requests", report.requests),
        ("bytes answered directly", report.direct_bytes),
        ("bytes relayed", report.relayed_bytes),
        ("handoffs out", handoffs.out),
        ("handoffs back", handoffs.back),
        ("connections reset", report.reset),
    ];
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<24} {value:>14}");
    }
    for (reason, count) in &handoffs.aborted {
        let _ = writeln!(text, "{:<24} {count:>14}", format!("aborted: {reason}"));
    }
    for times in report.times.iter().filter(|times| times.count > 0) {
        let _ = writeln!(text, "{:<24} p50 {:>8.1} us, p99 {:>8.1} us", times.name, times.p50_us, times.p99_us);
    }
    text
}
