//! Weights and aborts by a number that is given: the shares are those of the policy. Needs root.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use underdeck_mesh_compiler::{Cache, Fitted, Node, abi, fit};
use underdeck_mesh_policy::evaluate::Sender;
use underdeck_mesh_policy::read::{Source, read};

const POLICY: &str = "\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: shop, namespace: demo }
spec:
  hosts: [shop]
  http:
  - fault: { abort: { httpStatus: 503, percentage: { value: 25 } } }
    route:
    - { destination: { host: a }, weight: 10 }
    - { destination: { host: b }, weight: 30 }
    - { destination: { host: c }, weight: 0 }
    - { destination: { host: d }, weight: 60 }
";

#[test]
fn shares_are_those_of_the_policy() {
    const DRAWS: u32 = 20_000;
    let policy = read(&[Source { name: "shop.yaml".into(), text: POLICY.into() }]).policy;
    let listener = policy.listener("mesh").expect("routes");
    let sender = Sender { identity: None, labels: None, address: Ipv4Addr::LOCALHOST.into() };
    let fitted = fit(&policy, listener, &Node { sender }, &Cache(None)).unwrap_or_else(|error| panic!("{error}"));
    let Fitted { program, mut trial, .. } = fitted;
    let mut ends = BTreeMap::<String, u32>::new();
    for draw in 0..DRAWS {
        // Spread over all numbers, and the same ones in each run.
        let random = draw.wrapping_mul(0x9e37_79b9);
        let head = b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n";
        let tried = trial.run(head, (Ipv4Addr::LOCALHOST, 80), random, 1).expect("it runs");
        let end = match tried.verdict {
            abi::UD_FORWARD => program.clusters[tried.cluster as usize].split('.').next().unwrap_or("").to_owned(),
            abi::UD_ANSWER => "abort".to_owned(),
            _ => "envoy".to_owned(),
        };
        *ends.entry(end).or_default() += 1;
    }
    // Each of the four within a tenth of its share; nothing else.
    let wanted = [("a", 0.075), ("abort", 0.25), ("b", 0.225), ("d", 0.45)];
    assert_eq!(ends.keys().collect::<Vec<_>>(), wanted.map(|(name, _)| name), "{ends:?}");
    for (name, share) in wanted {
        let seen = f64::from(ends[name]) / f64::from(DRAWS);
        assert!((seen - share).abs() < share / 10.0, "{name}: {seen} for {share}");
    }
}
