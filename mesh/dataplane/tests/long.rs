//! Long bodies, right to the last byte, and what comes behind them on the same connection. Needs root, Envoy, curl and
//! python3.

mod support;

use std::process::{Command, Stdio};

use support::backend::{Backend, pattern};
use support::client::Client;
use support::{Agent, WAYS, inside, start_with};
use underdeck_lab::tools::Tool;

const LONG: usize = 64 << 20;

/// The next request of this connection is the kernel's again.
fn is_in_kernel(client: &mut Client, agent: &Agent) {
    let before = agent.status().requests.kernel;
    assert_eq!(client.get("/size/1000").matches(1000), Ok(()));
    assert_eq!(agent.status().requests.kernel, before + 1, "{:#?}", agent.status());
}

#[test]
fn long_bodies_of_a_client_that_blocks() {
    let name = "long_bodies_of_a_client_that_blocks";
    inside(name, |group| {
        for more in WAYS {
            let backend = Backend::start();
            let (agent, service) = start_with(name, group, "127.91.0.1:80", backend.address, more);
            let mut client = Client::connect(service);
            let body = pattern(LONG);
            for path in ["size", "chunked"] {
                let response = client.get(&format!("/{path}/{LONG}"));
                // Not by `assert_eq`, which prints both.
                assert!(response.body == body, "{path} {more}: {:?}", response.matches(LONG));
                is_in_kernel(&mut client, &agent);
            }
            for path in ["/up", "/envoy"] {
                let text = client.post(path, &body).text();
                assert!(text.ends_with(&format!("|body {LONG} 1")), "{path} {more}: {text}");
                is_in_kernel(&mut client, &agent);
                client.send(
                    format!("POST {path} HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes(),
                );
                for piece in body.chunks(300_000) {
                    client.send(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
                }
                client.send(b"0\r\n\r\n");
                let text = client.receive(false).expect("an answer").text();
                assert!(text.ends_with(&format!("|body {LONG} 1")), "{path} {more}: {text}");
                is_in_kernel(&mut client, &agent);
            }
            let requests = agent.status().requests;
            assert_eq!([requests.kernel, requests.agent, requests.envoy], [2 + 6, 2, 2], "{more}: {requests:?}");
            agent.stop();
        }
    });
}

#[test]
fn long_bodies_of_a_client_that_does_not_block() {
    let name = "long_bodies_of_a_client_that_does_not_block";
    inside(name, |group| {
        // A small buffer takes few bytes of each send.
        for (more, buffer) in [(WAYS[0], 0), (WAYS[1], 0), (WAYS[0], 20_000)] {
            let backend = Backend::start();
            let (agent, service) = start_with(name, group, "127.91.0.2:80", backend.address, more);
            let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/long.py");
            let arguments = [program.to_owned(), service.to_string(), LONG.to_string(), buffer.to_string()];
            let done = Command::new("python3").args(arguments).output().expect("python3 runs");
            let status = agent.status();
            assert!(done.status.success(), "{more}: {}{status:#?}", String::from_utf8_lossy(&done.stderr));
            let requests = status.requests;
            // No request behind a long one went another way than those before it.
            assert_eq!([requests.kernel, requests.agent, requests.envoy], [50 + 2, 2, 0], "{more}: {requests:?}");
            agent.stop();
        }
    });
}

#[test]
fn long_bodies_of_curl() {
    let name = "long_bodies_of_curl";
    inside(name, |group| {
        let backend = Backend::start();
        let (agent, service) = start_with(name, group, "127.91.0.3:80", backend.address, "");
        let (from, to) = (agent.place.path().join("from"), agent.place.path().join("to"));
        std::fs::write(&from, pattern(LONG)).expect("ours");
        let body = format!("@{}", from.display());
        let (up, down) = (format!("http://{service}/up"), format!("http://{service}/size/{LONG}"));
        let (few, to) = (format!("http://{service}/size/1000"), to.display().to_string());
        let common = ["-sS", "--max-time", "120", "-H", "Host: shop.test", "-w", " %{num_connects}\n"];
        let requests: [&[&str]; 7] = [
            &["-H", "Expect:", "--data-binary", &body, &up],
            &["-o", "/dev/null", &few],
            &["-H", "Expect:", "-H", "Transfer-Encoding: chunked", "--data-binary", &body, &up],
            &["-o", "/dev/null", &few],
            &["-o", &to, &down],
            &["-o", "/dev/null", &few],
            &["-o", "/dev/null", &few],
        ];
        let mut curl = Command::new(Tool::Curl.path().expect("curl"));
        for (turn, request) in requests.iter().enumerate() {
            curl.args(if turn == 0 { &[][..] } else { &["--next"] }).args(common).args(*request);
        }
        let done = curl.stdin(Stdio::null()).output().expect("curl runs");
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{out}{err}");
        // All on one connection.
        let connects: Vec<_> = out.lines().map(|line| line.rsplit(' ').next().unwrap_or("")).collect();
        assert_eq!(connects, ["1", "0", "0", "0", "0", "0", "0"], "{out}");
        assert_eq!(out.matches(&format!("|body {LONG} 1 ")).count(), 2, "{out}");
        assert!(std::fs::read(&to).expect("curl wrote it") == pattern(LONG), "the bytes differ");
        let requests = agent.status().requests;
        assert_eq!([requests.kernel, requests.agent, requests.envoy], [5, 2, 0], "{requests:?}");
        agent.stop();
    });
}
