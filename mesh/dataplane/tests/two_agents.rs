//! An agent has one listener; two agents in one control group have two. Needs root and Envoy.

mod support;

use support::backend::Backend;
use support::client::Client;
use support::{Agent, POLICIES, Setup, inside};

/// A listener of its own, for which another path is forbidden.
const GATEWAY: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: demo}
spec: {gatewayClassName: any, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop, namespace: demo}
spec:
  parentRefs: [{name: edge}]
  hostnames: [shop.test]
  rules:
  - matches: [{path: {type: PathPrefix, value: /here}}]
    backendRefs: [{name: shop, port: 80}]
"#;

#[test]
fn each_agent_takes_over_its_own_services() {
    let name = "each_agent_takes_over_its_own_services";
    inside(name, |group| {
        let (near, far) = (Backend::start(), Backend::start());
        let (mesh, edge) = ("127.83.2.1:80".parse().expect("one"), "127.83.2.2:80".parse().expect("another"));
        let first = Agent::start(&Setup {
            name,
            group,
            policies: POLICIES,
            services: &[mesh],
            endpoints: &[("shop.test||", near.address)],
            more: "",
        });
        let second = Agent::start(&Setup {
            name,
            group,
            policies: GATEWAY,
            services: &[edge],
            endpoints: &[("shop.demo.svc.cluster.local|80|", far.address)],
            more: "listener: gateway demo/edge",
        });
        let (mut of_mesh, mut of_edge) = (Client::connect(mesh), Client::connect(edge));
        for _ in 0..10 {
            assert_eq!((of_mesh.get("/here").status, of_edge.get("/here").status), (200, 200));
            assert_eq!((of_mesh.get("/forbidden").status, of_edge.get("/forbidden").status), (403, 404));
        }
        for (agent, backend) in [(&first, &near), (&second, &far)] {
            let status = agent.status();
            let kernel = (status.requests.kernel, status.responses.kernel, status.requests.answered);
            assert_eq!((kernel, backend.requests()), ((10, 10, 10), 10), "{status:#?}");
        }
        first.stop();
        assert_eq!((of_edge.get("/here").status, Client::connect(edge).get("/here").status), (200, 200));
        assert_eq!(second.status().requests.kernel, 12);
        second.stop();
    });
}
