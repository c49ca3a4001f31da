//! Clients and a server that people use: curl and Python's http.client, nginx. Needs root, Envoy, nginx, curl, python3.

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use support::backend::pattern;
use support::client::Client;
use support::nginx::Nginx;
use support::{Agent, inside, start_at};
use underdeck_lab::tools::Tool;
use underdeck_lab::wait;

fn start(name: &str, group: &Path, service: &str) -> (Nginx, Agent, SocketAddr) {
    let nginx = Nginx::of_files();
    let (agent, service) = start_at(name, group, service, nginx.address);
    (nginx, agent, service)
}

fn curl(service: SocketAddr, arguments: &[&str]) -> String {
    let mut command = Command::new(Tool::Curl.path().expect("curl"));
    command.args(["-sS", "--max-time", "20", "-H", "Host: shop.test"]);
    let arguments: Vec<_> = arguments.iter().map(|text| text.replace("SERVICE", &service.to_string())).collect();
    let done = command.args(arguments).output().expect("curl runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn curl_gets_what_nginx_says() {
    inside("curl_gets_what_nginx_says", |group| {
        let (nginx, agent, service) = start("curl_gets_what_nginx_says", group, "127.85.0.1:80");
        assert_eq!(curl(service, &["http://SERVICE/say/a?b=c"]), "GET /say/a?b=c");
        assert_eq!(curl(service, &["http://SERVICE/edited/say/a"]), "GET /say/a");
        // One connection of curl: kernel, agent, answer, Envoy and kernel again.
        let code = ["-o", "/dev/null", "-w", "%{http_code} %{size_download} %{num_connects}\\n"];
        let mut arguments = Vec::new();
        for path in ["1000", "50000", "3000000", "forbidden", "old", "envoy", "response/x", "say", "1000", "50000"] {
            arguments.extend(code);
            arguments.push(Box::leak(format!("http://SERVICE/{path}").into_boxed_str()));
            arguments.push("--next");
            arguments.extend(["-sS", "-H", "Host: shop.test"]);
        }
        arguments.truncate(arguments.len() - 4);
        let said = curl(service, &arguments);
        let lines: Vec<_> = said.lines().collect();
        let sizes = ["200 1000 1", "200 50000 0", "200 3000000 0", "403 7 0", "301 0 0"];
        assert_eq!(&lines[..5], sizes, "{said}");
        assert_eq!(&lines[7..], ["200 8 0", "200 1000 0", "200 50000 0"], "{said}");
        // Uploads; from 1 MiB on, curl expects 100 Continue.
        for size in [10usize, 60_000, 200_000, 3_000_000] {
            let file = agent.place.path().join("upload");
            std::fs::write(&file, pattern(size)).expect("ours");
            let from = format!("@{}", file.display());
            assert_eq!(curl(service, &["--data-binary", &from, "http://SERVICE/up"]), "POST /say", "{size} bytes");
            let chunked = ["-H", "Transfer-Encoding: chunked", "--data-binary", &from, "http://SERVICE/up"];
            assert_eq!(curl(service, &chunked), "POST /say", "{size} bytes in chunks");
        }
        assert!(agent.status().requests.kernel > 5);
        agent.stop();
        drop(nginx);
    });
}

#[test]
fn python_keeps_its_connection_while_nginx_closes_its_own() {
    const SCRIPT: &str = r#"
import http.client, sys
host, port = sys.argv[1].split(':')
connection = http.client.HTTPConnection(host, int(port), timeout=20)
connection.connect()
socket = connection.sock
for turn in range(100):
    body = None if turn % 3 else b'x' * (turn * 700)
    method, path = ('GET', '/say/%d' % turn) if body is None else ('POST', '/up')
    connection.request(method, path, body=body, headers={'Host': 'shop.test'})
    response = connection.getresponse()
    text = response.read().decode()
    want = 'GET /say/%d' % turn if body is None else 'POST /say'
    assert (response.status, text) == (200, want), (turn, response.status, text)
    assert connection.sock is socket, 'the connection was closed'
"#;
    inside("python_keeps_its_connection_while_nginx_closes_its_own", |group| {
        let name = "python_keeps_its_connection_while_nginx_closes_its_own";
        let (nginx, agent, service) = start(name, group, "127.85.0.2:80");
        let done = Command::new("python3").args(["-c", SCRIPT, &service.to_string()]).output().expect("python3 runs");
        assert!(done.status.success(), "{}\n{:#?}", String::from_utf8_lossy(&done.stderr), agent.status());
        let status = agent.status();
        assert!(status.requests.kernel >= 80 && status.requests.envoy == 0, "{status:#?}");
        agent.stop();
        drop(nginx);
    });
}

#[test]
fn an_endpoint_that_is_restarted_under_load() {
    let name = "an_endpoint_that_is_restarted_under_load";
    inside(name, |group| {
        let (mut nginx, agent, service) = start(name, group, "127.85.0.4:80");
        let (stop, whole) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..8usize)
            .map(|thread| {
                let (stop, whole) = (stop.clone(), whole.clone());
                let size = [1000, 50_000, 3_000_000, 1000][thread % 4];
                std::thread::spawn(move || {
                    let (mut client, mut unavailable) = (Client::connect(service), 0u64);
                    while !stop.load(Ordering::Relaxed) {
                        let request = format!("GET /{size} HTTP/1.1\r\nHost: shop.test\r\n\r\n");
                        // The connection to the agent is well: that one to the endpoint broke is not the application's business.
                        client.send(request.as_bytes());
                        match client.receive(false) {
                            Some(response) if response.status == 503 => unavailable += 1,
                            Some(response) => {
                                assert_eq!((response.status, response.matches(size)), (200, Ok(())));
                                whole.fetch_add(1, Ordering::Relaxed);
                            }
                            // In the middle of a response.
                            None => {
                                assert!(!client.has_waited(), "neither an answer nor an end");
                                client = Client::connect(service);
                            }
                        }
                    }
                    unavailable
                })
            })
            .collect();
        let more = |count: u64| {
            let before = whole.load(Ordering::Relaxed);
            let more = wait::until("requests are answered", Duration::from_secs(60), || {
                (whole.load(Ordering::Relaxed) > before + count).then_some(())
            });
            more.expect("requests are answered");
        };
        for _ in 0..3 {
            more(200);
            nginx = nginx.restart();
        }
        more(500);
        stop.store(true, Ordering::Relaxed);
        let unavailable: u64 = threads.into_iter().map(|thread| thread.join().expect("all was right")).sum();
        // The kernel has connections again.
        let before = agent.status().requests.kernel;
        let mut client = Client::connect(service);
        agent.until("the pool is full again", |status| status.upstreams[0].connections >= 8);
        for _ in 0..20 {
            assert_eq!(client.get("/1000").matches(1000), Ok(()));
        }
        let status = agent.status();
        assert!(status.requests.kernel > before && unavailable > 0, "{unavailable} {status:#?}");
        agent.stop();
        drop(nginx);
    });
}

#[test]
fn an_endpoint_that_is_stopped_is_a_503() {
    inside("an_endpoint_that_is_stopped_is_a_503", |group| {
        let (first, agent, service) = start("an_endpoint_that_is_stopped_is_a_503", group, "127.85.0.3:80");
        let mut client = Client::connect(service);
        for _ in 0..20 {
            assert_eq!(client.get("/1000").matches(1000), Ok(()));
        }
        drop(first);
        let response = client.get("/1000");
        assert_eq!(response.status, 503, "{}", response.text());
        agent.until("no connection to it is left", |status| status.upstreams[0].connections == 0);
        agent.stop();
    });
}
