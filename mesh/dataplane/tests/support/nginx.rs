//! nginx, in front of or behind the data plane.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use underdeck_lab::ports::Port;
use underdeck_lab::process::Process;
use underdeck_lab::tools::Tool;
use underdeck_lab::wait;

use super::backend::pattern;

/// Few requests on each connection, so that nginx often closes one after a response.
const REQUESTS_PER_CONNECTION: u32 = 7;

pub struct Nginx {
    pub process: Process,
    pub address: SocketAddr,
    _port: Port,
    place: tempfile::TempDir,
}

impl Nginx {
    /// A server of files.
    pub fn of_files() -> Self {
        let say = "return 200 \"$request_method $request_uri\";";
        let up = "client_body_buffer_size 64m; proxy_pass http://ADDRESS/say;";
        let few = format!("keepalive_requests {REQUESTS_PER_CONNECTION};");
        Self::start("", &format!("{few} location /say {{ {say} }} location /up {{ {up} }}"))
    }

    /// `http`: what stands beside the server; `server`: what stands in it, with ADDRESS for its own.
    pub fn start(http: &str, server: &str) -> Self {
        let place = tempfile::tempdir().expect("a folder");
        let port = Port::free().expect("a port");
        let address = port.addr();
        let folder = place.path().display();
        for size in [1000usize, 50_000, 3_000_000] {
            std::fs::write(place.path().join(format!("{size}")), pattern(size)).expect("ours");
        }
        let config = format!(
            "daemon off; master_process off; user root; pid {folder}/pid; error_log {folder}/error;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; client_body_temp_path {folder}/body; client_max_body_size 64m;\n\
             proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n\
             {http}\n\
             server {{ listen {address}; root {folder}; {} }} }}\n",
            server.replace("ADDRESS", &address.to_string()),
        );
        std::fs::write(place.path().join("nginx.conf"), config).expect("ours");
        Self { process: spawn(place.path(), address), address, _port: port, place }
    }

    /// Ends it, and starts it again at the same address.
    pub fn restart(self) -> Self {
        // A busy machine may need longer than the fixture waits: then it was killed.
        let _ = self.process.stop();
        Self { process: spawn(self.place.path(), self.address), ..self }
    }
}

fn spawn(place: &Path, address: SocketAddr) -> Process {
    let mut command = Command::new(Tool::Nginx.path().unwrap_or_else(|error| panic!("{error}: run lab/setup.sh")));
    command.arg("-p").arg(place).arg("-c").arg(place.join("nginx.conf"));
    command.arg("-e").arg(place.join("error"));
    let mut process = Process::spawn("nginx", place, command).expect("nginx starts");
    wait::until("nginx listens", Duration::from_secs(60), || {
        assert!(process.exited().is_none(), "nginx ended:\n{}", process.stderr_tail());
        TcpStream::connect(address).ok()
    })
    .expect("nginx listens");
    process
}
