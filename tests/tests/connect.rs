//! CONNECT through proxies that pass it on: a tunnel after 2xx, an ordinary response after anything else.

use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::engine::{self as counters, Role};
use underdeck_lab::proxy::{Envoy, Haproxy, Spec};
use underdeck_lab::twin::{Exchange, Manner, Step};
use underdeck_tests::matrix::{Lane, compare};

const LARGEST: u64 = 4 << 20;

fn connect(behaviour: Behaviour) -> Step {
    Step { method: "CONNECT", ..Step::get(behaviour) }
}

fn exchanges() -> Vec<Exchange> {
    let tunnel = |n: u64| {
        let exchange = Exchange::new(format!("connect-{n}"), vec![connect(Behaviour::default())]);
        exchange.manner(Manner::Tunnel(n))
    };
    let refused = |delimit| {
        let answer = Behaviour { status: 407, ..Behaviour::body(300_000, delimit) };
        Exchange::new(format!("refused-{delimit:?}").replace(['(', ')'], "-"), vec![connect(answer)])
    };
    let mut all: Vec<_> = [1, 100, 5000, 300_000, LARGEST].map(tunnel).into();
    all.extend([Delimit::Length, Delimit::Chunked(20_000)].map(refused));
    all
}

fn both_ways(name: &str, spec: &Spec) {
    let lanes = [Lane::plain(spec), Lane::underdeck(spec), Lane::underdeck_tiny(spec)];
    for exchange in exchanges() {
        assert_eq!(compare(&exchange, &lanes), Vec::<String>::new(), "{name}");
    }
    for lane in lanes {
        assert_eq!(lane.check_counters(&[]), Vec::<String>::new(), "{name}");
        let counters = counters::snapshot(&lane.proxy).filter(|_| lane.has_engine());
        for (role, it) in Role::ALL.into_iter().zip(counters.iter().flat_map(|it| it.roles)) {
            let (forwarded, least) = (it.bytes_forwarded, LARGEST / 2);
            assert!(forwarded > least, "{name} {}: {role:?}: {forwarded} bytes were forwarded", lane.name);
        }
        lane.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn haproxy() {
    both_ways("haproxy", &Spec::Haproxy(Haproxy::default()));
}

#[test]
fn envoy() {
    both_ways("envoy", &Spec::Envoy(Envoy::default()));
}
