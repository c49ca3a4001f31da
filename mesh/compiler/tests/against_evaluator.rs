//! The program in the kernel against the evaluator, which agrees with Envoy: for each set of policies, thousands of
//! requests at the borders of its literals. What the kernel decides must be what the evaluator allows; what it leaves
//! to Envoy is counted. Needs root.
//!
//! `UNDERDECK_TEST_SEED` repeats a run, `UNDERDECK_TEST_REQUESTS` sets how many requests each set gets.

#[path = "../../policy/tests/differential/generate.rs"]
mod generate;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use generate::Generator;
use underdeck_mesh_compiler::{Cache, Node, Program, Trial, Tried, abi, build, generate as make};
use underdeck_mesh_policy::envoy::Bind;
use underdeck_mesh_policy::evaluate::{Identity, Outcome, Request, Sender, Upstream, evaluate};
use underdeck_mesh_policy::read::{load, read};

/// Reasons of the parser for requests that the generator makes on purpose.
const EXPECTED: &[u32] = &[abi::UD_REASON_POLICY, abi::UD_REASON_TARGET, abi::UD_REASON_PATH, abi::UD_REASON_DUPLICATE];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}: a number")))
}

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

/// Path, authority and headers of a head.
fn seen(head: &[u8]) -> (String, String, Vec<(String, String)>) {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(head).expect("a head");
    assert!(parsed.is_complete(), "{}", String::from_utf8_lossy(head));
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let all: Vec<_> = request.headers.iter().map(|h| (h.name.to_ascii_lowercase(), text(h.value))).collect();
    let hosts: Vec<_> = all.iter().filter(|(name, _)| name == "host").map(|(_, value)| value.clone()).collect();
    assert_eq!(hosts.len(), 1, "one host: {}", String::from_utf8_lossy(head));
    let mut rest: Vec<_> = all.into_iter().filter(|(name, _)| name != "host").collect();
    rest.sort_by(|a, b| a.0.cmp(&b.0));
    (request.path.unwrap_or("").to_owned(), hosts[0].clone(), rest)
}

fn agrees(outcome: &Outcome, tried: &Tried, program: &Program, head: &[u8]) -> bool {
    match outcome {
        Outcome::Forward(upstream) if tried.verdict == abi::UD_FORWARD => forwarded(upstream, tried, program, head),
        Outcome::Answer(_) => tried.verdict == abi::UD_ANSWER,
        _ => false,
    }
}

fn forwarded(upstream: &Upstream, tried: &Tried, program: &Program, head: &[u8]) -> bool {
    let (path, authority, headers) = seen(tried.edited.as_deref().unwrap_or(head));
    let mut wanted = upstream.headers.clone();
    wanted.sort_by(|a, b| a.0.cmp(&b.0));
    let action = &program.actions[tried.action as usize];
    program.clusters[tried.cluster as usize] == upstream.cluster
        && path == upstream.path
        && authority == upstream.authority
        && headers == wanted
        && action.response_edits == upstream.response_edits
}

fn compare(file: &str, listener: &str, port: u16) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/tests/policies").join(file);
    let reading = read(&load(&[path]).expect("a fixture"));
    assert!(reading.errors.is_empty(), "{:?}", reading.errors);
    let policy = reading.policy;
    let listener = policy.listener(listener).expect("a listener");
    let seed = number("UNDERDECK_TEST_SEED", u64::from(std::process::id()) * 7919);
    let mut generator = Generator::new(listener, &policy, seed);
    let senders = [
        (Some("cluster.local/ns/demo/sa/client"), "192.0.2.1"),
        (Some("cluster.local/ns/other/sa/robot"), "10.1.2.3"),
        (None, "127.0.0.1"),
    ];
    let mut ends = BTreeMap::<String, u64>::new();
    let (mut in_kernel, mut all) = (0, 0);
    for (identity, address) in senders {
        let sender = Sender {
            identity: identity.map(|identity| Identity(identity.to_owned())),
            labels: Some(BTreeMap::new()),
            address: address.parse().expect("an address"),
        };
        let ip = Ipv4Addr::new(192, 0, 2, 80);
        let bind = Bind {
            listener: listener.name.clone(),
            address: ([127, 0, 0, 1], 1).into(),
            sender: sender.clone(),
            destination: (IpAddr::V4(ip), port),
        };
        let program = make(&policy, listener, &Node { sender });
        assert_eq!(program.surplus, [], "everything that is placed in the kernel is in the program");
        let object = build(&program.source, &Cache(None)).unwrap_or_else(|error| panic!("{error}\n{}", program.source));
        let mut trial = Trial::load(&object.bytes).unwrap_or_else(|error| panic!("{error}\n{}", program.source));
        for _ in 0..number("UNDERDECK_TEST_REQUESTS", 3000) {
            let request = generator.request(&bind);
            let head = wire(&request);
            let random = u32::try_from(generator.below(1 << 32)).expect("below 2^32");
            let tried = trial.run(&head, (ip, port), random, 1).expect("it runs");
            let decision = evaluate(&policy, listener, &request);
            all += 1;
            if tried.verdict == abi::UD_ENVOY {
                let expected = EXPECTED.contains(&tried.reason) || request.authority.is_empty();
                assert!(expected, "reason {} for {}", tried.reason, String::from_utf8_lossy(&head));
                *ends.entry(format!("envoy {}", tried.reason)).or_default() += 1;
                continue;
            }
            in_kernel += 1;
            let end = match tried.verdict {
                abi::UD_FORWARD => program.clusters[tried.cluster as usize].clone(),
                _ => program.actions[tried.action as usize].name.clone(),
            };
            *ends.entry(end).or_default() += 1;
            assert!(
                decision.outcomes.iter().any(|(_, outcome)| agrees(outcome, &tried, &program, &head)),
                "seed {seed}\n{}\nkernel: {tried:?}\n{}\nevaluator: {:#?}\n{}",
                String::from_utf8_lossy(&head),
                tried.edited.as_deref().map_or_else(String::new, |head| String::from_utf8_lossy(head).into_owned()),
                decision,
                program.source,
            );
        }
    }
    eprintln!("{file}: {in_kernel} of {all} requests decided in the kernel, seed {seed}: {ends:?}");
    let kernel_ends: BTreeSet<_> = ends.keys().filter(|end| !end.starts_with("envoy ")).collect();
    assert!(!kernel_ends.is_empty(), "nothing is decided in the kernel: {ends:?}");
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
