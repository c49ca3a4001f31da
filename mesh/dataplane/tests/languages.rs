//! HTTP clients and servers of Go, Node and Python (requests), and nginx as the client. Needs root, Envoy, nginx; Go,
//! Node and requests where they are.

mod support;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::backend::{Backend, pattern};
use support::client::Client;
use support::nginx::Nginx;
use support::{Agent, inside, start, start_at};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");

/// A program in some language: what it is started with.
fn program(language: &str, place: &Path) -> Option<Command> {
    let source = Path::new(PROGRAMS).join(format!("shop.{language}"));
    let says = |program: &str, arguments: &[&str]| -> Option<String> {
        let done = Command::new(program).args(arguments).output().ok().filter(|done| done.status.success())?;
        Some(String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let minor = |text: String, before: &str| text.split(before).nth(1)?.split('.').next()?.trim().parse::<u32>().ok();
    match language {
        "go" => {
            if says("go", &["version"]).and_then(|text| minor(text, "go1.")) < Some(22) {
                eprintln!("SKIPPED: go 1.22 or later is not in PATH");
                return None;
            }
            let out = place.join("http");
            let mut build = Command::new("go");
            build.env("GOTOOLCHAIN", "local").env("GOPROXY", "off").arg("build").arg("-o").args([&out, &source]);
            assert!(build.status().expect("go runs").success(), "go build failed");
            Some(Command::new(out))
        }
        "mjs" => {
            if says("node", &["--version"]).and_then(|text| minor(text, "v")) < Some(18) {
                eprintln!("SKIPPED: node 18 or later is not in PATH");
                return None;
            }
            let mut command = Command::new("node");
            command.arg(source);
            Some(command)
        }
        _ => {
            let has = |python: &&str| says(python, &["-c", "import requests"]).is_some();
            let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has) else {
                panic!("python3 has no requests: run make setup");
            };
            let mut command = Command::new(python);
            command.arg(source);
            Some(command)
        }
    }
}

fn run_client(mut command: Command, service: SocketAddr, agent: &Agent) {
    let done = command.args(["client", &service.to_string()]).output().expect("the client runs");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}{err}\n{:#?}", agent.status());
    let reused = out.trim().strip_prefix("reused ").and_then(|count| count.parse::<u64>().ok());
    assert!(reused > Some(20), "connections are kept: {out}");
    let requests = agent.status().requests;
    assert!(requests.kernel > 20 && requests.answered > 20, "{requests:?}");
}

fn client(name: &str, language: &str, service: &str) {
    inside(name, |group| {
        let place = tempfile::tempdir().expect("a folder");
        let Some(command) = program(language, place.path()) else { return };
        let (_backend, agent, service) = start(name, group, service);
        run_client(command, service, &agent);
        agent.stop();
    });
}

#[test]
fn a_client_of_go() {
    client("a_client_of_go", "go", "127.89.0.1:80");
}

#[test]
fn a_client_of_node() {
    client("a_client_of_node", "mjs", "127.89.0.2:80");
}

#[test]
fn a_client_of_requests() {
    client("a_client_of_requests", "py", "127.89.0.3:80");
}

/// A server in some language, which ends when its standard input does.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(mut command: Command) -> Self {
        let mut child =
            command.arg("server").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the server runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("its address");
        Self { child, address: line.trim().parse().expect("its address") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn server(name: &str, language: &str, service: &str) {
    inside(name, |group| {
        let place = tempfile::tempdir().expect("a folder");
        let Some(command) = program(language, place.path()) else { return };
        let server = Server::start(command);
        let (agent, service) = start_at(name, group, service, server.address);
        let threads: Vec<_> = (0..8usize)
            .map(|thread| {
                std::thread::spawn(move || {
                    let mut client = Client::connect(service);
                    for turn in 0..25usize {
                        let size = if turn == 7 { 3_000_000 } else { (thread * 7919 + turn * 4099) % 150_000 };
                        assert_eq!(client.get(&format!("/size/{size}")).matches(size), Ok(()));
                        assert_eq!(client.get(&format!("/chunked/{size}")).matches(size), Ok(()));
                        let text = client.post("/up", &pattern(size)).text();
                        assert!(text.ends_with(&format!("body {size} 1")), "{text}");
                        assert_eq!(client.get("/forbidden").status, 403);
                        assert_eq!(client.get("/edited/a").text(), "GET /a HTTP/1.1|body 0 1");
                        assert_eq!(client.get("/envoy").status, 200);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("every client is content"));
        assert!(agent.status().responses.kernel > 200, "{:#?}", agent.status());
        agent.stop();
    });
}

#[test]
fn a_server_of_go() {
    server("a_server_of_go", "go", "127.89.0.4:80");
}

#[test]
fn a_server_of_node() {
    server("a_server_of_node", "mjs", "127.89.0.5:80");
}

#[test]
fn nginx_is_the_client() {
    let name = "nginx_is_the_client";
    inside(name, |group| {
        let backend = Backend::start();
        let (agent, service) = start_at(name, group, "127.89.0.6:80", backend.address);
        let upstream = format!("upstream shop {{ server {service}; keepalive 4; }}");
        let location = "location / { proxy_pass http://shop; proxy_http_version 1.1; proxy_set_header Connection \"\"; \
                        proxy_set_header Host shop.test; proxy_request_buffering off; }";
        let nginx = Nginx::start(&upstream, location);
        let threads: Vec<_> = (0..8usize)
            .map(|thread| {
                let address = nginx.address;
                std::thread::spawn(move || {
                    let mut client = Client::connect(address);
                    for turn in 0..30usize {
                        let size = if turn == 7 { 2_000_000 } else { (thread * 7919 + turn * 4099) % 150_000 };
                        assert_eq!(client.get(&format!("/size/{size}")).matches(size), Ok(()));
                        assert_eq!(client.get(&format!("/chunked/{size}")).matches(size), Ok(()));
                        let text = client.post("/up", &pattern(size)).text();
                        assert!(text.ends_with(&format!("body {size} 1")), "{text}");
                        assert_eq!(client.get("/forbidden").status, 403);
                        assert_eq!(client.get("/envoy").status, 200);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("every client is content"));
        let requests = agent.status().requests;
        assert!(requests.kernel > 200, "{requests:?}");
        agent.stop();
        drop(nginx);
    });
}
