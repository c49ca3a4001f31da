//! The evaluator against Envoy itself: for each set of policies, thousands of generated requests go through an Envoy
//! that runs the configuration made from the same policies. Status, upstream, path, authority, headers and answers
//! must agree.
//!
//! Needs Envoy from `lab/setup.sh`; without it the test fails and says so. `UNDERDECK_TEST_SEED` repeats a run,
//! `UNDERDECK_TEST_REQUESTS` sets how many requests each set gets.

#[path = "differential/client.rs"]
mod client;
#[path = "differential/generate.rs"]
mod generate;
#[path = "differential/upstream.rs"]
mod upstream;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use client::{Client, Response};
use generate::Generator;
use underdeck_lab::ports::Port;
use underdeck_lab::process::Process;
use underdeck_lab::tools::Tool;
use underdeck_lab::wait;
use underdeck_mesh_policy::envoy::{Bind, bootstrap};
use underdeck_mesh_policy::evaluate::{Answer, Identity, Outcome, Request, Sender, Upstream, apply, evaluate};
use underdeck_mesh_policy::form::Policy;
use underdeck_mesh_policy::read::{load, read};
use upstream::Upstreams;

/// Headers that Envoy adds to every request or response, whatever the policy says.
const ENVOYS_OWN: &[&str] = &[
    "host",
    "x-forwarded-proto",
    "x-request-id",
    "content-length",
    "transfer-encoding",
    "date",
    "server",
    "connection",
    "x-envoy-internal",
    "x-envoy-original-path",
    "x-envoy-original-host",
    // Of the tests.
    "x-seen",
];

struct Setup {
    policy: Policy,
    binds: Vec<Bind>,
    upstreams: Upstreams,
    envoy: Process,
    _ports: Vec<Port>,
    _place: tempfile::TempDir,
}

fn senders() -> Vec<(Option<&'static str>, &'static str)> {
    vec![
        (Some("cluster.local/ns/demo/sa/client"), "192.0.2.1"),
        (Some("cluster.local/ns/other/sa/robot"), "10.1.2.3"),
        (None, "127.0.0.1"),
    ]
}

fn setup(file: &str, listener: &str, port: u16) -> Setup {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies").join(file);
    let reading = read(&load(&[path]).expect("a fixture"));
    assert!(reading.errors.is_empty(), "{:?}", reading.errors);
    let policy = reading.policy;
    let upstreams =
        Upstreams::start(Ipv4Addr::LOCALHOST.into(), policy.clusters.iter().map(|cluster| cluster.name.clone()));
    let mut ports = Vec::new();
    let mut binds = Vec::new();
    for (identity, address) in senders() {
        let held = Port::free().expect("a port");
        let sender = Sender {
            identity: identity.map(|identity| Identity(identity.to_owned())),
            labels: Some(BTreeMap::new()),
            address: address.parse().expect("an address"),
        };
        let destination = (IpAddr::from([192, 0, 2, 80]), port);
        binds.push(Bind { listener: listener.to_owned(), address: held.addr(), sender, destination });
        ports.push(held);
    }
    let generated = bootstrap(&policy, &binds, upstreams.addresses());
    let place = tempfile::tempdir().expect("a directory");
    let config = place.path().join("envoy.json");
    std::fs::write(&config, serde_json::to_string_pretty(&generated.config).expect("JSON")).expect("ours");
    let mut command = Command::new(Tool::Envoy.path().unwrap_or_else(|error| panic!("{error}: run lab/setup.sh")));
    command.arg("-c").arg(&config).args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]);
    let mut envoy = Process::spawn("envoy", place.path(), command).expect("Envoy starts");
    for bind in &binds {
        let connects = || {
            assert!(envoy.exited().is_none(), "Envoy ended:\n{}", envoy.stderr_tail());
            std::net::TcpStream::connect(bind.address).ok()
        };
        wait::until("Envoy listens", Duration::from_secs(60), connects).expect("Envoy listens");
    }
    Setup { policy, binds, upstreams, envoy, _ports: ports, _place: place }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}: a number")))
}

fn compare(file: &str, listener: &str, port: u16) {
    let setup = setup(file, listener, port);
    let listener = setup.policy.listener(listener).expect("a listener").clone();
    let seed = number("UNDERDECK_TEST_SEED", u64::from(std::process::id()) * 7919);
    let mut generator = Generator::new(&listener, &setup.policy, seed);
    let mut clients: Vec<_> = setup.binds.iter().map(|bind| Client::new(bind.address)).collect();
    let (mut differences, mut kinds) = (Vec::new(), BTreeMap::<String, u64>::new());
    let requests = number("UNDERDECK_TEST_REQUESTS", 1500);
    for _ in 0..requests {
        let which = generator.below(setup.binds.len());
        let bind = &setup.binds[which];
        let request = generator.request(bind);
        let response = clients[which].exchange(&request);
        let decision = evaluate(&setup.policy, &listener, &request);
        *kinds.entry(kind(&response)).or_default() += 1;
        let agrees = |(_, outcome): &(u64, Outcome)| difference(outcome, &response, &setup.upstreams).is_none();
        if !decision.outcomes.iter().any(agrees) {
            let why: Vec<_> =
                decision.outcomes.iter().map(|(_, o)| difference(o, &response, &setup.upstreams)).collect();
            differences
                .push(format!("{request:?}\n  {why:?}\n  Envoy: {response:?}\n  decided: {:?}", decision.outcomes));
        }
    }
    drop(setup.envoy);
    eprintln!("{file}: {requests} requests, seed {seed}: {kinds:?}");
    assert!(kinds.len() > 1, "the requests have all the same end: {kinds:?}");
    let shown = differences.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {requests} differ (seed {seed}):\n{shown}", differences.len());
}

fn kind(response: &Response) -> String {
    response.seen.as_ref().map_or_else(|| response.status.to_string(), |seen| seen.cluster.clone())
}

/// What is not the same; None: all is.
fn difference(outcome: &Outcome, response: &Response, upstreams: &Upstreams) -> Option<String> {
    match outcome {
        Outcome::Forward(upstream) => forwarded(upstream, response, upstreams),
        Outcome::Answer(answer) => answered(answer, response),
        Outcome::OriginalDestination => (response.status != 404).then(|| "not passed on".into()),
        Outcome::Unknown { what } => Some(format!("unknown: {what}")),
    }
}

fn forwarded(upstream: &Upstream, response: &Response, upstreams: &Upstreams) -> Option<String> {
    let Some(seen) = &response.seen else { return Some(format!("answered with {}", response.status)) };
    let here = (&upstream.cluster, &upstream.path, &upstream.authority);
    let there = (&seen.cluster, &seen.path, &seen.authority);
    if here != there {
        return Some(format!("here {here:?}, there {there:?}"));
    }
    let (here, there) = (sorted(&upstream.headers), sorted(&seen.headers));
    if here != there {
        return Some(format!("headers: here {here:?}, there {there:?}"));
    }
    let mut headers = upstreams.response_headers();
    for edits in &upstream.response_edits {
        apply(&mut headers, edits);
    }
    let (here, there) = (sorted(&headers), sorted(&response.headers));
    (here != there).then(|| format!("response headers: here {here:?}, there {there:?}"))
}

fn answered(answer: &Answer, response: &Response) -> Option<String> {
    if let Some(seen) = &response.seen {
        return Some(format!("forwarded to {}", seen.cluster));
    }
    if answer.status != response.status {
        return Some(format!("status: here {}, there {}", answer.status, response.status));
    }
    // What Envoy says of a bad request is its own.
    if answer.status == 400 {
        return None;
    }
    if answer.body != response.body && response.has_body {
        return Some(format!("body: here {:?}, there {:?}", answer.body, response.body));
    }
    let (here, there) = (sorted(&answer.headers), sorted(&response.headers));
    (here != there).then(|| format!("headers: here {here:?}, there {there:?}"))
}

/// By name, the values of one name in their order.
fn sorted(headers: &[(String, String)]) -> Vec<(String, String)> {
    let mut out: Vec<_> = headers.iter().filter(|(name, _)| !ENVOYS_OWN.contains(&name.as_str())).cloned().collect();
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}

/// A request with its bytes on the wire.
fn wire(request: &Request) -> Vec<u8> {
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method, request.target);
    if !request.authority.is_empty() {
        text += &format!("Host: {}\r\n", request.authority);
    }
    for (name, value) in &request.headers {
        text += &format!("{name}: {value}\r\n");
    }
    (text + "\r\n").into_bytes()
}

#[test]
fn routes_of_istio() {
    compare("istio-routes.yaml", "mesh", 8080);
}

#[test]
fn edits_of_istio() {
    compare("istio-edits.yaml", "mesh", 80);
}

#[test]
fn access_of_istio() {
    compare("istio-access.yaml", "mesh", 80);
}

#[test]
fn gateway_api() {
    compare("gateway-api.yaml", "gateway demo/edge", 80);
}

#[test]
fn envoy_static() {
    compare("envoy-static.yaml", "front", 8080);
}

#[test]
fn envoy_strict() {
    compare("envoy-strict.yaml", "strict", 8081);
}

#[test]
fn weights_of_istio() {
    compare("istio-weights.yaml", "mesh", 80);
}

#[test]
fn hosts_of_istio() {
    compare("istio-hosts.yaml", "mesh", 80);
}

#[test]
fn gateway_of_istio() {
    compare("istio-gateway.yaml", "gateway demo/front", 80);
}

#[test]
fn services_of_the_gateway_api() {
    compare("gateway-mesh.yaml", "mesh", 80);
}
