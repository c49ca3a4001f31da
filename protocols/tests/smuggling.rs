//! Messages that two implementations have framed differently. All of them must be left alone before anything in them is
//! called opaque.

mod common;

use common::{cut_requests, cut_responses, shipped};

/// Header fields (and what follows them) that make the framing ambiguous.
const FRAMING: &[&str] = &[
    // Both, in either order.
    "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\nG\r\n0\r\n\r\n",
    // More than one length.
    "Content-Length: 6\r\nContent-Length: 7\r\n\r\nabcdefg",
    "Content-Length: 6\r\nContent-Length: 6\r\n\r\nabcdef",
    "Content-Length: 6, 6\r\n\r\nabcdef",
    "Content-Length: 6,7\r\n\r\nabcdefg",
    // Lengths that are none.
    "Content-Length: +6\r\n\r\nabcdef",
    "Content-Length: -6\r\n\r\nabcdef",
    "Content-Length: 0x6\r\n\r\nabcdef",
    "Content-Length: 6 6\r\n\r\nabcdef",
    "Content-Length: 6.0\r\n\r\nabcdef",
    "Content-Length: \r\n\r\nabcdef",
    "Content-Length:\r\n\r\nabcdef",
    "Content-Length: a\r\n\r\nabcdef",
    "Content-Length: 18446744073709551616\r\n\r\nabcdef",
    "Content-Length: 18446744073709551622\r\n\r\nabcdef",
    "Content-Length: 9223372036854775808\r\n\r\nabcdef",
    "Content-Length: 340282366920938463463374607431768211462\r\n\r\nabcdef",
    "Content-Length: \"6\"\r\n\r\nabcdef",
    "Content-Length: 6\u{b}\r\n\r\nabcdef",
    "Content-Length: 6\t\r\n\r\nabcdef",
    "Content-Length:\t6\r\n\r\nabcdef",
    "Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n",
    // Codings that are not exactly chunked.
    "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunkedx\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding:\u{b}chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding:\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding\r\n : chunked\r\n\r\n0\r\n\r\n",
    // Names that are none.
    "Content-Length : 6\r\n\r\nabcdef",
    "Content-Length\t: 6\r\n\r\nabcdef",
    "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    " Content-Length: 6\r\n\r\nabcdef",
    "Content-Length\0: 6\r\n\r\nabcdef",
    "Content Length: 6\r\n\r\nabcdef",
    ": 6\r\n\r\nabcdef",
    "Content-Length\r\n\r\nabcdef",
    "X(y): 6\r\nContent-Length: 6\r\n\r\nabcdef",
    "\u{c4}: 6\r\nContent-Length: 6\r\n\r\nabcdef",
    // obs-fold.
    "X: a\r\n b\r\nContent-Length: 6\r\n\r\nabcdef",
    "Content-Length:\r\n 6\r\n\r\nabcdef",
    "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\tx\r\n\r\n0\r\n\r\n",
    // Line ends that are none.
    "X: a\nContent-Length: 6\r\n\r\nabcdef",
    "X: a\rContent-Length: 6\r\n\r\nabcdef",
    "Content-Length: 6\r\n\nabcdef",
    "Content-Length: 6\n\nabcdef",
    "Content-Length: 6\r\r\n\r\nabcdef",
    "X: a\0\r\nContent-Length: 6\r\n\r\nabcdef",
    "X: a\u{7f}\r\nContent-Length: 6\r\n\r\nabcdef",
    // Chunk sizes that are none.
    "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n\t5\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5 ;a\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5_0\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5;a\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n;a\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5\rhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n00000000000000005\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5;a=\"b\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5;a=\"b\"c\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5;a=\"\\\"\"\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5;\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5;a=\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5; a\r\nhello\r\n0\r\n\r\n",
    // Framing in trailers.
    "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n0\r\nX\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n0\r\n X: y\r\n\r\n",
];

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

#[test]
fn ambiguous_framing_is_left_alone() {
    let http1 = shipped("http1");
    for framing in FRAMING {
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}GET / HTTP/1.1\r\n\r\n");
        let response = format!("HTTP/1.1 200 OK\r\nServer: a\r\n{framing}HTTP/1.1 200 OK\r\n\r\n");
        for split in 0..response.len() {
            let (cuts, passed) = cut_requests(&http1, request.as_bytes(), &[split]);
            assert!(passed && cuts.opaque.is_empty(), "{request:?} split at {split}: {cuts:?}");
            let (cuts, passed) = cut_responses(&http1, GET, response.as_bytes(), &[split]);
            assert!(passed && cuts.opaque.is_empty(), "{response:?} split at {split}: {cuts:?}");
        }
    }
}

const REQUESTS: &[&str] = &[
    "GET /\r\n\r\n",
    "GET / HTTP/0.9\r\n\r\n",
    "GET / HTTP/1.2\r\n\r\n",
    "GET / HTTP/2.0\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "GET / http/1.1\r\n\r\n",
    "GET / HTTP/1.1 \r\n\r\n",
    "GET / HTTP/1.1\n\n",
    "GET  / HTTP/1.1\r\n\r\n",
    "GET\t/ HTTP/1.1\r\n\r\n",
    "GET /  HTTP/1.1\r\n\r\n",
    "GET /a b HTTP/1.1\r\n\r\n",
    "GET /\0 HTTP/1.1\r\n\r\n",
    " GET / HTTP/1.1\r\n\r\n",
    "\nGET / HTTP/1.1\r\n\r\n",
    "\rGET / HTTP/1.1\r\n\r\n",
    "get / HTTP/1.1\r\n\r\n",
    "G@T / HTTP/1.1\r\n\r\n",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ / HTTP/1.1\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\n",
    "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}",
    "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "GET a HTTP/1.1\r\n\r\n",
    "GET 1/2 HTTP/1.1\r\n\r\n",
    "GET *a HTTP/1.1\r\n\r\n",
    "GET htt HTTP/1.1\r\n\r\n",
    "GET ftp://a/ HTTP/1.1\r\n\r\n",
    "CONNECT a:1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    "CONNECT a:1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
];

#[test]
fn requests_that_are_none_are_left_alone() {
    let http1 = shipped("http1");
    for request in REQUESTS {
        for split in 0..request.len() {
            let (cuts, passed) = cut_requests(&http1, request.as_bytes(), &[split]);
            assert!(passed && cuts.opaque.is_empty(), "{request:?} split at {split}: {cuts:?}");
        }
    }
}

/// Request, response.
const RESPONSES: &[(&str, &str)] = &[
    ("GET", "HTTP/1.2 200 OK\r\n\r\n"),
    ("GET", "HTTP/2 200\r\n\r\nxxxxx"),
    ("GET", "ICY 200 OK\r\n\r\n"),
    ("GET", "\r\nHTTP/1.1 200 OK\r\n\r\n"),
    ("GET", "HTTP/1.1  200 OK\r\n\r\n"),
    ("GET", "HTTP/1.1 20 OK\r\n\r\nxx"),
    ("GET", "HTTP/1.1 2000 OK\r\n\r\n"),
    ("GET", "HTTP/1.1 099 OK\r\n\r\n"),
    ("GET", "HTTP/1.1 600 OK\r\n\r\n"),
    ("GET", "HTTP/1.1 200 OK\n\n"),
    ("GET", "HTTP/1.1 200 O\0K\r\n\r\n"),
    ("GET", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("GET", "HTTP/1.1 204 OK\r\nContent-Length: 3\r\n\r\nabc"),
    ("GET", "HTTP/1.1 204 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("GET", "HTTP/1.1 100 OK\r\nContent-Length: 3\r\n\r\nabc"),
    ("GET", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nabc"),
    ("CONNECT", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"),
    ("CONNECT", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("CONNECT", "HTTP/1.1 101 Switching Protocols\r\n\r\nabc"),
];

#[test]
fn responses_that_are_none_are_left_alone() {
    let http1 = shipped("http1");
    for (method, response) in RESPONSES {
        let request = format!("{method} {} HTTP/1.1\r\n\r\n", if *method == "GET" { "/" } else { "a:1" });
        for split in 0..response.len() {
            let (cuts, passed) = cut_responses(&http1, request.as_bytes(), response.as_bytes(), &[split]);
            assert!(passed && cuts.opaque.is_empty(), "{response:?} split at {split}: {cuts:?}");
        }
    }
}

#[test]
fn long_lines_that_matter_are_left_alone() {
    let http1 = shipped("http1");
    let blanks = " ".repeat(300);
    for line in [
        format!("Content-Length:{blanks}6\r\n\r\nabcdef"),
        format!("Content-Length: 6{blanks}\r\n\r\nabcdef"),
        format!("Transfer-Encoding:{blanks}chunked\r\n\r\n0\r\n\r\n"),
        format!("{}: 6\r\n\r\nabcdef", "x".repeat(300)),
        format!("Transfer-Encoding: chunked\r\n\r\n5;{blanks}\r\nhello\r\n0\r\n\r\n"),
        format!("X: {blanks}\0{blanks}\r\n\r\n"),
        format!("X: {blanks}\n{blanks}\r\n\r\n"),
        format!("X: {blanks}\r{blanks}\r\n\r\n"),
    ] {
        let request = format!("POST / HTTP/1.1\r\n{line}");
        for split in 0..request.len() {
            let (cuts, passed) = cut_requests(&http1, request.as_bytes(), &[split]);
            assert!(passed && cuts.opaque.is_empty(), "{request:?} split at {split}: {cuts:?}");
        }
    }
}
