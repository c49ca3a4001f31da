//! Random exchanges through all proxies at once. `UNDERDECK_SOAK_SECONDS` (default 60), `UNDERDECK_SOAK_SEED`,
//! `UNDERDECK_SOAK_ONLY` (`nginx`, `haproxy` or `envoy`).

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use underdeck_lab::behaviour::Delimit;
use underdeck_lab::content::Rng;
use underdeck_lab::engine as counters;
use underdeck_lab::proxy::{Envoy, Haproxy, Nginx, Spec};
use underdeck_lab::tools::Tool;
use underdeck_lab::twin::{Exchange, Manner, Side, judge, observe};
use underdeck_tests::matrix::{Lane, SETTLE};
use underdeck_tests::soak::exchange;

const CLIENTS: u64 = 10;
/// An exchange that takes longer is about to be given up.
const STUCK: Duration = Duration::from_secs(20);

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// When each client began its present exchange.
type Begun = [Mutex<Option<Instant>>];

/// Waits until a client seems to be stuck, and tells where the bytes are: `ss` of that moment. None: none was.
fn watch(begun: &Begun, stop: &AtomicBool) -> Option<String> {
    while !stop.load(Ordering::Relaxed) {
        let stuck = |it: &Mutex<Option<Instant>>| it.lock().is_ok_and(|at| at.is_some_and(|at| at.elapsed() > STUCK));
        if begun.iter().any(stuck) {
            let sockets = Command::new("ss").args(["-tnmoiO", "src", "127.0.0.1"]).output().ok()?;
            let queued = |line: &&str| {
                line.split_whitespace().nth(1) != Some("0") || line.split_whitespace().nth(2) != Some("0")
            };
            return Some(
                String::from_utf8_lossy(&sockets.stdout).lines().filter(queued).collect::<Vec<_>>().join("\n"),
            );
        }
        std::thread::park_timeout(Duration::from_secs(1));
    }
    None
}

fn lanes() -> Vec<Lane> {
    let unbuffered = Nginx { buffering: false, request_buffering: false, ..Nginx::default() };
    let default = [
        Spec::Nginx(Nginx::large()),
        Spec::Nginx(Nginx { tool: Tool::NginxStable, ..Nginx::default() }),
        Spec::Haproxy(Haproxy { threads: 2, ..Haproxy::default() }),
    ];
    let tiny = [
        Spec::Nginx(Nginx::large()),
        Spec::Nginx(unbuffered),
        Spec::Nginx(Nginx { temp_files: true, ..Nginx::default() }),
        Spec::Nginx(Nginx { tls: true, ..Nginx::large() }),
        Spec::Haproxy(Haproxy { splice: true, ..Haproxy::default() }),
        Spec::Envoy(Envoy { workers: 2, ..Envoy::default() }),
    ];
    let only = std::env::var("UNDERDECK_SOAK_ONLY").unwrap_or_default();
    let wanted = |spec: &&Spec| spec.name().contains(&only);
    let default = default.iter().filter(wanted).map(Lane::underdeck);
    default.chain(tiny.iter().filter(wanted).map(Lane::underdeck_tiny)).collect()
}

/// HAProxy 2.6 by itself stops for ever when chunks of 12 bytes fill its buffer, whatever the client does.
fn not_for_haproxy(it: &mut Exchange) {
    for step in &mut it.steps {
        if step.behaviour.delimit == Delimit::Chunked(12) {
            step.behaviour.delimit = Delimit::Chunked(13);
        }
    }
}

#[test]
fn soak() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
    let seed = from_environment("UNDERDECK_SOAK_SEED").unwrap_or(now);
    let length = Duration::from_secs(from_environment("UNDERDECK_SOAK_SECONDS").unwrap_or(60));
    eprintln!("soak: UNDERDECK_SOAK_SEED={seed} for {length:?}");
    let lanes = lanes();
    let (wrong, sent, stop) = (Mutex::new(Vec::new()), AtomicU64::new(0), AtomicBool::new(false));
    let deadline = Instant::now() + length;
    let begun: Vec<Mutex<Option<Instant>>> = (0..CLIENTS).map(|_| Mutex::new(None)).collect();
    let (running, over) = (AtomicU64::new(CLIENTS), AtomicBool::new(false));
    let stuck = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&begun, &over));
        for client in 0..CLIENTS {
            let (lanes, wrong, sent, stop) = (&lanes, &wrong, &sent, &stop);
            let (begun, running, over) = (&begun[client as usize], &running, &over);
            scope.spawn(move || {
                let mut rng = Rng::new(seed.wrapping_add(client << 40));
                let mut count = 0;
                while Instant::now() < deadline && !stop.load(Ordering::Relaxed) {
                    let at = rng.below(lanes.len() as u64) as usize;
                    let mut it = exchange(format!("soak-{client}-{count}"), &mut rng);
                    // Envoy 1.40 by itself closes one in some thousand connections with pipelined requests early.
                    if lanes[at].proxy.process().name() == "envoy" && it.manner == Manner::Pipelined {
                        it.manner = Manner::Sequential;
                    }
                    if lanes[at].proxy.process().name() == "haproxy" {
                        not_for_haproxy(&mut it);
                    }
                    count += 1;
                    let lane = &lanes[at];
                    // The access logs of a run of hours are not read again and again.
                    let side = Side { proxy: None, ..lane.side() };
                    *begun.lock().expect("no client panics") = Some(Instant::now());
                    let found = match observe(&it, side) {
                        Ok(seen) => judge(&it, &seen),
                        Err(error) => vec![error.to_string()],
                    };
                    (0..it.steps.len()).for_each(|step| lane.backend.forget(&it.id(step)));
                    sent.fetch_add(1, Ordering::Relaxed);
                    if !found.is_empty() {
                        stop.store(true, Ordering::Relaxed);
                        let place = format!("lane {at} ({} {:?})", lane.name, lane.proxy.process().name());
                        let said = lane.proxy.process().stderr_tail();
                        wrong.lock().expect("no client panics").push(format!("{place}: {found:?}\n{it:?}\n{said}"));
                    }
                }
                *begun.lock().expect("no client panics") = None;
                over.store(running.fetch_sub(1, Ordering::Relaxed) == 1, Ordering::Relaxed);
            });
        }
        watcher.join().expect("the watcher does not panic")
    });
    let mut wrong = wrong.into_inner().expect("no client panics");
    for lane in lanes.iter().filter(|lane| lane.has_engine()) {
        match counters::settled(&lane.proxy, SETTLE) {
            Ok(it) if it.panics > 0 || it.resets > 0 => {
                wrong.push(format!("{}: {} panics, {} resets", lane.name, it.panics, it.resets));
            }
            Ok(_) => {}
            Err(error) => wrong.push(error.to_string()),
        }
    }
    for lane in lanes {
        if let Err(error) = lane.stop() {
            wrong.push(error.to_string());
        }
    }
    let sent = sent.into_inner();
    assert!(
        wrong.is_empty(),
        "UNDERDECK_SOAK_SEED={seed}, after {sent} exchanges:\n{}",
        wrong.join("\n") + &stuck.map_or_else(String::new, |it| format!("\nwhere an exchange was stuck:\n{it}"))
    );
    eprintln!("soak: {sent} exchanges, all right");
}
