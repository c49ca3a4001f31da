//! Services and endpoints in IPv6, and IPv4 from sockets of IPv6. Needs root and Envoy.

mod support;

use std::net::SocketAddr;

use support::backend::{Backend, pattern};
use support::client::Client;
use support::{Agent, has_ipv6, inside, start_at};

/// Requests of every way, on one connection.
fn use_it(agent: &Agent, service: SocketAddr) {
    let before = agent.status().requests;
    let mut client = Client::connect(service);
    for turn in 0..10 {
        assert_eq!(client.get("/hello").text(), "GET /hello HTTP/1.1|Host: shop.test|body 0 1", "turn {turn}");
        assert_eq!(client.get("/size/60000").matches(60_000), Ok(()));
        assert_eq!(client.get("/size/500000").matches(500_000), Ok(()));
        assert_eq!(client.get("/forbidden").status, 403);
        assert!(client.get("/envoy").text().contains("x-forwarded-proto"));
        let text = client.post("/up", &pattern(5000)).text();
        assert!(text.ends_with("body 5000 1"), "{text}");
        let text = client.post("/up", &pattern(200_000)).text();
        assert!(text.ends_with("body 200000 1"), "{text}");
    }
    let after = agent.status().requests;
    let more = [after.kernel - before.kernel, after.answered - before.answered, after.envoy - before.envoy];
    assert_eq!(more, [40, 10, 10], "{after:?}");
}

fn compare(name: &str, service: &str, dialled: &[&str], endpoint: &str) {
    inside(name, |group| {
        if !has_ipv6() {
            return;
        }
        let backend = Backend::start_at(endpoint);
        let (agent, _) = start_at(name, group, service, backend.address);
        for dialled in dialled {
            use_it(&agent, dialled.parse().expect("an address"));
        }
        agent.stop();
    });
}

#[test]
fn a_service_and_its_endpoint_in_ipv6() {
    compare("a_service_and_its_endpoint_in_ipv6", "[::1]:80", &["[::1]:80"], "[::1]:0");
}

#[test]
fn a_service_in_ipv6_with_an_endpoint_in_ipv4() {
    compare("a_service_in_ipv6_with_an_endpoint_in_ipv4", "[::1]:80", &["[::1]:80"], "127.0.0.1:0");
}

#[test]
fn a_service_in_ipv4_is_reached_through_mapped_addresses() {
    let name = "a_service_in_ipv4_is_reached_through_mapped_addresses";
    compare(name, "127.88.0.1:80", &["127.88.0.1:80", "[::ffff:127.88.0.1]:80"], "[::1]:0");
}

#[test]
fn a_service_that_is_written_as_a_mapped_address_is_one_of_ipv4() {
    let name = "a_service_that_is_written_as_a_mapped_address_is_one_of_ipv4";
    compare(name, "[::ffff:127.88.0.2]:80", &["127.88.0.2:80", "[::ffff:127.88.0.2]:80"], "127.0.0.1:0");
}
