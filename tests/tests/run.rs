//! `underdeck run` with the real library: an ordinary user starts real proxies by it.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::process::Signal;
use serde_json::Value;
use underdeck_lab::backend::Backend;
use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::{Ending, Front, Pace};
use underdeck_lab::engine::Reason;
use underdeck_lab::ports::Port;
use underdeck_lab::process::Process;
use underdeck_lab::tools::Tool;
use underdeck_lab::twin::{Exchange, Observation, Side, Step, judge, observe};
use underdeck_lab::{engine, proc, wait};
use underdeck_tests::user::{Daemon, Home, WITHIN, fetch, opens, worker};

const BODY: u64 = 1_000_000;
const CLIENTS: usize = 8;

fn port() -> (Port, Front) {
    let port = Port::free().expect("a port");
    let front = Front::from(port.addr());
    (port, front)
}

/// A server of nginx in front of `backend`.
fn server(listen: SocketAddr, backend: SocketAddr, more: &str) -> String {
    format!("server {{ listen {listen}; {more}\nlocation / {{ proxy_pass http://{backend}; }} }}\n")
}

/// A process of the proxy forwards without copying, and its user sees that: nearly all of `bytes` were anchored.
fn is_accelerated(home: &Home, pid: u32, bytes: u64) {
    let counters = engine::of_pid(pid).expect("the library is in it");
    assert!(engine::anchored(&counters) >= bytes / 10 * 9, "{counters:?}");
    assert_eq!((counters.resets, counters.panics), (0, 0));
    let all: Value = serde_json::from_str(&home.said(&["stat", "--json"])).expect("JSON");
    let processes = all["processes"].as_array().expect("a list");
    let seen = processes.iter().find(|it| it["pid"] == pid).unwrap_or_else(|| panic!("not in {all}"));
    let anchored = seen["roles"]["connected"]["bytes_anchored"].as_u64().expect("a number");
    assert!(anchored >= bytes / 10 * 9, "{seen}");
}

#[test]
fn nginx_in_the_foreground_and_one_server_left_out() {
    let home = Home::new();
    let backends = [Backend::start().expect("a backend"), Backend::start().expect("a backend")];
    let [(near, front), (far, rewriting)] = [port(), port()];
    // Nothing in a body looks like that.
    let rewrites = "sub_filter 'not in it' 'nor this'; sub_filter_types *; sub_filter_last_modified on;";
    let servers = server(near.addr(), backends[0].addr(), "") + &server(far.addr(), backends[1].addr(), rewrites);
    let mut nginx = home.nginx("", &servers);
    opens(far.addr());
    let worker = worker(nginx.pid(), &[]);
    for i in 0..4 {
        fetch(&format!("untouched-{i}"), &front, &backends[0], BODY);
        fetch(&format!("rewritten-{i}"), &rewriting, &backends[1], BODY);
    }
    is_accelerated(&home, worker, 4 * BODY);
    let counters = engine::of_pid(worker).expect("the library is in it");
    let connected = counters.role(engine::Role::Connected);
    assert!(connected.bytes_anchored <= 4 * BODY, "payload that is looked at was anchored: {connected:?}");
    assert_eq!(connected.copied_by_reason[Reason::DirectionOff as usize], 4 * BODY, "{connected:?}");
    assert_eq!(connected.bytes_materialised, 0, "{connected:?}");
    let said = nginx.stderr_tail();
    assert!(said.contains("sub_filter") && said.contains("nginx.conf:"), "nobody was told: {said}");
    // It is the program itself that the user has started: the signal is its own, and so is the code.
    nginx.signal(Signal::QUIT).expect("signalled");
    let code = wait::until("nginx ends", WITHIN, || nginx.exited()).expect("nginx ends");
    assert_eq!(code.code(), Some(0), "{}", nginx.stderr_tail());
    assert!(!proc::alive(worker));
}

#[test]
fn nginx_goes_into_the_background() {
    let home = Home::new();
    let backend = Backend::start().expect("a backend");
    let (port, front) = port();
    let command = home.nginx_command("daemon on;", &server(port.addr(), backend.addr(), ""));
    let nginx = Daemon::start(command, &home.path().join("nginx.pid"));
    let worker = worker(nginx.pid(), &[]);
    fetch("background", &front, &backend, BODY);
    is_accelerated(&home, worker, BODY);
    nginx.stop();
}

#[test]
fn haproxy_goes_into_the_background() {
    let home = Home::new();
    let backend = Backend::start().expect("a backend");
    let (port, front) = port();
    let pid_file = home.path().join("haproxy.pid");
    let command = home.haproxy_command(&["-D", "-p", "haproxy.pid"], port.addr(), backend.addr());
    let haproxy = Daemon::start(command, &pid_file);
    fetch("background", &front, &backend, BODY);
    is_accelerated(&home, haproxy.pid(), BODY);
    haproxy.stop();
}

/// A download that takes about a second: the backend pauses.
fn download(name: String) -> Exchange {
    let splits = (1..20).map(|k| k * BODY / 20).collect();
    let behaviour = Behaviour { splits, pause_us: 50_000, ..Behaviour::body(BODY, Delimit::Length) };
    let pace = Pace { deadline: WITHIN, ..Pace::default() };
    Exchange::new(name, vec![Step::get(behaviour)]).pace(pace).faulty()
}

fn is_whole(it: &Observation) -> bool {
    it.replies.first().is_some_and(|reply| reply.ending == Ending::Complete && reply.body.len == BODY)
}

/// Ends a loop, in a panic too: a scope waits for its threads.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Downloads, long ones and one short one after the other, while `replace` brings the process that takes the place of `old`
/// into being, until that one is accelerated. All of them must come to their end.
fn under_load(front: &Front, backend: &Backend, old: u32, replace: impl FnOnce() -> u32) {
    let (side, stops) = (Side { proxy: None, front, backend }, AtomicBool::new(false));
    let fetch_it = |exchange: Exchange| {
        let seen = observe(&exchange, side).expect("a broken exchange is no error");
        assert_eq!(judge(&exchange, &seen), Vec::<String>::new());
        is_whole(&seen)
    };
    let (long, short) = std::thread::scope(|scope| {
        let long: Vec<_> = (0..CLIENTS).map(|i| scope.spawn(move || fetch_it(download(format!("long-{i}"))))).collect();
        // New ones all the while, so that some meet each moment of the replacement.
        let stops = &stops;
        let short = scope.spawn(move || {
            let mut all = Vec::new();
            while !stops.load(Relaxed) {
                let behaviour = Behaviour::body(BODY, Delimit::Length);
                let one = Exchange::new(format!("short-{}", all.len()), vec![Step::get(behaviour)]).faulty();
                all.push(fetch_it(one));
            }
            all
        });
        let ends = Stops(stops);
        let busy = || (proc::census(old).sockets >= 2 * CLIENTS).then_some(());
        wait::until("all downloads run", WITHIN, busy).expect("all downloads run");
        let fresh = replace();
        let serves = || engine::of_pid(fresh).ok().filter(|it| engine::anchored(it) >= BODY);
        wait::until("the new process is accelerated", WITHIN, serves).expect("the new process is accelerated");
        drop(ends);
        let long: Vec<bool> = long.into_iter().map(|it| it.join().expect("right bytes")).collect();
        (long, short.join().expect("right bytes"))
    });
    assert_eq!(long, [true; CLIENTS], "downloads that had begun come to their end");
    assert!(short.iter().all(|whole| *whole), "a request met a moment without a listener: {short:?}");
    let gone = || (!proc::alive(old)).then_some(());
    wait::until("the old process ends", WITHIN, gone).expect("the old process ends");
}

/// The master starts itself again by execvp, gets the listeners of its old worker from it, and starts a new one.
#[test]
fn haproxy_master_reloads_under_load() {
    let home = Home::new();
    let backend = Backend::start().expect("a backend");
    let (port, front) = port();
    let command = home.haproxy_command(&["-Ws"], port.addr(), backend.addr());
    let master = Process::spawn("haproxy", home.path(), command).expect("it starts");
    opens(port.addr());
    let old = worker(master.pid(), &[]);
    // HAProxy loses a signal that comes before its master waits for events.
    let ready = || (master.stderr_tail().contains("Loading success") && proc::sleeps(master.pid())).then_some(());
    wait::until("the master waits", WITHIN, ready).expect("the master waits");
    under_load(&front, &backend, old, || {
        master.signal(Signal::USR2).expect("signalled");
        worker(master.pid(), &[old])
    });
    is_accelerated(&home, worker(master.pid(), &[old]), BODY);
    master.stop().expect("nothing is left");
}

/// What Envoy's instances share stays in `/dev/shm` when they are gone.
struct Instance(u32);

impl Drop for Instance {
    fn drop(&mut self) {
        // Where Envoy did not get that far, there is none.
        let _ = std::fs::remove_file(format!("/dev/shm/envoy_shared_memory_{}", self.0 * 10));
    }
}

/// The new Envoy gets the listeners of the old one from it, and tells it to end.
#[test]
fn envoy_restarts_hot_under_load() {
    let home = Home::new();
    let backend = Backend::start().expect("a backend");
    let (port, front) = port();
    let instance = Instance(std::process::id());
    let start = |epoch: u32| {
        let command = home.envoy_command(instance.0, epoch, port.addr(), backend.addr());
        Process::spawn(&format!("envoy-{epoch}"), home.path(), command).expect("it starts")
    };
    let mut old = start(0);
    opens(port.addr());
    fetch("first", &front, &backend, BODY);
    is_accelerated(&home, old.pid(), BODY);
    let mut new = None;
    under_load(&front, &backend, old.pid(), || new.insert(start(1)).pid());
    assert_eq!(old.exited().and_then(|status| status.code()), Some(0), "{}", old.stderr_tail());
    let new = new.expect("it was started");
    fetch("last", &front, &backend, BODY);
    is_accelerated(&home, new.pid(), BODY);
    new.stop().expect("nothing is left");
}

#[test]
fn what_cannot_be_accelerated_is_refused_and_codes_come_through() {
    let home = Home::new();
    let output = |command: &mut Command| -> (Option<i32>, String) {
        let Output { status, stderr, .. } = command.output().expect("it starts");
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    };
    let program = home.tool(Tool::NginxStatic);
    let (code, said) = output(home.underdeck(&["run", "--"]).arg(&program).arg("-v"));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("not started: {}: statically linked", program.display())), "{said}");
    // A shell that exits with 7 if the library is in it.
    let script = "grep -q libunderdeck_anchor /proc/$$/maps && exit 7";
    assert_eq!(output(home.underdeck(&["run", "--", "sh", "-c"]).arg(script)), (Some(7), String::new()));
    let nginx = Tool::Nginx.path().expect("nginx");
    let broken = home.write("broken.conf", "events {}\nhttp { no_such_directive; }\n");
    let (code, said) = output(home.underdeck(&["run", "--"]).arg(nginx).arg("-t").arg("-c").arg(broken));
    assert!(code == Some(1) && said.contains("unknown directive"), "{code:?}: {said}");
}

#[test]
fn the_user_of_the_tests_has_no_rights() {
    let id = Home::new().command("id").arg("-u").output().expect("it starts").stdout;
    let expected = if rustix::process::geteuid().is_root() { 65_534 } else { rustix::process::geteuid().as_raw() };
    assert_eq!(String::from_utf8_lossy(&id).trim(), expected.to_string());
}
