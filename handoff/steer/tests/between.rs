//! Between hosts, under conditions that a clean laboratory hides.

#[path = "../../tcp/tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};

use common::journey::{attach, back, out};
use common::load::{drain, fill, ping, talk};
use common::{Host, Site, content, eventually, stream};
use underdeck_handoff_steer::{Attachment, Flow, Options, Ports, Steer, Target};
use underdeck_handoff_tcp::{Error, Snapshot, freeze, thaw};

/// How often the full connection goes out and back; more with `UNDERDECK_TEST_FULL=500`.
fn times() -> u64 {
    std::env::var("UNDERDECK_TEST_FULL").map_or(10, |times| times.parse().expect("UNDERDECK_TEST_FULL is a number"))
}

#[test]
fn both_directions_full_out_and_back() {
    let site = Site::new(false);
    let steers = attach(&site, Attachment::Auto);
    let (up, down) = (content(16 << 20, 1), content(16 << 20, 2));
    for round in 0..times() {
        let v6 = round % 2 == 1;
        let (client, server) = site.connect(v6);
        let local = server.local_addr().unwrap();
        let (sent_up, sent_down) = fill(&client, &server, &up, &down);
        let (server, there) = out(&site, &steers, server, site.address(3, v6, 8080));
        drain(&client, &server, &up[..sent_up], &down[..sent_down]);
        let (sent_up, sent_down) = fill(&client, &server, &up, &down);
        let server = back(&site, &steers, server, &there, local);
        drain(&client, &server, &up[..sent_up], &down[..sent_down]);
        ping(&client, &server);
    }
    assert!(steers.balancer.rules().is_empty() && steers.backend.rules().is_empty());
}

/// The value of a counter of `/proc/net/snmp` on a host.
fn counter(host: &Host, name: &str) -> u64 {
    let text = host.on(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split_whitespace().position(|word| word == name).expect("the kernel has this counter");
    values.split_whitespace().nth(at).unwrap().parse().unwrap()
}

/// A veth leaves checksums to be filled in later, which hides wrong ones. Here each host fills them in and each receiver
/// verifies them.
#[test]
fn checksums_are_right_on_the_wire() {
    for (routed, v6) in [(false, false), (true, true)] {
        let site = Site::new(routed);
        for host in [&site.client, &site.balancer, &site.backend] {
            host.run("ethtool -K eth0 tx off rx off");
        }
        let steers = attach(&site, Attachment::Auto);
        let (client, server) = site.connect(v6);
        let local = server.local_addr().unwrap();
        let (server, there) = out(&site, &steers, server, site.address(3, v6, 8080));
        talk(&client, &server, 500_000, 1);
        let server = back(&site, &steers, server, &there, local);
        talk(&client, &server, 500_000, 3);
        for host in [&site.client, &site.balancer, &site.backend] {
            assert_eq!(counter(host, "InCsumErrors"), 0);
        }
    }
}

/// The next request comes while the connection is under way: it is lost and sent again. And not one packet of the
/// connection ever leaves the backend with another source than the balancer's.
#[test]
fn a_request_in_the_middle_of_a_transfer_and_no_wrong_source() {
    let site = Site::new(false);
    let steers = attach(&site, Attachment::Auto);
    let witness = site.client.on(|| Steer::attach(&["eth0"], &Options::default())).unwrap();
    for (round, v6) in [false, true, false, true].into_iter().enumerate() {
        let (mut client, server) = site.connect(v6);
        let flow = Flow { local: server.local_addr().unwrap(), peer: server.peer_addr().unwrap() };
        let at = site.address(3, v6, 8080);
        let wrong = Flow { local: flow.peer, peer: at };
        witness.block(&wrong).unwrap();

        steers.balancer.block(&flow).unwrap();
        let frozen = freeze(server.into(), b"").unwrap();
        client.write_all(b"next request").unwrap();
        eventually("it is blocked", || steers.balancer.ingress_counters(&flow).unwrap().packets > 0);
        let snapshot = Snapshot::decode(&frozen.snapshot().encode()).unwrap();
        assert!(snapshot.unread().is_empty());
        let thawing = site.backend.on(|| thaw(&snapshot, at).unwrap());
        let there = Flow { local: at, peer: flow.peer };
        steers.backend.rewrite_source(&there, flow.local).unwrap();
        let target = site.balancer.on(|| Target::resolve(at).unwrap());
        steers.balancer.redirect(&flow, &target).unwrap();
        frozen.release();
        let mut server = stream(thawing.finish().unwrap());
        let mut got = [0; 12];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"next request");
        talk(&client, &server, 300_000, round as u64);

        let server = back(&site, &steers, server, &there, flow.local);
        ping(&client, &server);
        assert_eq!(witness.ingress_counters(&wrong).unwrap().packets, 0, "a packet with the backend's own source");
        witness.remove(&wrong).unwrap();
    }
}

/// A backend that refuses: the connection goes on at the balancer, with what was blocked meanwhile.
#[test]
fn a_handoff_that_fails_is_rolled_back() {
    let site = Site::new(false);
    let steers = attach(&site, Attachment::Auto);
    let (mut client, server) = site.connect(false);
    let flow = Flow { local: server.local_addr().unwrap(), peer: server.peer_addr().unwrap() };
    for round in 0..20 {
        steers.balancer.block(&flow).unwrap();
        let frozen = freeze(server.try_clone().unwrap().into(), b"").unwrap();
        client.write_all(&[round]).unwrap();
        let thawing = site.backend.on(|| thaw(frozen.snapshot(), site.address(3, false, 8080)).unwrap());
        drop(thawing);
        steers.balancer.remove_ingress(&flow).unwrap();
        let mut resumed = stream(frozen.resume().unwrap());
        let mut byte = [0];
        resumed.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [round]);
    }
    talk(&client, &server, 300_000, 7);
    assert!(steers.balancer.rules().is_empty());
}

/// Two balancers, the same client address and port, one backend.
#[test]
fn two_balancers_with_the_same_client_do_not_clash() {
    let site = Site::new(false);
    site.balancer.run("ip addr add 10.0.0.22/24 dev eth0");
    let steers = attach(&site, Attachment::Auto);
    let ports = Ports::new(20_000..=20_100);
    let mut ends = Vec::new();
    for balancer in ["10.0.0.2:80", "10.0.0.22:80"] {
        let listener = site.balancer.on(|| std::net::TcpListener::bind(balancer)).unwrap();
        let client = site.client.on(|| connect_from(7777, balancer.parse().unwrap()));
        let (server, _) = listener.accept().unwrap();
        let lease = ports.lease(site.address(3, false, 80), server.peer_addr().unwrap()).unwrap();
        let (server, there) = out(&site, &steers, server, lease.local());
        ends.push((client, server, there, lease));
    }
    let (first, second) = (&ends[0].3.local(), &ends[1].3.local());
    assert_eq!(first.port(), 80, "the first keeps its port");
    assert!((20_000..=20_100).contains(&second.port()), "{second}");
    for (seed, (client, server, _, _)) in ends.iter().enumerate() {
        talk(client, server, 400_000, seed as u64);
    }
    // Without the lease, the kernel sees the clash.
    let (_, server, there, _) = ends.pop().unwrap();
    steers.backend.block(&there).unwrap();
    let frozen = freeze(server.into(), b"").unwrap();
    let error = site.backend.on(|| thaw(frozen.snapshot(), *first)).unwrap_err();
    assert!(matches!(error, Error::AddressInUse { .. }), "{error}");
    frozen.release();
}

/// A connection from a given port, which may be in use towards another address.
fn connect_from(port: u16, to: std::net::SocketAddr) -> std::net::TcpStream {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: makes a descriptor that nobody else has.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        std::net::TcpStream::from_raw_fd(fd)
    };
    let one = 1i32;
    let address = |address: std::net::SocketAddr| libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: match address.ip() {
                std::net::IpAddr::V4(v4) => u32::from(v4).to_be(),
                std::net::IpAddr::V6(_) => panic!("IPv4 only"),
            },
        },
        sin_zero: [0; 8],
    };
    let (from, to) = (address(([0, 0, 0, 0], port).into()), address(to));
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: all pointers are to live values of the sizes given.
    unsafe {
        assert_eq!(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const one).cast(), 4), 0);
        assert_eq!(libc::bind(fd, (&raw const from).cast(), length), 0);
        assert_eq!(libc::connect(fd, (&raw const to).cast(), length), 0);
    }
    socket.set_read_timeout(Some(common::PATIENCE)).unwrap();
    socket.set_write_timeout(Some(common::PATIENCE)).unwrap();
    socket
}
