//! Endpoints with weights: the kernel's shares are Envoy's, for each way of choosing. Needs root and Envoy.

mod support;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::backend::Backend;
use support::client::Client;
use support::{Agent, Setup, inside};
use underdeck_lab::ports::Port;
use underdeck_lab::process::Process;
use underdeck_lab::tools::Tool;
use underdeck_lab::wait;
use underdeck_mesh_policy::envoy::{Bind, Server, bootstrap};
use underdeck_mesh_policy::evaluate::Sender;
use underdeck_mesh_policy::read::{Source, read};

const WEIGHTS: [u32; 3] = [1, 2, 5];
const REQUESTS: usize = 400;

/// Static configuration of Envoy.
fn policy(algorithm: &str, endpoints: &[SocketAddr]) -> String {
    let mut text = format!(
        "static_resources:
  listeners:
  - name: front
    address: {{socket_address: {{address: 127.88.0.1, port_value: 80}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config: {{virtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: shop, timeout: 0s}}}}]}}]}}
  clusters:
  - name: shop
    type: STATIC
    lb_policy: {algorithm}
    load_assignment:
      cluster_name: shop
      endpoints:
      - lb_endpoints:
"
    );
    for (endpoint, weight) in endpoints.iter().zip(WEIGHTS) {
        text += &format!(
            "        - {{endpoint: {{address: {{socket_address: {{address: {}, port_value: {}}}}}}}, load_balancing_weight: {weight}}}\n",
            endpoint.ip(),
            endpoint.port()
        );
    }
    text
}

/// How many requests of one client each backend gets.
fn shares(at: SocketAddr, before: &[u64], backends: &[Backend]) -> Vec<u64> {
    let mut client = Client::connect(at);
    for _ in 0..REQUESTS {
        assert_eq!(client.get("/a").status, 200);
    }
    backends.iter().zip(before).map(|(backend, before)| backend.requests() - before).collect()
}

fn counts(backends: &[Backend]) -> Vec<u64> {
    backends.iter().map(Backend::requests).collect()
}

fn envoy(text: &str, destination: (IpAddr, u16), place: &Path) -> (Process, Port) {
    let policy = read(&[Source { name: "envoy.yaml".into(), text: text.into() }]).policy;
    let port = Port::free().expect("a port");
    let sender = Sender { identity: None, labels: None, address: Ipv4Addr::LOCALHOST.into() };
    let bind = Bind { listener: "front".into(), address: port.addr(), sender, destination };
    let generated = bootstrap::<Server>(&policy, &[bind], &BTreeMap::new());
    assert_eq!(generated.missing, []);
    let config = place.join("envoy.json");
    std::fs::write(&config, generated.config.to_string()).expect("ours");
    let mut command = Command::new(Tool::Envoy.path().unwrap_or_else(|error| panic!("{error}: run lab/setup.sh")));
    command.arg("-c").arg(&config).args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]);
    let envoy = Process::spawn("envoy", place, command).expect("Envoy starts");
    wait::until("Envoy listens", Duration::from_secs(60), || TcpStream::connect(port.addr()).ok()).expect("it does");
    (envoy, port)
}

/// The kernel's shares and Envoy's.
fn both(test: &str, group: &Path, algorithm: &str, service: &str) -> (Vec<u64>, Vec<u64>) {
    let backends: Vec<_> = WEIGHTS.iter().map(|_| Backend::start()).collect();
    let addresses: Vec<_> = backends.iter().map(|backend| backend.address).collect();
    let text = policy(algorithm, &addresses);
    let service: SocketAddr = service.parse().expect("an address");
    let agent = Agent::start(&Setup {
        name: test,
        group,
        policies: &text,
        services: &[service],
        endpoints: &[],
        more: "listener: front\npool: {min: 2}",
    });
    let here = shares(service, &counts(&backends), &backends);
    let status = agent.status();
    assert_eq!((status.requests.kernel, status.requests.envoy), (REQUESTS as u64, 0), "{status:#?}");
    let place = tempfile::tempdir().expect("a folder");
    let (envoy, port) = envoy(&text, (service.ip(), service.port()), place.path());
    let there = shares(port.addr(), &counts(&backends), &backends);
    eprintln!("{algorithm}: {here:?} in the kernel, {there:?} by Envoy");
    drop(envoy);
    agent.stop();
    (here, there)
}

/// What is not left to chance, to one request.
fn by_weight(shares: &[u64]) -> bool {
    let all: u32 = WEIGHTS.iter().sum();
    let is_fair =
        |(share, weight): (&u64, &u32)| share.abs_diff(REQUESTS as u64 * u64::from(*weight) / u64::from(all)) <= 1;
    shares.iter().zip(&WEIGHTS).all(is_fair)
}

#[test]
fn round_robin_goes_by_weight() {
    inside("round_robin_goes_by_weight", |group| {
        let (here, there) = both("round_robin_goes_by_weight", group, "ROUND_ROBIN", "127.88.0.1:80");
        assert!(by_weight(&here) && by_weight(&there), "{here:?} {there:?}");
    });
}

#[test]
fn least_request_goes_by_weight() {
    inside("least_request_goes_by_weight", |group| {
        let (here, there) = both("least_request_goes_by_weight", group, "LEAST_REQUEST", "127.88.0.2:80");
        assert!(by_weight(&here) && by_weight(&there), "{here:?} {there:?}");
    });
}

/// Envoy's choice at random does not look at weights: a third each, within six standard deviations.
#[test]
fn random_does_not_go_by_weight() {
    inside("random_does_not_go_by_weight", |group| {
        let (here, there) = both("random_does_not_go_by_weight", group, "RANDOM", "127.88.0.3:80");
        let is_third = |share: &u64| share.abs_diff(REQUESTS as u64 / 3) <= 57;
        assert!(here.iter().chain(&there).all(is_third), "{here:?} {there:?}");
    });
}

/// An endpoint that does not answer gets the next requests later, by its weight and what it has.
#[test]
fn an_endpoint_with_requests_waits_for_its_turn() {
    let name = "an_endpoint_with_requests_waits_for_its_turn";
    inside(name, |group| {
        let backends = [Backend::start(), Backend::start()];
        let service: SocketAddr = "127.88.0.4:80".parse().expect("an address");
        let agent = Agent::start(&Setup {
            name,
            group,
            policies: LEAST_REQUEST,
            services: &[service],
            endpoints: &[("shop.test||", backends[0].address)],
            more: "pool: {min: 8}",
        });
        let path = agent.place.path().join("mesh.yaml");
        let config = std::fs::read_to_string(&path).expect("ours");
        let plain = format!("[\"{}\"]", backends[0].address);
        let weighted = format!("[\"{}\", {{address: \"{}\", weight: 4}}]", backends[0].address, backends[1].address);
        std::fs::write(&path, config.replace(&plain, &weighted)).expect("ours");
        agent.signal(libc::SIGHUP);
        agent.until("the weights hold", |status| status.generation >= 2);
        let (mut waiting, before) = (Vec::new(), counts(&backends));
        for number in 1..=10u64 {
            let mut client = Client::connect(service);
            client.send(b"GET /wait HTTP/1.1\r\nHost: shop.test\r\n\r\n");
            waiting.push(client);
            agent.until("it is with an endpoint", |status| status.requests.kernel == number);
        }
        // By hand: turns are due at 4 and 1; each adds 4 or 1, times one more than the requests under way.
        let arrived = || counts(&backends).iter().zip(&before).map(|(now, before)| now - before).collect::<Vec<_>>();
        wait::until("they arrive", Duration::from_secs(60), || (arrived().iter().sum::<u64>() == 10).then_some(()))
            .expect("they arrive");
        assert_eq!(arrived(), [3, 7]);
        backends.iter().for_each(Backend::let_go);
        for client in &mut waiting {
            assert_eq!(client.receive(false).expect("an answer").status, 200);
        }
        agent.stop();
    });
}

const LEAST_REQUEST: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.test]
  http: [{route: [{destination: {host: shop.test}}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: demo}
spec:
  host: shop.test
  trafficPolicy: {loadBalancer: {simple: LEAST_REQUEST}}
"#;
