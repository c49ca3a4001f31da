//! Underdeck installed in the directory of an ordinary user, and proxies that this user starts by `underdeck run`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use underdeck_lab::backend::Backend;
use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::Front;
use underdeck_lab::process::{Process, signal_pid};
use underdeck_lab::tools::{self, Tool};
use underdeck_lab::twin::{Exchange, Observation, Side, Step, judge, observe};
use underdeck_lab::{proc, wait};

/// Longer than anything takes that works.
pub const WITHIN: Duration = Duration::from_secs(40);
/// `nobody`, which has no rights at all. Tests that do not run as root run everything as whoever they are.
const NOBODY: u32 = 65_534;

/// A directory of an ordinary user, with the command and the library as an installation has them.
#[derive(Debug)]
pub struct Home {
    dir: TempDir,
    is_other: bool,
}

impl Home {
    /// Makes one.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("underdeck-user-").tempdir().expect("a directory");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        for folder in ["bin", "lib/underdeck", "temp"] {
            std::fs::create_dir_all(dir.path().join(folder)).expect("ours");
        }
        let it = Self { dir, is_other: rustix::process::geteuid().is_root() };
        let library = tools::library().unwrap_or_else(|error| panic!("{error}"));
        std::fs::copy(library, it.path().join("lib/underdeck/libunderdeck_anchor.so")).expect("a copy");
        let command = tools::underdeck().unwrap_or_else(|error| panic!("{error}"));
        it.install(&command, "underdeck");
        if it.is_other {
            for folder in [it.path().to_owned(), it.path().join("temp")] {
                chown(folder, Some(NOBODY), Some(NOBODY)).expect("we are root");
            }
        }
        it
    }

    /// Gives the user a program, which may lie where others may not look.
    fn install(&self, program: &Path, name: &str) -> PathBuf {
        let own = self.path().join("bin").join(name);
        if !own.exists() {
            // It may be large; another name of it does where the file system allows that.
            std::fs::hard_link(program, &own).or_else(|_| std::fs::copy(program, &own).map(|_| ())).expect("a copy");
        }
        own
    }

    /// A program of the lab.
    pub fn tool(&self, tool: Tool) -> PathBuf {
        let path = tool.path().unwrap_or_else(|error| panic!("{error}"));
        self.install(&path, &format!("{tool:?}").to_lowercase())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A program as this user starts it.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.path()).env("XDG_RUNTIME_DIR", self.path());
        if self.is_other {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// `underdeck ARGUMENTS` as this user types it.
    pub fn underdeck(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(self.path().join("bin/underdeck"));
        command.args(arguments);
        command
    }

    /// What `underdeck ARGUMENTS` says; it must succeed.
    pub fn said(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.underdeck(arguments).output().expect("it starts");
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "underdeck {arguments:?}: {status}: {stdout}{stderr}");
        stdout
    }

    /// Writes a configuration; returns its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("ours");
        path
    }

    /// Writes `nginx.conf` and starts `underdeck run -- nginx` in the foreground.
    pub fn nginx(&self, main: &str, http: &str) -> Process {
        let command = self.nginx_command(&format!("daemon off; {main}"), http);
        Process::spawn("nginx", self.path(), command).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Writes `nginx.conf`: one worker, everything in this directory. Returns `underdeck run -- nginx -c nginx.conf`.
    pub fn nginx_command(&self, main: &str, http: &str) -> Command {
        let dir = self.path().display();
        let mut config = format!(
            "worker_processes 1; pid {dir}/nginx.pid; error_log {dir}/error.log info; {main}\n\
             events {{ worker_connections 500; }}\nhttp {{ access_log off;\n"
        );
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            let _ = writeln!(config, "{kind}_temp_path {dir}/temp/{kind};");
        }
        let _ = writeln!(config, "proxy_http_version 1.1; proxy_set_header Connection '';\n{http}\n}}");
        let config = self.write("nginx.conf", &config);
        let nginx = Tool::Nginx.path().unwrap_or_else(|error| panic!("{error}"));
        let mut command = self.underdeck(&["run", "--"]);
        command.arg(nginx).arg("-p").arg(self.path()).arg("-e").arg(self.path().join("error.log"));
        command.arg("-c").arg(config);
        command
    }

    /// Writes `haproxy.cfg` and returns `underdeck run -- haproxy OPTIONS -f haproxy.cfg`.
    pub fn haproxy_command(&self, options: &[&str], listen: SocketAddr, backend: SocketAddr) -> Command {
        let config = self.write(
            "haproxy.cfg",
            &format!(
                "global\n    maxconn 500\n    nbthread 1\n\
                 defaults\n    mode http\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n\
                 frontend lab\n    bind {listen}\n    default_backend backend\n\
                 backend backend\n    server one {backend}\n"
            ),
        );
        let haproxy = Tool::Haproxy.path().unwrap_or_else(|error| panic!("{error}"));
        let mut command = self.underdeck(&["run", "--"]);
        command.arg(haproxy).args(options).arg("-f").arg(config);
        command
    }

    /// Writes `envoy.yaml` and returns `underdeck run -- envoy`: epoch `epoch` of the instance with this number.
    pub fn envoy_command(&self, instance: u32, epoch: u32, listen: SocketAddr, backend: SocketAddr) -> Command {
        const HTTP: &str = "type.googleapis.com/envoy.extensions.filters";
        let at =
            |addr: SocketAddr| format!("{{socket_address: {{address: {}, port_value: {}}}}}", addr.ip(), addr.port());
        let route = "{match: {prefix: /}, route: {cluster: one, timeout: 0s}}";
        let router = format!("{{name: router, typed_config: {{'@type': {HTTP}.http.router.v3.Router}}}}");
        let manager = format!(
            "{{'@type': {HTTP}.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: it, codec_type: HTTP1, \
             route_config: {{virtual_hosts: [{{name: it, domains: ['*'], routes: [{route}]}}]}}, http_filters: [{router}]}}"
        );
        let config = format!(
            "static_resources:\n  listeners:\n  - name: it\n    address: {}\n    filter_chains:\n    \
             - filters: [{{name: it, typed_config: {manager}}}]\n  clusters:\n  - name: one\n    type: STATIC\n    \
             load_assignment: {{cluster_name: one, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {}}}}}]}}]}}\n",
            at(listen),
            at(backend)
        );
        let config = self.write("envoy.yaml", &config);
        let envoy = self.tool(Tool::Envoy);
        let mut command = self.underdeck(&["run", "--"]);
        command.arg(envoy).arg("-c").arg(config).args(["--concurrency", "1", "--log-level", "warning"]);
        command.args(["--drain-time-s", "1", "--parent-shutdown-time-s", "4"]);
        command.args(["--base-id", &instance.to_string(), "--restart-epoch", &epoch.to_string()]);
        command
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

/// Processes that left the test's reach, by the file in which they wrote their number. Dropping it kills them and their
/// children.
#[derive(Debug)]
pub struct Daemon {
    pid: u32,
}

impl Daemon {
    /// Starts something that goes into the background; it must say that all is well.
    pub fn start(mut command: Command, pid_file: &Path) -> Self {
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        assert!(output.status.success(), "{command:?}: {output:?}");
        let read = || std::fs::read_to_string(pid_file).ok()?.lines().next()?.trim().parse().ok();
        Self { pid: wait::until("a file with its number", WITHIN, read).expect("a file with its number") }
    }

    /// The process of the file.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// It and its children.
    pub fn pids(&self) -> Vec<u32> {
        [vec![self.pid], proc::children(self.pid)].concat()
    }

    /// Ends it as its user does; nothing may be left.
    pub fn stop(self) {
        let pids = self.pids();
        signal_pid(self.pid, Signal::TERM).expect("signalled");
        let gone = || (!pids.iter().any(|pid| proc::alive(*pid))).then_some(());
        wait::until("it ends", WITHIN, gone).expect("it ends");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if proc::alive(self.pid) {
            for pid in self.pids() {
                // It may have ended in between.
                let _ = signal_pid(pid, Signal::KILL);
            }
        }
    }
}

/// The child of a process that serves clients, once there is one that is not among `old`.
pub fn worker(master: u32, old: &[u32]) -> u32 {
    let fresh = || proc::children(master).into_iter().find(|pid| !old.contains(pid));
    wait::until("a worker", WITHIN, fresh).expect("a worker")
}

/// Waits until somebody accepts connections.
pub fn opens(addr: SocketAddr) {
    let open = || std::net::TcpStream::connect_timeout(&addr, WITHIN).ok();
    wait::until("the port opens", WITHIN, open).expect("the port opens");
}

/// Downloads one body of `len` bytes; every byte of it must be right.
pub fn fetch(name: &str, front: &Front, backend: &Backend, len: u64) {
    let exchange = Exchange::new(name, vec![Step::get(Behaviour::body(len, Delimit::Length))]);
    right(&exchange, front, backend);
}

/// Sends an exchange; everything about it must be right.
pub fn right(exchange: &Exchange, front: &Front, backend: &Backend) -> Observation {
    let seen = observe(exchange, Side { proxy: None, front, backend }).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(judge(exchange, &seen), Vec::<String>::new());
    seen
}
