//! Two hosts joined by a cable: network namespaces without a name, which vanish with the last descriptor.
#![allow(dead_code, reason = "each test uses a part")]

pub mod journey;
pub mod load;
pub mod moving;

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

/// Everything that a test waits for is there within this time, or never.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace.
pub struct Host(File);

impl Host {
    pub fn new() -> Host {
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
        let file = &self.0;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                enter(file);
                work()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// A path under which `ip link set … netns` finds it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    pub fn run(&self, command: &str) {
        self.on(|| run(command));
    }
}

fn enter(namespace: &File) {
    // SAFETY: changes this thread only.
    let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().expect("a program")).args(words).output().expect("it can be run");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A client and a server on one cable.
pub struct Cable {
    pub client: Host,
    pub server: Host,
}

impl Cable {
    pub fn new() -> Cable {
        let cable = Cable { client: Host::new(), server: Host::new() };
        cable.client.run(&format!("ip link add eth0 type veth peer name eth0 netns {}", cable.server.path()));
        for (host, number) in [(&cable.client, 1), (&cable.server, 2)] {
            host.run(&format!("ip addr add 10.0.0.{number}/24 dev eth0"));
            host.run(&format!("ip addr add fd00::{number}/64 dev eth0 nodad"));
            host.run("ip link set eth0 up");
        }
        cable
    }

    /// A connection: the client's end, and the server's.
    pub fn connect(&self, v6: bool) -> (TcpStream, TcpStream) {
        let address: SocketAddr = if v6 { "[fd00::2]:80" } else { "10.0.0.2:80" }.parse().expect("an address");
        self.connect_to(address)
    }

    pub fn connect_to(&self, address: SocketAddr) -> (TcpStream, TcpStream) {
        connect(&self.client, &self.server, address)
    }
}

/// A connection from one host to another.
pub fn connect(from: &Host, to: &Host, address: SocketAddr) -> (TcpStream, TcpStream) {
    let listener = to.on(|| TcpListener::bind(address).expect("the port is free"));
    let client = from.on(|| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // The link may need a moment to come up.
            match TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    });
    let (server, _) = listener.accept().expect("the client has connected");
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    }
    (client, server)
}

/// Client, balancer and backend, each on a cable of its own to a switch or a router.
pub struct Site {
    pub client: Host,
    pub balancer: Host,
    pub backend: Host,
    /// Bridge or router.
    pub middle: Host,
    routed: bool,
}

impl Site {
    /// All on one segment, or (`routed`) each on one of its own. The last byte of an address is 1 for the client, 2 for
    /// the balancer, 3 for the backend.
    pub fn new(routed: bool) -> Site {
        let site =
            Site { client: Host::new(), balancer: Host::new(), backend: Host::new(), middle: Host::new(), routed };
        match routed {
            true => run_all(&site.middle, &["sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"]),
            false => run_all(&site.middle, &["ip link add br0 type bridge", "ip link set br0 up"]),
        }
        for (host, number) in [(&site.client, 1), (&site.balancer, 2), (&site.backend, 3)] {
            let net = if routed { number } else { 0 };
            let path = site.middle.path();
            host.run(&format!("ip link add eth0 type veth peer name eth{number} netns {path}"));
            host.run(&format!("ip addr add 10.0.{net}.{number}/24 dev eth0"));
            host.run(&format!("ip addr add fd00:0:0:{net}::{number}/64 dev eth0 nodad"));
            host.run("ip link set eth0 up");
            if routed {
                site.middle.run(&format!("ip addr add 10.0.{net}.254/24 dev eth{number}"));
                site.middle.run(&format!("ip addr add fd00:0:0:{net}::254/64 dev eth{number} nodad"));
            } else {
                site.middle.run(&format!("ip link set eth{number} master br0"));
            }
            site.middle.run(&format!("ip link set eth{number} up"));
            if routed {
                host.run(&format!("ip route add default via 10.0.{net}.254"));
                host.run(&format!("ip route add default via fd00:0:0:{net}::254"));
            }
        }
        site
    }

    /// The address of a host, with a port.
    pub fn address(&self, number: u8, v6: bool, port: u16) -> SocketAddr {
        let net = if self.routed { number } else { 0 };
        let text =
            if v6 { format!("[fd00:0:0:{net}::{number}]:{port}") } else { format!("10.0.{net}.{number}:{port}") };
        text.parse().expect("an address")
    }

    /// A connection from the client to the balancer: both ends.
    pub fn connect(&self, v6: bool) -> (TcpStream, TcpStream) {
        connect(&self.client, &self.balancer, self.address(2, v6, 80))
    }
}

fn run_all(host: &Host, commands: &[&str]) {
    for command in commands {
        host.run(command);
    }
}

/// A thawed descriptor as a blocking stream with time-outs.
pub fn stream(fd: OwnedFd) -> TcpStream {
    let stream = TcpStream::from(fd);
    stream.set_nonblocking(false).expect("a socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// Polls until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// The kernel's number of a connection's state.
pub fn state(socket: &impl AsFd) -> u8 {
    info(socket)[0]
}

/// `tcpi_options`.
pub fn options(socket: &impl AsFd) -> u8 {
    info(socket)[5]
}

/// `tcpi_total_retrans`: what this socket has sent again by itself.
pub fn retransmissions(socket: &impl AsFd) -> u32 {
    u32::from_ne_bytes(info(socket)[100..104].try_into().expect("four bytes"))
}

/// The first bytes of `struct tcp_info`.
pub fn info(socket: &impl AsFd) -> [u8; 104] {
    let mut info = [0u8; 104];
    let mut length = info.len() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut length) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    info
}

/// `tcpi_snd_mss`: the size of the segments that leave now.
pub fn segment_size(socket: &impl AsFd) -> u32 {
    u32::from_ne_bytes(info(socket)[16..20].try_into().expect("four bytes"))
}

/// SIOCINQ, SIOCOUTQ and SIOCOUTQNSD.
pub fn queued(socket: &impl AsFd) -> (usize, usize, usize) {
    let get = |request: u64| {
        let mut value: libc::c_int = 0;
        // SAFETY: these requests write one int.
        let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), request, &raw mut value) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        value as usize
    };
    (get(libc::FIONREAD), get(libc::TIOCOUTQ), get(0x894B))
}

/// Bytes that are different everywhere.
pub fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
