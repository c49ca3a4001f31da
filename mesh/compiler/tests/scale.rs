//! Many rules on one listener: clang and the verifier take them, and the decision stays right. Needs root.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use underdeck_mesh_compiler::{
    Cache, Node, Program, ROUTES_MAX, SurplusReason, Trial, abi, build, generate, samples, time, verified_instructions,
};
use underdeck_mesh_policy::evaluate::{Outcome, Request, Sender, evaluate};
use underdeck_mesh_policy::form::Policy;
use underdeck_mesh_policy::read::{Source, read};

const DESTINATION: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 80), 80);

/// Rules of every kind that the kernel enforces, one after the other.
fn rule(index: usize) -> String {
    let to = |service: usize| format!("{{ destination: {{ host: s{service} }} }}");
    let target = to(index % 50);
    match index % 8 {
        0 => format!("  - match: [{{ uri: {{ exact: /exact/path/{index} }} }}]\n    route: [{target}]\n"),
        1 => format!("  - match: [{{ uri: {{ prefix: /api/v{index}/ }} }}]\n    route: [{target}]\n"),
        2 => format!(
            "  - match: [{{ uri: {{ prefix: /h{index}/ }}, headers: {{ x-user: {{ exact: user{index} }} }} }}]\n    route: \
             [{target}]\n"
        ),
        3 => format!("  - match: [{{ uri: {{ regex: '/r{index}/[0-9]+' }} }}]\n    route: [{target}]\n"),
        4 => format!(
            "  - match: [{{ uri: {{ prefix: /old{index}/ }} }}]\n    rewrite: {{ uri: /new{index}/ }}\n    route: [{target}]\n"
        ),
        5 => format!(
            "  - match: [{{ uri: {{ prefix: /edit{index}/ }} }}]\n    headers: {{ request: {{ set: {{ x-rule: r{index} }}, \
             remove: [x-drop] }} }}\n    route: [{target}]\n"
        ),
        6 => format!("  - match: [{{ uri: {{ prefix: /gone{index}/ }} }}]\n    redirect: {{ uri: /here{index} }}\n"),
        _ => format!(
            "  - match: [{{ uri: {{ prefix: /split{index}/ }}, method: {{ exact: POST }} }}]\n    route: [{{ destination: {{ \
             host: s1 }}, weight: 30 }}, {{ destination: {{ host: s2 }}, weight: 70 }}]\n"
        ),
    }
}

fn path(index: usize) -> String {
    match index % 8 {
        0 => format!("/exact/path/{index}"),
        1 => format!("/api/v{index}/x?q=1"),
        2 => format!("/h{index}/y"),
        3 => format!("/r{index}/4711"),
        4 => format!("/old{index}/z?a=b"),
        5 => format!("/edit{index}/z"),
        6 => format!("/gone{index}/"),
        _ => format!("/split{index}/x"),
    }
}

fn service(hosts: &str, name: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{ name: {name}, namespace: demo \
         }}\nspec:\n  hosts: [{hosts}]\n  http:\n"
    )
}

fn on_one_host(rules: usize) -> String {
    (0..rules).fold(service("shop", "shop"), |out, index| out + &rule(index))
}

fn on_hosts(rules: usize) -> String {
    let mut out = String::new();
    for index in 0..rules {
        let _ = write!(out, "---\n{}{}", service(&format!("shop{index}"), &format!("shop{index}")), rule(index));
    }
    out
}

fn sender() -> Sender {
    Sender { identity: None, labels: None, address: Ipv4Addr::LOCALHOST.into() }
}

struct Made {
    policy: Policy,
    program: Program,
    trial: Trial,
}

fn make(what: &str, text: String) -> Made {
    let reading = read(&[Source { name: "scale.yaml".into(), text }]);
    assert!(reading.errors.is_empty(), "{:?}", reading.errors);
    let listener = reading.policy.listener("mesh").expect("routes");
    let start = Instant::now();
    let program = generate(&reading.policy, listener, &Node { sender: sender() });
    let generated = start.elapsed();
    let object = build(&program.source, &Cache(None)).unwrap_or_else(|error| panic!("{error}"));
    let built = start.elapsed();
    let trial = Trial::load(&object.bytes).unwrap_or_else(|error| panic!("{error}"));
    let loaded = start.elapsed();
    eprintln!(
        "{what}: generated {generated:?}, with clang {built:?}, with the verifier {loaded:?}; {} instructions verified",
        verified_instructions(&object.bytes).expect("the kernel says it")
    );
    Made { policy: reading.policy, program, trial }
}

/// A request for each of some rules, against the evaluator.
fn ask(made: &mut Made, rules: impl Iterator<Item = usize>, host: impl Fn(usize) -> String) {
    let Made { policy, program, trial } = made;
    let listener = policy.listener("mesh").expect("routes");
    for index in rules {
        let request = Request {
            method: "POST".into(),
            target: path(index),
            authority: host(index),
            headers: vec![("x-user".into(), format!("user{index}")), ("x-drop".into(), "1".into())],
            source: sender(),
            destination: (IpAddr::V4(DESTINATION.0), DESTINATION.1),
        };
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nX-User: user{index}\r\nx-drop: 1\r\n\r\n",
            request.target, request.authority
        );
        let tried = trial.run(head.as_bytes(), DESTINATION, 0, 1).expect("it runs");
        if index % 100 == 91 {
            let rounds = 10_000;
            let tried = trial.run(head.as_bytes(), DESTINATION, 0, rounds).expect("it runs");
            eprintln!("{}: {} ns", path(index), tried.nanoseconds / u64::from(rounds));
        }
        let decision = evaluate(policy, listener, &request);
        match &decision.outcomes[0].1 {
            Outcome::Forward(upstream) => {
                let clusters: Vec<_> = decision
                    .outcomes
                    .iter()
                    .filter_map(|(_, outcome)| match outcome {
                        Outcome::Forward(upstream) => Some(upstream.cluster.as_str()),
                        _ => None,
                    })
                    .collect();
                assert_eq!(tried.verdict, abi::UD_FORWARD, "{head}{tried:?}");
                assert!(clusters.contains(&program.clusters[tried.cluster as usize].as_str()), "{head}");
                let sent = tried.edited.unwrap_or_else(|| head.clone().into_bytes());
                let line = format!("POST {} HTTP/1.1\r\n", upstream.path);
                assert!(sent.starts_with(line.as_bytes()), "{}", String::from_utf8_lossy(&sent));
            }
            _ => assert_eq!(tried.verdict, abi::UD_ANSWER, "{head}{tried:?}"),
        }
    }
}

#[test]
fn one_rule_and_twenty() {
    for rules in [1, 20] {
        let mut made = make(&format!("{rules} rules"), on_one_host(rules));
        assert_eq!(made.program.surplus, []);
        ask(&mut made, 0..rules, |_| "shop".into());
    }
}

#[test]
fn a_hundred_rules() {
    let mut made = make("100 rules", on_one_host(100));
    ask(&mut made, 0..100, |_| "shop".into());
    let heads = samples(made.policy.listener("mesh").expect("routes"));
    let timing = time(&mut made.trial, &heads).expect("it runs").expect("there are heads");
    // One in eight has a regular expression, for which no head is written.
    assert_eq!(timing.requests, 87);
    assert!(timing.min_ns > 0 && timing.min_ns <= timing.median_ns && timing.median_ns <= timing.max_ns, "{timing:?}");
}

#[test]
fn five_hundred_rules_on_one_host() {
    let mut made = make("500 rules on one host", on_one_host(500));
    assert_eq!(made.program.surplus, []);
    ask(&mut made, (0..500).step_by(7), |_| "shop".into());
}

#[test]
fn five_hundred_hosts() {
    let mut made = make("500 hosts", on_hosts(500));
    assert_eq!(made.program.surplus, []);
    ask(&mut made, (0..500).step_by(7), |index| format!("shop{index}.demo.svc.cluster.local"));
}

#[test]
fn what_does_not_fit_is_left_to_envoy() {
    let rules = ROUTES_MAX + 96;
    let mut made = make("more than fit", on_one_host(rules));
    assert_eq!(made.program.surplus.len(), 96);
    assert!(made.program.surplus.iter().all(|surplus| surplus.reason == SurplusReason::TooManyRoutes));
    ask(&mut made, (0..ROUTES_MAX).step_by(127), |_| "shop".into());
    for index in ROUTES_MAX..rules {
        let head = format!("POST {} HTTP/1.1\r\nHost: shop\r\n\r\n", path(index));
        let tried = made.trial.run(head.as_bytes(), DESTINATION, 0, 1).expect("it runs");
        assert_eq!((tried.verdict, tried.reason), (abi::UD_ENVOY, abi::UD_REASON_POLICY), "{head}");
    }
}
