//! The data plane against Envoy itself: the same policies, the same generated requests, one connection that all of
//! them go through. Status, upstream, path, authority, headers and response headers must agree. Needs root and Envoy.
//!
//! `UNDERDECK_TEST_SEED` repeats a run, `UNDERDECK_TEST_REQUESTS` sets how many requests each set gets.

#[allow(dead_code, reason = "the tests of the policy crate use all of it")]
#[path = "../../policy/tests/differential/client.rs"]
mod client;
#[path = "../../policy/tests/differential/generate.rs"]
mod generate;
mod support;
#[allow(dead_code, reason = "the tests of the policy crate use all of it")]
#[path = "../../policy/tests/differential/upstream.rs"]
mod upstream;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use client::{Client, Response};
use generate::Generator;
use support::{Agent, Setup, has_ipv6, inside};
use underdeck_lab::ports::Port;
use underdeck_lab::process::Process;
use underdeck_lab::tools::Tool;
use underdeck_lab::wait;
use underdeck_mesh_policy::envoy::{Bind, bootstrap};
use underdeck_mesh_policy::evaluate::{Identity, Outcome, Request, Sender, apply, evaluate};
use underdeck_mesh_policy::form::Policy;
use underdeck_mesh_policy::read::{load, read};
use upstream::Upstreams;

/// Headers that Envoy adds to every request or response, whatever the policy says, and those of one hop.
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
    "x-seen",
];

const IDENTITY: &str = "cluster.local/ns/demo/sa/client";

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}: a number")))
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

fn envoy(policy: &Policy, bind: &Bind, upstreams: &Upstreams, place: &Path) -> Process {
    let generated = bootstrap(policy, std::slice::from_ref(bind), upstreams.addresses());
    let config = place.join("envoy.json");
    std::fs::write(&config, serde_json::to_string_pretty(&generated.config).expect("JSON")).expect("ours");
    let mut command = Command::new(Tool::Envoy.path().unwrap_or_else(|error| panic!("{error}: run lab/setup.sh")));
    command.arg("-c").arg(&config).args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]);
    let mut envoy = Process::spawn("envoy", place, command).expect("Envoy starts");
    wait::until("Envoy listens", Duration::from_secs(60), || {
        assert!(envoy.exited().is_none(), "Envoy ended:\n{}", envoy.stderr_tail());
        std::net::TcpStream::connect(bind.address).ok()
    })
    .expect("Envoy listens");
    envoy
}

/// By name, the values of one name in their order.
fn sorted(headers: &[(String, String)]) -> Vec<(String, String)> {
    let mut out: Vec<_> = headers.iter().filter(|(name, _)| !ENVOYS_OWN.contains(&name.as_str())).cloned().collect();
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}

/// Everything that must agree.
fn facts(response: &Response) -> impl PartialEq + std::fmt::Debug {
    let seen = response
        .seen
        .as_ref()
        .map(|seen| (seen.cluster.clone(), seen.path.clone(), seen.authority.clone(), sorted(&seen.headers)));
    // What Envoy says of a bad request, and of a missing host, is its own.
    let body = (seen.is_none() && response.status != 400).then(|| response.body.clone());
    // To a HEAD, Envoy says that an empty answer would be chunked, which it is not if one asks with GET.
    let has_length = seen.is_none() && response.has_body;
    let length = response.headers.iter().find(|(name, _)| name == "content-length" && has_length);
    (response.status, seen, sorted(&response.headers), body, length.cloned())
}

fn end(response: &Response) -> String {
    response.seen.as_ref().map_or_else(|| response.status.to_string(), |seen| seen.cluster.clone())
}

fn compare(test: &str, file: &str, listener: &str, service: &str) {
    inside(test, |group| run(test, group, file, listener, service));
}

fn run(test: &str, group: &Path, file: &str, listener: &str, service: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/tests/policies").join(file);
    let policy = read(&load(std::slice::from_ref(&path)).expect("a fixture")).policy;
    let service: SocketAddr = service.parse().expect("an address");
    let of_endpoints = if service.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { Ipv6Addr::LOCALHOST.into() };
    let upstreams = Upstreams::start(of_endpoints, policy.clusters.iter().map(|cluster| cluster.name.clone()));
    let endpoints: Vec<_> =
        upstreams.addresses().iter().map(|(name, addresses)| (name.as_str(), addresses[0])).collect();
    let sender = Sender {
        identity: Some(Identity(IDENTITY.into())),
        labels: Some(BTreeMap::new()),
        address: "192.0.2.1".parse().expect("an address"),
    };
    let port = Port::free().expect("a port");
    let destination = (service.ip(), service.port());
    let bind = Bind { listener: listener.into(), address: port.addr(), sender, destination };
    let place = tempfile::tempdir().expect("a folder");
    let envoy = envoy(&policy, &bind, &upstreams, place.path());
    let agent = Agent::start(&Setup {
        name: test,
        group,
        policies: &std::fs::read_to_string(&path).expect("a fixture"),
        services: &[service],
        endpoints: &endpoints,
        more: &format!(
            "listener: \"{listener}\"\nsender: {{identity: {IDENTITY}, labels: {{}}, address: 192.0.2.1}}\npool: {{min: 1}}"
        ),
    });
    let of_listener = policy.listener(listener).expect("a listener");
    let seed = number("UNDERDECK_TEST_SEED", u64::from(std::process::id()) * 7919);
    let mut generator = Generator::new(of_listener, &policy, seed);
    let (mut theirs, mut ours) = (Client::new(bind.address), Client::new(service));
    let (mut differences, mut ends) = (Vec::new(), BTreeMap::<String, u64>::new());
    let requests = number("UNDERDECK_TEST_REQUESTS", 1000);
    for _ in 0..requests {
        let request = generator.request(&bind);
        let (there, here) = (theirs.exchange(&request), ours.exchange(&request));
        *ends.entry(end(&here)).or_default() += 1;
        let outcomes = evaluate(&policy, of_listener, &request).outcomes;
        let agrees = if outcomes.len() == 1 {
            facts(&there) == facts(&here)
        } else {
            // Chance decides, so both are compared with all that may happen.
            let is_possible = |of: &Response| outcomes.iter().any(|(_, outcome)| is_outcome(outcome, of, &upstreams));
            is_possible(&there) && is_possible(&here)
        };
        if !agrees {
            let text = String::from_utf8_lossy(&wire(&request)).into_owned();
            differences.push(format!("{text}Envoy: {there:?}\nhere:  {here:?}"));
        }
    }
    let status = agent.status();
    eprintln!("{file}: {requests} requests, seed {seed}: {:?} {ends:?}", status.requests);
    agent.stop();
    drop(envoy);
    let shown = differences.iter().take(6).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(differences.is_empty(), "{} of {requests} differ (seed {seed}):\n{shown}", differences.len());
    assert!(ends.len() > 1, "the requests have all the same end: {ends:?}");
    assert!(status.requests.kernel + status.requests.answered > 0, "nothing was decided in the kernel: {status:#?}");
}

/// Whether a response is, in every part, what the evaluator says.
fn is_outcome(outcome: &Outcome, response: &Response, upstreams: &Upstreams) -> bool {
    match (outcome, &response.seen) {
        (Outcome::Forward(upstream), Some(seen)) => {
            let mut headers = upstreams.response_headers();
            upstream.response_edits.iter().for_each(|edits| apply(&mut headers, edits));
            (&upstream.cluster, &upstream.path, &upstream.authority) == (&seen.cluster, &seen.path, &seen.authority)
                && sorted(&upstream.headers) == sorted(&seen.headers)
                && sorted(&headers) == sorted(&response.headers)
        }
        (Outcome::Answer(answer), None) => {
            answer.status == response.status
                && (answer.body == response.body || !response.has_body)
                && sorted(&answer.headers) == sorted(&response.headers)
        }
        _ => false,
    }
}

#[test]
fn routes_of_istio() {
    compare("routes_of_istio", "istio-routes.yaml", "mesh", "127.84.0.1:8080");
}

#[test]
fn routes_over_ipv6() {
    if has_ipv6() {
        compare("routes_over_ipv6", "istio-routes.yaml", "mesh", "[::1]:8080");
    }
}

#[test]
fn access_over_ipv6() {
    if has_ipv6() {
        compare("access_over_ipv6", "istio-access.yaml", "mesh", "[::1]:80");
    }
}

#[test]
fn edits_of_istio() {
    compare("edits_of_istio", "istio-edits.yaml", "mesh", "127.84.0.2:80");
}

#[test]
fn access_of_istio() {
    compare("access_of_istio", "istio-access.yaml", "mesh", "127.84.0.3:80");
}

#[test]
fn gateway_api() {
    compare("gateway_api", "gateway-api.yaml", "gateway demo/edge", "127.84.0.4:80");
}

#[test]
fn envoy_static() {
    compare("envoy_static", "envoy-static.yaml", "front", "127.84.0.5:8080");
}

#[test]
fn envoy_strict() {
    compare("envoy_strict", "envoy-strict.yaml", "strict", "127.84.0.6:8081");
}

#[test]
fn weights_of_istio() {
    compare("weights_of_istio", "istio-weights.yaml", "mesh", "127.84.0.7:80");
}

#[test]
fn hosts_of_istio() {
    compare("hosts_of_istio", "istio-hosts.yaml", "mesh", "127.84.0.8:80");
}

#[test]
fn gateway_of_istio() {
    compare("gateway_of_istio", "istio-gateway.yaml", "gateway demo/front", "127.84.0.9:80");
}

#[test]
fn services_of_the_gateway_api() {
    compare("services_of_the_gateway_api", "gateway-mesh.yaml", "mesh", "127.84.0.10:80");
}
