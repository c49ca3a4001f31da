//! A site of network namespaces without names, which vanish with the last descriptor: a client, a balancer and backends
//! on one segment. Balancer and backends are processes of their own, or parts that a test plays itself.
#![allow(dead_code, reason = "each test uses a part")]

pub mod balancer;
pub mod fake;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use underdeck_handoff_control::keys::{self, Role};
use underdeck_handoff_control::tls::Identity;
use underdeck_handoff_serve::{Config, Report, objects};

/// Everything that a test waits for is there within this time, or never.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace.
pub struct Host(File);

impl Host {
    fn new() -> Host {
        std::thread::spawn(|| {
            // SAFETY: changes this thread only.
            let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(result, 0, "these tests need root: {}", io::Error::last_os_error());
            run("ip link set lo up");
            Host(File::open("/proc/thread-self/ns/net").expect("this thread has a namespace"))
        })
        .join()
        .expect("the namespace is made")
    }

    /// Runs `work` on this host.
    pub fn on<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| match scope.spawn(|| (self.enter(), work()).1).join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// Runs `work` on this host in a thread that goes on.
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        let host = Host(self.0.try_clone().expect("a descriptor"));
        std::thread::spawn(move || (host.enter(), work()));
    }

    fn enter(&self) {
        // SAFETY: changes this thread only.
        let result = unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().expect("a program")).args(words).output().expect("it can be run");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What comes, until nothing more does.
pub fn all<T>(heard: &Receiver<T>) -> impl Iterator<Item = T> {
    std::iter::from_fn(|| heard.recv_timeout(PATIENCE).ok())
}

/// Polls until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// All hosts, and the files of balancer and backends.
pub struct Site {
    pub client: Host,
    pub balancer: Host,
    pub backends: Vec<Host>,
    _switch: Host,
    pub folder: tempfile::TempDir,
}

impl Site {
    pub fn new(backends: usize) -> Site {
        let switch = Host::new();
        switch.on(|| {
            run("ip link add br0 type bridge");
            run("ip link set br0 up");
        });
        let join = |number: usize| {
            let host = Host::new();
            host.on(|| {
                run(&format!("ip link add eth0 type veth peer name eth{number} netns {}", switch.path()));
                run(&format!("ip addr add 10.0.0.{number}/24 dev eth0"));
                run("ip link set eth0 up");
            });
            switch.on(|| {
                run(&format!("ip link set eth{number} master br0"));
                run(&format!("ip link set eth{number} up"));
            });
            host
        };
        let (client, balancer) = (join(1), join(2));
        let backends = (0..backends).map(|number| join(3 + number)).collect::<Vec<_>>();
        let folder = tempfile::tempdir().expect("ours");
        let names = std::iter::once(("balancer".to_owned(), Role::Balancer))
            .chain((0..backends.len()).map(|number| (format!("b{number}"), Role::Backend)))
            .collect::<Vec<_>>();
        let made = keys::make(&names).expect("keys");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("ours");
        write("authority.pem", &made.authority);
        for (name, certificate, key) in &made.peers {
            write(&format!("{name}.pem"), certificate);
            write(&format!("{name}.key"), key);
        }
        Site { client, balancer, backends, _switch: switch, folder }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn identity(&self, role: Role, name: &str) -> Identity {
        let file = |extension: &str| self.file(&format!("{name}.{extension}"));
        Identity::load(role, &self.file("authority.pem"), &file("pem"), &file("key")).expect("they fit")
    }

    /// Starts the balancer. `more` are further lines of its configuration, and of the backends'.
    pub fn start_balancer(&self, more: &str) -> Server {
        self.start("balancer", 2, &self.balancer, more)
    }

    pub fn start_backend(&self, number: usize, more: &str) -> Server {
        let name = format!("b{number}");
        self.start(&name, 3 + number, &self.backends[number], &format!("name = \"{name}\"\n{more}"))
    }

    fn start(&self, name: &str, host: usize, on: &Host, more: &str) -> Server {
        let folder = self.folder.path();
        // A machine that is busy is no sign of a dead backend.
        let dead_after = if more.contains("dead-after-ms") { "" } else { "dead-after-ms = 15000\n" };
        let mut text = format!(
            "listen = \"10.0.0.{host}:80\"\ncontrol = \"10.0.0.{host}:7000\"\ninterfaces = [\"eth0\"]\n\
             authority = {:?}\ncertificate = {:?}\nkey = {:?}\nstatus = {:?}\n{dead_after}{more}\n",
            folder.join("authority.pem"),
            folder.join(format!("{name}.pem")),
            folder.join(format!("{name}.key")),
            folder.join(format!("{name}.sock")),
        );
        for number in 0..self.backends.len() {
            let at = number + 3;
            let _ = writeln!(
                text,
                "[[backend]]\nname = \"b{number}\"\nlisten = \"10.0.0.{at}:80\"\ncontrol = \"10.0.0.{at}:7000\""
            );
        }
        let config = folder.join(format!("{name}.toml"));
        std::fs::write(&config, text).expect("ours");
        let role = if name == "balancer" { "balancer" } else { "backend" };
        let mut child = on.on(|| program(role, &config).stdout(Stdio::piped()).spawn().expect("it starts"));
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.ends_with("ready\n") {
            line.clear();
            assert!(lines.read_line(&mut line).expect("it speaks") > 0, "{name} does not start");
        }
        Server { child, status: folder.join(format!("{name}.sock")) }
    }

    /// A client's connection to the balancer.
    pub fn connect(&self) -> Client {
        self.client.on(|| Client::new(TcpStream::connect("10.0.0.2:80").expect("the balancer listens")))
    }

    pub fn address(&self, host: usize, port: u16) -> SocketAddr {
        format!("10.0.0.{host}:{port}").parse().expect("an address")
    }
}

/// Role and configuration for the server that is started.
const SERVER: &str = "UNDERDECK_TEST_SERVER";

/// What this program does in another process, started again for this one test: it is a server.
#[test]
fn server_process() {
    let Ok(how) = std::env::var(SERVER) else { return };
    let (role, config) = how.split_once(' ').expect("a role and a file");
    let config = Config::load(Path::new(config)).expect("it is good");
    let ready = || println!("ready");
    match role {
        "balancer" => underdeck_handoff_serve::balancer(config, ready),
        _ => underdeck_handoff_serve::backend(config, ready),
    }
    .expect("it starts");
}

/// This program as a server, or the one that `UNDERDECK_SERVE` names (such as a release build of the example).
fn program(role: &str, config: &Path) -> Command {
    if let Some(path) = std::env::var_os("UNDERDECK_SERVE") {
        let mut command = Command::new(path);
        command.arg(role).arg(config);
        return command;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["common::server_process", "--exact", "--nocapture"]);
    command.env(SERVER, format!("{role} {}", config.display()));
    command
}

/// A process, killed when it is dropped.
pub struct Server {
    child: Child,
    status: PathBuf,
}

impl Server {
    pub fn report(&self) -> Report {
        let mut text = String::new();
        UnixStream::connect(&self.status).and_then(|mut stream| stream.read_to_string(&mut text)).expect("it answers");
        serde_json::from_str(&text).expect("a report")
    }

    pub fn aborted(&self, reason: &str) -> u64 {
        self.report().handoffs.aborted.get(reason).copied().unwrap_or(0)
    }

    /// The balancer sees so many backends.
    pub fn sees(&self, count: usize) {
        eventually("backends are found", || self.report().backends.iter().filter(|one| one.alive).count() == count);
    }

    /// Has no connections and no rules any more.
    pub fn is_clean(&self) {
        let clean = |report: &Report| (report.connections.here, report.connections.away, report.rules.tc) == (0, 0, 0);
        let deadline = Instant::now() + PATIENCE;
        while !clean(&self.report()) {
            assert!(Instant::now() < deadline, "something is left: {:?}", self.report());
            std::thread::yield_now();
        }
    }

    /// With SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }

    /// Stops it without a word to anybody, as a host does that is cut off.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        let stopped = || std::fs::read_to_string(&stat).expect("it lives").contains(") T ");
        eventually("it stops", stopped);
    }

    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a process that we started and have not waited for.
        let result = unsafe { libc::kill(self.child.id().cast_signed(), signal) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An HTTP client that checks every byte.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub fn new(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Client { stream, buffer: Vec::new() }
    }

    pub fn ask(&mut self, path: &str) -> io::Result<()> {
        self.stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
    }

    /// Reads an answer and returns its status. The body must be the one of `/bytes/N`.
    pub fn answer(&mut self) -> io::Result<u16> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.fill()?;
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let length: usize = length.and_then(|text| text.parse().ok()).expect("a length");
        while self.buffer.len() < end + length {
            self.fill()?;
        }
        assert!(objects::is_content(&self.buffer[end..end + length], 0), "a byte differs");
        self.buffer.drain(..end + length);
        Ok(head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"))
    }

    pub fn get(&mut self, path: &str) -> io::Result<u16> {
        self.ask(path)?;
        self.answer()
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut bytes = vec![0; 64 << 10];
        // A read with a time limit is interrupted when the whole process is stopped and goes on (signal(7)).
        let count = loop {
            match self.stream.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                count => break count?,
            }
        };
        match count {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.buffer.extend_from_slice(&bytes[..count]);
                Ok(())
            }
        }
    }

    /// The connection ends with a reset.
    pub fn is_reset(&mut self) {
        let error = self.fill().expect_err("nothing more comes");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    }
}
