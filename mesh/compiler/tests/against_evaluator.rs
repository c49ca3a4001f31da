//! The program in the kernel against the evaluator, which agrees with Envoy: for each set of policies, thousands of
//! requests at the borders of its literals. What the kernel decides must be what the evaluator allows; what it leaves
//! to Envoy is counted, and ordinary requests that only rules for the kernel are about may not be left. Needs root.
//!
//! `UNDERDECK_TEST_SEED` repeats a run, `UNDERDECK_TEST_REQUESTS` sets how many requests each set gets.
//! `UNDERDECK_TEST_POLICIES` names a folder of the tester's own: each folder in it is a set of policies, all of whose
//! listeners are compared.

#[path = "against_evaluator/agree.rs"]
mod agree;
#[path = "../../policy/tests/differential/generate.rs"]
mod generate;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use generate::Generator;
use underdeck_mesh_compiler::{Cache, Fitted, Node, SurplusReason, abi, fit, verified_instructions};
use underdeck_mesh_policy::envoy::Bind;
use underdeck_mesh_policy::evaluate::{Identity, Sender, evaluate};
use underdeck_mesh_policy::form::{Listener, Placement, Policy, RuleId, RuleKind, Target};
use underdeck_mesh_policy::read::{Source, load, read};

/// Reasons of the parser for requests that the generator makes on purpose.
const EXPECTED: &[u32] = &[abi::UD_REASON_POLICY, abi::UD_REASON_TARGET, abi::UD_REASON_PATH, abi::UD_REASON_DUPLICATE];

const DESTINATION: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 80));

const DESTINATION_6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0x84, 0, 0, 0, 0, 0, 3));

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}: a number")))
}

fn sender(identity: Option<&str>, address: &str) -> Sender {
    Sender {
        identity: identity.map(|identity| Identity(identity.to_owned())),
        labels: Some(BTreeMap::new()),
        address: address.parse().expect("an address"),
    }
}

/// What was seen of one listener.
#[derive(Default)]
struct Seen {
    requests: u64,
    in_kernel: u64,
    /// Ordinary ones that only rules for the kernel are about: all of these are in the kernel.
    for_kernel: u64,
    /// How they ended.
    ends: BTreeMap<String, u64>,
    rules: BTreeSet<RuleId>,
    instructions: u32,
    listeners: u32,
}

fn run(policy: &Policy, listener: &Listener, sender: &Sender, to: (IpAddr, u16), requests: u64, seen: &mut Seen) {
    let seed = number("UNDERDECK_TEST_SEED", u64::from(std::process::id()) * 7919);
    let mut generator = Generator::new(listener, policy, seed);
    let bind = Bind {
        listener: listener.name.clone(),
        address: ([127, 0, 0, 1], 1).into(),
        sender: sender.clone(),
        destination: to,
    };
    let node = Node { sender: sender.clone() };
    let fitted = fit(policy, listener, &node, &Cache(None)).unwrap_or_else(|error| panic!("{error}"));
    let Fitted { program, object, mut trial } = fitted;
    // A sender without an identity is the only thing that a program may be short of here.
    let surplus: Vec<_> = program.surplus.iter().filter(|left| left.reason != SurplusReason::UnknownSender).collect();
    assert!(surplus.is_empty(), "what is placed in the kernel is in the program: {surplus:?}");
    seen.rules.extend(&program.rules);
    seen.instructions = seen.instructions.max(verified_instructions(&object.bytes).expect("the kernel says it"));
    for _ in 0..requests {
        let mut request = generator.request(&bind);
        if generator.below(8) == 0 && request.target.starts_with('/') {
            // Escapes that stay.
            let end = request.target.find(['?', '#']).unwrap_or(request.target.len());
            request.target.insert_str(end, ["%20", "/%C3%A9", "%3a%25x"][generator.below(3)]);
        }
        let head = agree::wire(&request);
        let random = u32::try_from(generator.below(1 << 32)).expect("below 2^32");
        let tried = trial.run(&head, to, random, 1).expect("it runs");
        let decision = evaluate(policy, listener, &request);
        let for_kernel = agree::is_for_the_kernel(policy, listener, &request, &decision);
        let text = String::from_utf8_lossy(&head);
        seen.requests += 1;
        seen.for_kernel += u64::from(for_kernel);
        if tried.verdict == abi::UD_ENVOY {
            let expected = EXPECTED.contains(&tried.reason) || request.authority.is_empty();
            assert!(expected && !for_kernel, "seed {seed}, reason {} for\n{text}{decision:#?}", tried.reason);
            *seen.ends.entry(format!("envoy {}", tried.reason)).or_default() += 1;
            continue;
        }
        seen.in_kernel += 1;
        let end = match tried.verdict {
            abi::UD_FORWARD => program.clusters[tried.cluster as usize].clone(),
            _ => program.actions[tried.action as usize].name.clone(),
        };
        *seen.ends.entry(end).or_default() += 1;
        assert!(
            decision.outcomes.iter().any(|(_, outcome)| agree::agrees(outcome, &tried, &program, &head)),
            "seed {seed}\n{text}\nkernel: {tried:?}\n{}\nevaluator: {decision:#?}\n{}",
            tried.edited.as_deref().map_or_else(String::new, |head| String::from_utf8_lossy(head).into_owned()),
            program.source,
        );
    }
}

fn compare(file: &str, listener: &str, port: u16) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/tests/policies").join(file);
    let reading = read(&load(&[path]).expect("a fixture"));
    assert!(reading.errors.is_empty(), "{:?}", reading.errors);
    let listener = reading.policy.listener(listener).expect("a listener");
    let senders = [
        (sender(Some("cluster.local/ns/demo/sa/client"), "192.0.2.1"), DESTINATION),
        (sender(Some("cluster.local/ns/other/sa/robot"), "10.1.2.3"), DESTINATION_6),
        (sender(None, "127.0.0.1"), DESTINATION),
    ];
    let mut seen = Seen::default();
    for (sender, address) in &senders {
        let requests = number("UNDERDECK_TEST_REQUESTS", 2000);
        run(&reading.policy, listener, sender, (*address, port), requests, &mut seen);
    }
    let Seen { requests, in_kernel, for_kernel, ends, .. } = &seen;
    eprintln!("{file}: {in_kernel} of {requests} requests decided in the kernel, {for_kernel} had to be: {ends:?}");
    assert!(ends.keys().any(|end| !end.starts_with("envoy ")), "nothing is decided in the kernel: {ends:?}");
    if reading.policy.rules.iter().all(|rule| rule.placement() == Placement::Kernel) {
        assert!(*for_kernel > requests / 10, "too few ordinary requests: {for_kernel}");
    }
}

/// A service for each workload that an authorization policy is for, so that requests reach it.
fn services(policy: &Policy) -> Source {
    let mut text = String::new();
    for (number, authorization) in policy.authorization.iter().enumerate() {
        let Target::Workloads { namespace, labels } = &authorization.target else { continue };
        let probe = BTreeMap::from([("probe".to_owned(), number.to_string())]);
        let service = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": format!("probe-{number}"), "namespace": namespace.as_deref().unwrap_or("default")},
            "spec": {"selector": if labels.is_empty() { &probe } else { labels }, "ports": [{"port": 80}]},
        });
        text += &format!("---\n{service}\n");
    }
    Source { name: "services of the test".into(), text }
}

/// All listeners of some files; the places of the rules that were enforced go to `enforced`.
fn run_all(files: &[Source], seen: &mut Seen, enforced: &mut BTreeSet<String>) -> Policy {
    let mut files = files.to_vec();
    files.push(services(&read(&files).policy));
    let policy = read(&files).policy;
    for listener in &policy.listeners {
        let sender = sender(Some("cluster.local/ns/default/sa/default"), "192.0.2.1");
        let port = listener.ports.first().copied().unwrap_or(80);
        run(&policy, listener, &sender, (DESTINATION, port), number("UNDERDECK_TEST_REQUESTS", 300), seen);
        seen.listeners += 1;
    }
    enforced.extend(std::mem::take(&mut seen.rules).into_iter().map(|id| policy.rule(id).origin.to_string()));
    policy
}

#[test]
fn a_folder_of_the_testers_own() {
    let Some(folder) = std::env::var_os("UNDERDECK_TEST_POLICIES").map(PathBuf::from) else {
        eprintln!("SKIPPED: UNDERDECK_TEST_POLICIES names no folder of policies");
        return;
    };
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut sets: Vec<_> = entries.map(|entry| entry.expect("readable").path()).filter(|path| path.is_dir()).collect();
    sets.sort();
    let (mut seen, mut enforced, mut wanted) = (Seen::default(), BTreeSet::new(), BTreeMap::new());
    for set in &sets {
        let files = load(std::slice::from_ref(set)).expect("readable files");
        let policy = run_all(&files, &mut seen, &mut enforced);
        for rule in policy.rules.iter().filter(|rule| rule.placement() == Placement::Kernel) {
            wanted.insert(rule.origin.to_string(), (rule.kind, rule.name.clone()));
        }
        // What another file of the set stands in for, such as a second VirtualService of a host, is tried alone.
        for file in &files {
            let missing = |(place, _): (&String, &_)| !enforced.contains(place) && place.starts_with(&file.name);
            if wanted.iter().any(missing) {
                run_all(std::slice::from_ref(file), &mut seen, &mut enforced);
            }
        }
    }
    let mut sums = BTreeMap::<String, (u32, u32)>::new();
    for (place, (kind, name)) in &wanted {
        let sum = sums.entry(format!("{kind:?}")).or_default();
        *sum = (sum.0 + 1, sum.1 + u32::from(enforced.contains(place)));
        // Other kinds say which endpoints a cluster has, or ask nothing of clear text.
        let decides = matches!(kind, RuleKind::Route | RuleKind::Authorization);
        assert!(!decides || enforced.contains(place), "{place}: {name} is in no program");
    }
    let Seen { requests, in_kernel, for_kernel, instructions, listeners, .. } = seen;
    eprintln!("{} sets, {listeners} listeners; rules for the kernel, and in programs: {sums:?}", sets.len());
    eprintln!("{in_kernel} of {requests} requests decided in the kernel, {for_kernel} had to be");
    eprintln!("at most {instructions} instructions verified");
    assert!(listeners > 0, "no listener in {}", folder.display());
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
