//! What http1 makes of whole exchanges, one by one.

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is compared")]

mod common;

use common::{Connection, cut_requests, cut_responses, shipped};
use underdeck_protocols::{Place, Role, UNTIL_CLOSE};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const HEAD: &str = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
const CONNECT: &str = "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n";
const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const OK: Place = Place::Metadata;

/// Requests, responses, payload of the responses, and where the responses stand then.
type Exchange<'a> = (&'a str, &'a str, &'a [&'a str], Place);

const RESPONSES: &[Exchange<'_>] = &[
    (GET, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", &["hello"], OK),
    (GET, "HTTP/1.1 200 OK\r\ncONTENT-lENGTH:  5  \r\n\r\nhel", &["hel"], Place::Opaque(2)),
    (GET, "HTTP/1.1 200\r\nContent-Length: 005\r\n\r\nhello", &["hello"], OK),
    (GET, "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", &[], OK),
    (GET, "HTTP/1.0 200 OK\r\n\r\nall", &["all"], Place::Opaque(UNTIL_CLOSE)),
    (GET, "HTTP/1.1 200 OK\r\n\r\n", &[], Place::Opaque(UNTIL_CLOSE)),
    (
        GET,
        "HTTP/1.1 200 OK\r\nX-Content-Length: 5\r\nContent-Lengthy: 3\r\nContent-Lengtx: 7\r\n\r\nall",
        &["all"],
        Place::Opaque(UNTIL_CLOSE),
    ),
    (GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", &["hello"], OK),
    (
        GET,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5;a=b;c=d;e\r\nhello\r\n00A\r\n0123456789\r\n0;x\r\nX-Sum: 1\r\nY: 2\r\n\r\n",
        &["hello", "0123456789"],
        OK,
    ),
    (
        GET,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\"b\";c=\"\";d=e\r\nhello\r\n0;f=\"g\"\r\n\r\n",
        &["hello"],
        OK,
    ),
    (HEAD, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", &[], OK),
    (HEAD, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &[], OK),
    (HEAD, "HTTP/1.1 200 OK\r\n\r\n", &[], OK),
    (GET, "HTTP/1.1 204 No Content\r\n\r\n", &[], OK),
    (GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", &[], OK),
    (
        GET,
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        &["hi"],
        OK,
    ),
    (HEAD, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", &[], OK),
    (
        UPGRADE,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nframes",
        &["frames"],
        Place::Opaque(UNTIL_CLOSE),
    ),
    (UPGRADE, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", &["hi"], OK),
    (CONNECT, "HTTP/1.1 200 Established\r\n\r\ntls", &["tls"], Place::Opaque(UNTIL_CLOSE)),
    (CONNECT, "HTTP/1.1 407 No\r\nContent-Length: 2\r\n\r\nno", &["no"], OK),
    ("", "HTTP/1.1 408 Request Timeout\r\nContent-Length: 2\r\n\r\nno", &["no"], OK),
    (
        "HEAD / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\nHEAD / HTTP/1.0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
        &["hi"],
        OK,
    ),
];

#[test]
fn responses() {
    let http1 = shipped("http1");
    for &(requests, responses, payload, place) in RESPONSES {
        for split in 0..=responses.len() {
            let (cuts, passed) = cut_responses(&http1, requests.as_bytes(), responses.as_bytes(), &[split]);
            let expected: Vec<&[u8]> = payload.iter().map(|piece| piece.as_bytes()).collect();
            assert_eq!(cuts.payload(responses.as_bytes()), expected, "{responses:?} split at {split}");
            assert_eq!(cuts.place, Some(place), "{responses:?} split at {split}");
            assert!(!passed, "{responses:?} split at {split}");
        }
    }
}

const REQUESTS: &[(&str, &[&str])] = &[
    (GET, &[]),
    ("\r\n\r\nGET / HTTP/1.0\r\n\r\n", &[]),
    ("GET http://a/b?c=d&e=%20 HTTP/1.1\r\nCookie: a=b; c=d\r\n\r\n", &[]),
    ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcPOST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", &["abc"]),
    ("PUT / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", &["abc"]),
    (
        "M-SEARCH * HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        &["abc", "d"],
    ),
    ("GET / HTTP/1.1\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi", &["hi"]),
];

#[test]
fn requests() {
    let http1 = shipped("http1");
    for &(requests, payload) in REQUESTS {
        for split in 0..=requests.len() {
            let (cuts, passed) = cut_requests(&http1, requests.as_bytes(), &[split]);
            let expected: Vec<&[u8]> = payload.iter().map(|piece| piece.as_bytes()).collect();
            assert_eq!(cuts.payload(requests.as_bytes()), expected, "{requests:?} split at {split}");
            assert!(!passed, "{requests:?} split at {split}");
        }
    }
}

#[test]
fn lines_longer_than_the_window() {
    let http1 = shipped("http1");
    for long in [200, 239, 240, 241, 242, 243, 244, 245, 246, 254, 255, 256, 257, 511, 512, 513, 4000] {
        let long = "x".repeat(long);
        let request = format!(
            "POST /{long} HTTP/1.1\r\nCookie: {long}\r\nContent-Length: 3\r\nReferer: {long}\r\n\r\nabcGET / HTTP/1.1\r\n\r\n"
        );
        let response = format!(
            "HTTP/1.1 200 OK\r\nSet-Cookie: {long}\r\nTransfer-Encoding: chunked\r\nX: {long}\r\n\r\n3\r\nabc\r\n0\r\nT: {long}\r\n\r\n"
        );
        for split in (0..response.len()).step_by(7) {
            let (cuts, passed) = cut_requests(&http1, request.as_bytes(), &[split]);
            assert!(!passed, "{} split at {split}", long.len());
            assert_eq!(cuts.payload(request.as_bytes()), [b"abc"]);
            let (cuts, passed) = cut_responses(&http1, GET.as_bytes(), response.as_bytes(), &[split]);
            assert!(!passed, "{} split at {split}", long.len());
            assert_eq!(cuts.payload(response.as_bytes()), [b"abc"]);
        }
    }
}

#[test]
fn both_directions_become_a_tunnel() {
    let http1 = shipped("http1");
    for (request, response) in
        [(UPGRADE, "HTTP/1.1 101 Switching Protocols\r\n\r\n"), (CONNECT, "HTTP/1.1 200 Established\r\n\r\n")]
    {
        let mut connection = Connection::new(&http1, Role::Client);
        connection.request(request.as_bytes());
        connection.response(response.as_bytes());
        connection.request(b"GET /\0");
        connection.response(b"\xff\0");
        assert_eq!(connection.requests().opaque, [request.len()..request.len() + 6]);
        assert_eq!(connection.responses().opaque, [response.len()..response.len() + 2]);
        assert!(!connection.state.is_passed());
    }
}

#[test]
fn a_tunnel_waits_for_the_request_that_is_under_way() {
    let http1 = shipped("http1");
    let mut connection = Connection::new(&http1, Role::Client);
    let head = "POST /chat HTTP/1.1\r\nUpgrade: x\r\nContent-Length: 4\r\n\r\n";
    connection.request(head.as_bytes());
    connection.request(b"ab");
    connection.response(b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
    assert_eq!(connection.responses().place, Some(Place::Opaque(UNTIL_CLOSE)));
    connection.request(b"cdframes");
    assert_eq!(connection.requests().opaque, [head.len()..head.len() + 10]);
}

#[test]
fn what_follows_an_undecided_request_is_not_guessed() {
    let http1 = shipped("http1");
    for request in [UPGRADE, CONNECT] {
        let mut connection = Connection::new(&http1, Role::Client);
        connection.request(request.as_bytes());
        connection.request(GET.as_bytes());
        assert!(connection.state.is_passed(), "{request:?}");
        let mut connection = Connection::new(&http1, Role::Client);
        connection.request(request.as_bytes());
        connection.response(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n");
        connection.request(GET.as_bytes());
        assert!(!connection.state.is_passed(), "{request:?}");
    }
}

#[test]
fn an_early_response_leaves_the_request_body_alone() {
    let http1 = shipped("http1");
    let mut connection = Connection::new(&http1, Role::Server);
    let (rx, tx) = (underdeck_protocols::Direction::Rx, underdeck_protocols::Direction::Tx);
    connection.feed(rx, b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nab");
    connection.feed(tx, b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno");
    connection.feed(rx, b"cdGET / HTTP/1.1\r\n\r\n");
    assert_eq!(connection.cuts[0].opaque, [38..42]);
    assert_eq!(connection.cuts[1].opaque, [38..40]);
    assert!(!connection.state.is_passed());
}

#[test]
fn pipelining_is_bounded() {
    let http1 = shipped("http1");
    let mut connection = Connection::new(&http1, Role::Client);
    connection.request(GET.repeat(32).as_bytes());
    assert!(!connection.state.is_passed());
    connection.response("HTTP/1.1 304 x\r\n\r\n".repeat(5).as_bytes());
    connection.request(HEAD.repeat(5).as_bytes());
    connection.response("HTTP/1.1 304 x\r\n\r\n".repeat(27).as_bytes());
    connection.response("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n".repeat(5).as_bytes());
    assert!(!connection.state.is_passed());
    assert_eq!(connection.responses().opaque, []);
    connection.request(GET.repeat(33).as_bytes());
    assert!(connection.state.is_passed());
}

#[test]
fn a_response_before_its_request_is_known_is_a_pass() {
    let http1 = shipped("http1");
    for begun in ["HEAD /", "HEAD / HTTP/1.1\r\n", "HEAD / HTTP/1.1\r\nHost: a\r\n"] {
        let mut connection = Connection::new(&http1, Role::Client);
        connection.request(begun.as_bytes());
        connection.response(b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\n");
        assert!(connection.state.is_passed() && connection.responses().opaque.is_empty(), "{begun:?}");
    }
}
