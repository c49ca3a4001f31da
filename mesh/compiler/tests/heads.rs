//! Heads that are not plain: the kernel must not guess. Needs root.

use std::net::Ipv4Addr;

use underdeck_mesh_compiler::{Cache, Node, Trial, Tried, abi, fit};
use underdeck_mesh_policy::evaluate::Sender;
use underdeck_mesh_policy::read::{Source, read};

const POLICY: &str = "\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: shop, namespace: demo }
spec:
  hosts: [shop]
  http:
  - match: [{ uri: { prefix: /a }, headers: { x-user: { exact: jason } } }]
    route: [{ destination: { host: jason } }]
  - route: [{ destination: { host: shop } }]
";

fn program() -> Trial {
    let policy = read(&[Source { name: "shop.yaml".into(), text: POLICY.into() }]).policy;
    let listener = policy.listener("mesh").expect("routes");
    let sender = Sender { identity: None, labels: None, address: Ipv4Addr::LOCALHOST.into() };
    fit(&policy, listener, &Node { sender }, &Cache(None)).unwrap_or_else(|error| panic!("{error}")).trial
}

fn decide(trial: &mut Trial, head: &[u8]) -> Tried {
    trial.run(head, (Ipv4Addr::LOCALHOST, 80), 0, 1).expect("it runs")
}

#[test]
fn what_is_not_plain_is_envoys() {
    use abi::{
        UD_REASON_CONNECTION as CONNECTION, UD_REASON_DUPLICATE as DUPLICATE, UD_REASON_FRAMING as FRAMING,
        UD_REASON_PATH as PATH, UD_REASON_POLICY as POLICY, UD_REASON_SYNTAX as SYNTAX, UD_REASON_TARGET as TARGET,
    };
    let mut trial = program();
    let lines = [
        // Framing that two readers might understand differently.
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", FRAMING),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", FRAMING),
        ("Transfer-Encoding: chunke\r\n", FRAMING),
        ("Transfer-Encoding: chunkee\r\n", FRAMING),
        ("Transfer-Encoding: gzip, chunked\r\n", FRAMING),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", DUPLICATE),
        ("Transfer-Encoding: identity\r\n", FRAMING),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", DUPLICATE),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", DUPLICATE),
        ("Content-Length: 5, 5\r\n", FRAMING),
        ("Content-Length: +5\r\n", FRAMING),
        ("Content-Length: -1\r\n", FRAMING),
        ("Content-Length: 0x5\r\n", FRAMING),
        ("Content-Length:\r\n", FRAMING),
        ("Content-Length: 9999999999999999\r\n", FRAMING),
        ("Content-Length : 5\r\n", SYNTAX),
        (" Content-Length: 5\r\n", SYNTAX),
        ("Content\0-Length: 5\r\n", SYNTAX),
        // Lines that do not end as they should, or go on.
        ("X-A: b\n", SYNTAX),
        ("X-A: b\r\r\n", SYNTAX),
        ("X-A: b\rX-B: c\r\n", SYNTAX),
        ("X-A: b\r\n c\r\n", SYNTAX),
        ("X-A: b\r\n\tc\r\n", SYNTAX),
        ("X-A: b\0c\r\n", SYNTAX),
        ("X-A: b\x7f\r\n", SYNTAX),
        ("X-A: \u{e4}\r\n", SYNTAX),
        ("X-A\r\n", SYNTAX),
        (": b\r\n", SYNTAX),
        ("X A: b\r\n", SYNTAX),
        ("\r", SYNTAX),
        // What changes the connection.
        ("Connection: close\r\n", CONNECTION),
        ("Connection: keep-alive, x-user\r\n", CONNECTION),
        ("Upgrade: websocket\r\n", CONNECTION),
        ("Expect: 100-continue\r\n", CONNECTION),
        ("TE: trailers\r\n", CONNECTION),
        ("X-Envoy-Retry-On: 5xx\r\n", CONNECTION),
        // What policies look at, twice.
        ("X-User: jason\r\nx-user: jason\r\n", DUPLICATE),
        ("Host: shop\r\n", DUPLICATE),
    ];
    for (lines, reason) in lines {
        let head = format!("POST /a HTTP/1.1\r\nHost: shop\r\n{lines}\r\n");
        let tried = decide(&mut trial, head.as_bytes());
        assert_eq!((tried.verdict, tried.reason), (abi::UD_ENVOY, reason), "{head:?}");
    }
    let firsts = [
        ("GET http://shop/ HTTP/1.1\r\nHost: shop", TARGET),
        ("OPTIONS * HTTP/1.1\r\nHost: shop", TARGET),
        ("CONNECT shop:80 HTTP/1.1\r\nHost: shop", SYNTAX),
        ("GET /#a HTTP/1.1\r\nHost: shop", TARGET),
        ("GET /\u{e4} HTTP/1.1\r\nHost: shop", TARGET),
        ("GET /%61 HTTP/1.1\r\nHost: shop", PATH),
        ("GET /a%2Fb HTTP/1.1\r\nHost: shop", PATH),
        ("GET /a%2e%2e HTTP/1.1\r\nHost: shop", PATH),
        ("GET /a%00 HTTP/1.1\r\nHost: shop", PATH),
        ("GET /a%2 HTTP/1.1\r\nHost: shop", PATH),
        ("GET /a%g0 HTTP/1.1\r\nHost: shop", PATH),
        ("GET /x/../a HTTP/1.1\r\nHost: shop", PATH),
        ("GET //a HTTP/1.1\r\nHost: shop", PATH),
        ("GET /a\\b HTTP/1.1\r\nHost: shop", PATH),
        ("GET /a HTTP/1.0\r\nHost: shop", SYNTAX),
        ("GET /a HTTP/1.1 \r\nHost: shop", SYNTAX),
        ("GET  /a HTTP/1.1\r\nHost: shop", TARGET),
        ("GET /a  HTTP/1.1\r\nHost: shop", SYNTAX),
        ("G\u{e4}T /a HTTP/1.1\r\nHost: shop", SYNTAX),
        ("get /a HTTP/1.1\r\nHost: shop", SYNTAX),
        ("GETS /a HTTP/1.1\r\nHost: shop", SYNTAX),
        ("\r\nGET /a HTTP/1.1\r\nHost: shop", SYNTAX),
        ("GET /a HTTP/1.1\nHost: shop", SYNTAX),
        ("GET /a HTTP/1.1\r\nX-A: b", SYNTAX),
        ("GET /a HTTP/1.1\r\nHost:", SYNTAX),
        ("PRI * HTTP/2.0\r\n\r\nSM", SYNTAX),
        ("GET /a HTTP/1.1\r\nHost: [::1]", POLICY),
        ("GET /a HTTP/1.1\r\nHost: shop:x", POLICY),
        ("GET /a HTTP/1.1\r\nHost: elsewhere", POLICY),
    ];
    for (first, reason) in firsts {
        let head = format!("{first}\r\n\r\n");
        let tried = decide(&mut trial, head.as_bytes());
        assert_eq!((tried.verdict, tried.reason), (abi::UD_ENVOY, reason), "{head:?}");
    }
}

#[test]
fn plain_forms_are_decided() {
    let mut trial = program();
    for head in [
        "GET /a HTTP/1.1\r\nHost: shop\r\n\r\n",
        "GET /a?b=%2f//../c HTTP/1.1\r\nHost: shop\r\n\r\n",
        "GET /a%20b/%C3%a9%3A HTTP/1.1\r\nHost: shop\r\n\r\n",
        "DELETE /a HTTP/1.1\r\nhOST:shop\r\n\r\n",
        "POST / HTTP/1.1\r\nHost:   SHOP:8080  \r\nContent-Length: 5\r\nConnection: Keep-Alive\r\n\r\nhello",
        "POST /a HTTP/1.1\r\nHost: shop\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nX-Empty:\r\nHost: shop.demo\r\nX-Empty:\r\n\r\nGET /next HTTP/1.1\r\n",
    ] {
        let head =
            if head.ends_with("..") { format!("{head} HTTP/1.1\r\nHost: shop\r\n\r\n") } else { head.to_owned() };
        let tried = decide(&mut trial, head.as_bytes());
        let len = head.find("\r\n\r\n").expect("an empty line") + 4;
        assert_eq!((tried.verdict, tried.len as usize), (abi::UD_FORWARD, len), "{head:?}");
    }
}

#[test]
fn a_part_of_a_head_waits_for_the_rest() {
    let mut trial = program();
    let head = "POST /a/b%20c?d=%65 HTTP/1.1\r\nHost: shop\r\nX-User: jason\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(decide(&mut trial, head.as_bytes()).verdict, abi::UD_FORWARD);
    for len in 0..head.len() {
        let tried = decide(&mut trial, &head.as_bytes()[..len]);
        // Neither decided nor refused.
        assert_eq!((tried.verdict, tried.reason, tried.len), (abi::UD_ENVOY, 0, 0), "{:?}", &head[..len]);
    }
}
