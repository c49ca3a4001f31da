//! Clients and a server that people use: curl and Python's http.client, nginx. Needs root, Envoy, nginx, curl, python3.

mod support;

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::backend::pattern;
use support::client::Client;
use support::{Agent, inside, start_at};
use underdeck_lab::ports::Port;
use underdeck_lab::process::Process;
use underdeck_lab::tools::Tool;
use underdeck_lab::wait;

/// Few requests on each connection, so that nginx often closes one after a response.
const REQUESTS_PER_CONNECTION: u32 = 7;

struct Nginx {
    process: Process,
    address: SocketAddr,
    _port: Port,
    _place: tempfile::TempDir,
}

fn nginx() -> Nginx {
    let place = tempfile::tempdir().expect("a folder");
    let port = Port::free().expect("a port");
    let folder = place.path().display();
    for size in [1000usize, 50_000, 3_000_000] {
        std::fs::write(place.path().join(format!("{size}")), pattern(size)).expect("ours");
    }
    let address = port.addr();
    let config = format!(
        "daemon off; master_process off; user root; pid {folder}/pid; error_log {folder}/error;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; client_body_temp_path {folder}/body; client_max_body_size 64m;\n\
         proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n\
         keepalive_requests {REQUESTS_PER_CONNECTION};\n\
         server {{ listen {address}; root {folder}; location /say {{ return 200 \"$request_method $request_uri\"; }}\n\
         location /up {{ client_body_buffer_size 64m; proxy_pass http://{address}/say; }} }} }}\n"
    );
    std::fs::write(place.path().join("nginx.conf"), config).expect("ours");
    let mut command = Command::new(Tool::Nginx.path().unwrap_or_else(|error| panic!("{error}: run lab/setup.sh")));
    command.arg("-p").arg(place.path()).arg("-c").arg(place.path().join("nginx.conf"));
    command.arg("-e").arg(place.path().join("error"));
    let mut process = Process::spawn("nginx", place.path(), command).expect("nginx starts");
    wait::until("nginx listens", Duration::from_secs(20), || {
        assert!(process.exited().is_none(), "nginx ended:\n{}", process.stderr_tail());
        TcpStream::connect(address).ok()
    })
    .expect("nginx listens");
    Nginx { process, address, _port: port, _place: place }
}

fn start(name: &str, group: &Path, service: &str) -> (Nginx, Agent, SocketAddr) {
    let nginx = nginx();
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
        nginx.process.stop().expect("nginx ends");
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
        nginx.process.stop().expect("nginx ends");
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
        first.process.stop().expect("nginx ends");
        let response = client.get("/1000");
        assert_eq!(response.status, 503, "{}", response.text());
        agent.until("no connection to it is left", |status| status.upstreams[0].connections == 0);
        agent.stop();
    });
}
