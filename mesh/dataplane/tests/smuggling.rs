//! Requests that can be read in two ways: what the endpoint and the client get is what they get through Envoy. Needs
//! root and Envoy.

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use support::backend::Backend;
use support::{Agent, Setup, inside};
use underdeck_lab::ports::Port;
use underdeck_lab::process::Process;
use underdeck_lab::tools::Tool;
use underdeck_lab::wait;
use underdeck_mesh_policy::envoy::{Bind, bootstrap};
use underdeck_mesh_policy::evaluate::Sender;
use underdeck_mesh_policy::read::{Source, read};

const POLICIES: &str = include_str!("policies/shop.yaml");

/// Behind each of them comes a request for `/second`.
const ODD: &[&str] = &[
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 5, 5\r\n\r\nhello",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nContent-Length: +5\r\n\r\nhello",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 0x5\r\n\r\nhello",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nContent-Length:\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nContent-Length : 5\r\n\r\nhello",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding:\tchunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\t\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n05\r\nhello\r\n00\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\n\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-trailer: y\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nContent-Length: 3\r\nx: y\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\rhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5;\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n0;x\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
    "GET /a HTTP/1.1\nHost: shop.test\n\n",
    "GET /a HTTP/1.1\r\nHost: shop.test\r\nX-A: b\nX-C: d\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: shop.test\r\nX-A: b\r\n c\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: shop.test\r\nX-A: b\0c\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: shop.test\r\nX-A\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: shop.test\r\n: b\r\n\r\n",
    "\r\nGET /a HTTP/1.1\r\nHost: shop.test\r\n\r\n",
    "GET  /a HTTP/1.1\r\nHost: shop.test\r\n\r\n",
    "GET /a HTTP/1.1 \r\nHost: shop.test\r\n\r\n",
    "GET /a HTTP/1.0\r\nHost: shop.test\r\n\r\n",
    "GET /a HTTP/1.1\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: shop.test\r\nHost: other.test\r\n\r\n",
    "GET http://shop.test/a HTTP/1.1\r\nHost: other.test\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 5\r\n\r\nhello",
    "GET /a HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: shop.test\r\nConnection: keep-alive, content-length\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: shop.test\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    "get /a HTTP/1.1\r\nHost: shop.test\r\n\r\n",
];

/// Envoy lets these through, as if the odd bytes were not there. Here they are refused.
const STRICTER: &[&str] = &[
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx: a\nb: c\r\n\r\n",
];

/// Status and what the endpoint says it saw, of each response, without what Envoy adds.
fn answers(address: SocketAddr, bytes: &str, cut: Option<usize>) -> Vec<String> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
    let (first, rest) = bytes.as_bytes().split_at(cut.unwrap_or(bytes.len()));
    // The other side may have closed its end after an error.
    let _ = stream.write_all(first).and_then(|()| stream.write_all(rest));
    let mut all = Vec::new();
    wait::until("the answers come, or the connection ends", Duration::from_secs(60), || {
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(0) => return Some(()),
            Ok(size) => all.extend_from_slice(&piece[..size]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return Some(()),
        }
        // The second one says what the endpoint saw, up to the end of its body.
        let text = String::from_utf8_lossy(&all);
        let second = text.rfind("GET /second ").map(|at| &text[at..]);
        second.is_some_and(|seen| seen.contains("|body ")).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error} after {bytes:?}: {:?}", String::from_utf8_lossy(&all)));
    let text = String::from_utf8_lossy(&all).into_owned();
    let ours = ["x-forwarded-proto", "x-request-id", "x-envoy", "host", "transfer-encoding"];
    let parts = text.split("HTTP/1.1 ").skip(1);
    parts
        .map(|part| {
            let status = part.get(..3).unwrap_or("").to_owned();
            let seen = part.split("\r\n\r\n").nth(1).unwrap_or("");
            let lines = seen.split('|').map(str::to_ascii_lowercase);
            let mut lines: Vec<_> = lines.filter(|line| !ours.iter().any(|name| line.starts_with(name))).collect();
            lines.sort();
            format!("{status} {}", if status == "200" { lines.join("|") } else { String::new() })
        })
        .collect()
}

/// Where the answers differ.
fn compare(odd: &str, ours: SocketAddr, theirs: SocketAddr) -> Vec<String> {
    let bytes = format!("{odd}GET /second HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    let there = answers(theirs, &bytes, None);
    let cuts = [None, Some(odd.len()), Some(odd.len() / 2)];
    let here = cuts.map(|cut| (cut, answers(ours, &bytes, cut)));
    let differ = here.iter().filter(|(_, here)| *here != there);
    differ.map(|(cut, here)| format!("{odd:?} cut at {cut:?}\n  Envoy {there:?}\n  here  {here:?}")).collect()
}

#[test]
fn odd_requests_end_as_they_end_with_envoy() {
    let name = "odd_requests_end_as_they_end_with_envoy";
    inside(name, |group| {
        let backend = Backend::start();
        let service: SocketAddr = "127.87.0.1:80".parse().expect("an address");
        let cluster = "shop.test||";
        let agent = Agent::start(&Setup {
            name,
            group,
            policies: POLICIES,
            services: &[service],
            endpoints: &[(cluster, backend.address)],
            more: "",
        });
        let policy = read(&[Source { name: "shop.yaml".into(), text: POLICIES.into() }]).policy;
        let port = Port::free().expect("a port");
        let bind = Bind {
            listener: "mesh".into(),
            address: port.addr(),
            sender: Sender { identity: None, labels: None, address: "127.0.0.1".parse().expect("an address") },
            destination: (service.ip(), service.port()),
        };
        let endpoints = BTreeMap::from([(cluster.to_owned(), vec![backend.address])]);
        let place = tempfile::tempdir().expect("a folder");
        let config = place.path().join("envoy.json");
        let text = bootstrap(&policy, std::slice::from_ref(&bind), &endpoints).config.to_string();
        std::fs::write(&config, text).expect("ours");
        let mut command = Command::new(Tool::Envoy.path().unwrap_or_else(|error| panic!("{error}: run lab/setup.sh")));
        command.arg("-c").arg(&config).args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]);
        let envoy = Process::spawn("envoy", place.path(), command).expect("Envoy starts");
        wait::until("Envoy listens", Duration::from_secs(60), || TcpStream::connect(bind.address).ok())
            .expect("it does");
        // Envoy waits a second before it closes a connection with an error.
        let (ours, theirs) = (service, bind.address);
        let threads: Vec<_> = ODD.iter().map(|odd| std::thread::spawn(move || compare(odd, ours, theirs))).collect();
        let differences: Vec<_> =
            threads.into_iter().flat_map(|thread| thread.join().expect("every connection ends")).collect();
        for odd in STRICTER {
            let second = "GET /second HTTP/1.1\r\nHost: shop.test\r\n\r\n";
            assert_eq!(answers(ours, &format!("{odd}{second}"), Some(odd.len() / 2)), ["400 "], "{odd:?}");
        }
        agent.stop();
        drop(envoy);
        assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    });
}
