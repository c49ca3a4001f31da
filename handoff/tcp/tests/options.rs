//! Socket options go with the connection.

mod common;

use std::os::fd::AsRawFd;
use std::time::Duration;

use common::moving::Mover;

fn get(socket: &impl AsRawFd, level: i32, name: i32) -> i32 {
    let mut value = 0i32;
    let mut length = 4;
    // SAFETY: the kernel writes one int.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length) };
    assert_eq!(result, 0, "option {level}/{name}");
    value
}

fn set(socket: &impl AsRawFd, level: i32, name: i32, value: i32) {
    // SAFETY: the kernel reads one int.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    assert_eq!(result, 0, "option {level}/{name}");
}

const SO_BUF_LOCK: i32 = 72;

#[test]
fn they_survive() {
    let mover = Mover::new();
    for v6 in [false, true] {
        let (_client, server) = mover.cable.connect(v6);
        let tos = if v6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) };
        let values = [
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
            (libc::IPPROTO_TCP, libc::TCP_CORK, 1),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 77),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 7),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 12_345),
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 16_384),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE, 1),
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 5),
            (libc::SOL_SOCKET, libc::SO_REUSEADDR, 1),
            (tos.0, tos.1, 0x20),
        ];
        for (level, name, value) in values {
            set(&server, level, name, value);
        }
        // After the type of service, which changes it.
        set(&server, libc::SOL_SOCKET, libc::SO_PRIORITY, 6);
        let (server, _) = mover.go(server);
        for (level, name, value) in values {
            assert_eq!(get(&server, level, name), value, "option {level}/{name}");
        }
        assert_eq!(get(&server, libc::SOL_SOCKET, libc::SO_PRIORITY), 6);
        set(&server, libc::IPPROTO_TCP, libc::TCP_CORK, 0);
    }
}

#[test]
fn buffer_sizes_and_locks() {
    let mover = Mover::new();
    let (_client, server) = mover.cable.connect(false);
    let send = get(&server, libc::SOL_SOCKET, libc::SO_SNDBUF);
    let (server, _) = mover.go(server);
    assert_eq!(get(&server, libc::SOL_SOCKET, SO_BUF_LOCK), 0, "the kernel goes on tuning");
    assert_eq!(get(&server, libc::SOL_SOCKET, libc::SO_SNDBUF), send);

    set(&server, libc::SOL_SOCKET, libc::SO_SNDBUF, 50_000);
    let (server, _) = mover.go(server);
    assert_eq!(get(&server, libc::SOL_SOCKET, SO_BUF_LOCK), 1, "only the send buffer is the application's");
    assert_eq!(get(&server, libc::SOL_SOCKET, libc::SO_SNDBUF), 100_000);
    assert!(server.nodelay().is_ok() && server.read_timeout().unwrap() > Some(Duration::ZERO));
}

/// A listener can be started anew beside a connection that was thawed or resumed.
#[test]
fn a_listener_can_be_restarted() {
    let mover = Mover::new();
    let (_client, server) = mover.cable.connect(false);
    let (server, _) = mover.go(server);
    let address = server.local_addr().unwrap();
    drop(mover.cable.server.on(|| std::net::TcpListener::bind(address)).expect("SO_REUSEADDR is on both"));
    let frozen = underdeck_handoff_tcp::freeze(server.into(), b"").unwrap();
    let _server = frozen.resume().unwrap();
    drop(mover.cable.server.on(|| std::net::TcpListener::bind(address)).expect("SO_REUSEADDR is on both"));
}
