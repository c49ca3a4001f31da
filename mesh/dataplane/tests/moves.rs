//! Requests and responses of every kind, on connections that were taken over. Needs root and Envoy.

mod support;

use support::backend::pattern;
use support::client::Client;
use support::{inside, start};

#[test]
fn a_request_goes_through_the_kernel_and_its_response_comes_back_through_it() {
    let name = "a_request_goes_through_the_kernel_and_its_response_comes_back_through_it";
    inside(name, |group| {
        let (_backend, agent, service) = start(name, group, "127.81.0.1:80");
        let mut client = Client::connect(service);
        for turn in 0..50 {
            let response = client.get(&format!("/hello?turn={turn}"));
            assert_eq!(response.status, 200);
            assert_eq!(response.text(), format!("GET /hello?turn={turn} HTTP/1.1|Host: shop.test|body 0 1"));
        }
        for size in [1, 100, 1000, 4000, 10_000, 60_000] {
            assert_eq!(client.get(&format!("/size/{size}")).matches(size), Ok(()), "{size} bytes");
        }
        let status = agent.status();
        assert_eq!((status.requests.kernel, status.responses.kernel), (56, 56), "{status:#?}");
        assert_eq!((status.requests.agent, status.requests.envoy), (0, 0), "{status:#?}");
        agent.stop();
    });
}

#[test]
fn requests_of_all_ways_are_mixed_on_one_connection() {
    inside("requests_of_all_ways_are_mixed_on_one_connection", |group| {
        let (_backend, agent, service) =
            start("requests_of_all_ways_are_mixed_on_one_connection", group, "127.81.0.2:80");
        let mut client = Client::connect(service);
        for turn in 0..20 {
            let response = client.get("/hello");
            assert_eq!(response.text(), "GET /hello HTTP/1.1|Host: shop.test|body 0 1", "turn {turn}");
            let response = client.get("/old");
            assert_eq!((response.status, response.header("location")), (301, Some("http://shop.test/new")));
            let response = client.get("/forbidden/x");
            assert_eq!((response.status, response.text().as_str()), (403, "not you"));
            let response = client.get("/edited/a/b");
            assert_eq!(response.text(), "GET /a/b HTTP/1.1|Host: shop.test|x-request: set|body 0 1");
            let response = client.get("/response/a");
            assert_eq!(response.header("x-response"), Some("set"));
            assert!(response.text().starts_with("GET /response/a "), "{}", response.text());
            assert!(client.get("/envoy").text().contains("x-forwarded-proto"));
            assert_eq!(client.get("/chunked/70000").matches(70_000), Ok(()));
            assert_eq!(client.get("/size/1000000").matches(1_000_000), Ok(()));
            for size in [0, 1, 5000, 60_000, 65_536, 65_537, 300_000] {
                let response = client.post("/upload", &pattern(size));
                let end = format!("body {size} 1");
                assert!(response.text().ends_with(&end), "{size}: {}", response.text());
            }
        }
        let status = agent.status();
        let requests = &status.requests;
        // Two uploads are longer than the kernel moves.
        assert_eq!((requests.kernel, requests.answered, requests.envoy), (20 * 10, 40, 20), "{status:#?}");
        assert_eq!((requests.agent, requests.empty_pool), (40, 0), "{status:#?}");
        // Those that are chunked or edited.
        assert_eq!((status.responses.kernel, status.responses.agent), (20 * 8, 20 * 2), "{status:#?}");
        let rule = |name: &str| status.rules.iter().find(|rule| rule.name.contains(name)).map(|rule| rule.requests);
        assert_eq!(rule("http[0]: redirect"), Some(20), "{status:#?}");
        agent.stop();
    });
}
