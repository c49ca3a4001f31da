//! What cannot be frozen or thawed says so, and leaves everything as it was.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use common::moving::Mover;
use common::{Cable, eventually, stream};
use underdeck_handoff_tcp::{Error, TcpState, freeze, thaw, thaw_foreign};

fn refusal(fd: impl Into<OwnedFd>) -> Error {
    freeze(fd.into(), b"").expect_err("it cannot be frozen").into()
}

#[test]
fn only_synchronised_tcp_connections_are_frozen() {
    let cable = Cable::new();
    cable.server.on(|| {
        let listener = TcpListener::bind("10.0.0.2:80").unwrap();
        assert!(matches!(refusal(listener), Error::State(TcpState::Listen)));
        assert!(matches!(refusal(UdpSocket::bind("10.0.0.2:80").unwrap()), Error::NotTcp));
        assert!(matches!(refusal(UnixStream::pair().unwrap().0), Error::NotTcp));
        assert!(matches!(refusal(std::fs::File::open("/dev/null").unwrap()), Error::NotTcp));
    });
    let (client, server) = cable.connect(false);
    drop(client);
    let mut server = server;
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    let _ = server.write(b"to a socket that is gone");
    eventually("it is reset", || common::state(&server) == TcpState::Closed as u8);
    assert!(matches!(refusal(server), Error::State(TcpState::Closed)));
}

#[test]
fn a_refused_connection_goes_on() {
    let cable = Cable::new();
    let (client, server) = cable.connect(false);
    // Urgent data that was not read splits the receive queue.
    // SAFETY: sends one byte.
    let sent = unsafe { libc::send(client.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
    (&client).write_all(b"more").unwrap();
    eventually("it has arrived", || readable(&server) >= 5);
    let error = freeze(server.into(), b"").expect_err("urgent data");
    assert!(matches!(error.error(), Error::Urgent), "{error}");
    let mut server = TcpStream::from(error.into_fd());
    let mut got = [0; 4];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"more", "the connection was not touched");
    server.write_all(b"fine").unwrap();
    (&client).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"fine");
}

/// Bytes behind the urgent mark count too.
fn readable(socket: &impl AsFd) -> u32 {
    let mut info = [0u8; 232];
    let mut length = info.len() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut length) };
    assert_eq!(result, 0);
    // tcpi_bytes_received
    u64::from_ne_bytes(info[128..136].try_into().unwrap()) as u32
}

#[test]
fn a_taken_four_tuple_is_named() {
    let mover = Mover::new();
    let (client, server) = mover.cable.connect(false);
    let flow = mover.flow(&server);
    mover.block(&server);
    let frozen = freeze(server.into(), b"").unwrap();
    let snapshot = frozen.snapshot().clone();
    mover.cable.server.on(|| {
        // The frozen socket is still there.
        let error = thaw(&snapshot, snapshot.local()).expect_err("the address is taken");
        assert!(matches!(error, Error::AddressInUse { .. }), "{error}");
        let elsewhere = thaw(&snapshot, "10.0.0.2:81".parse().unwrap()).expect("another port is free");
        drop(elsewhere);
        let error = thaw(&snapshot, "10.0.0.9:80".parse().unwrap()).expect_err("not this host's address");
        assert!(matches!(error, Error::NotLocal(_)), "{error}");
        let error = thaw(&snapshot, "[fd00::2]:80".parse().unwrap()).expect_err("another family");
        assert!(matches!(error, Error::Family { .. }), "{error}");
    });
    mover.steer.remove(&flow).unwrap();
    // None of these attempts has said a word to the client.
    let mut server = stream(frozen.resume().unwrap());
    server.write_all(b"fine").unwrap();
    let mut got = [0; 4];
    (&client).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"fine");
}

#[test]
fn a_thawed_connection_that_is_dropped_is_silent() {
    let mover = Mover::new();
    let (client, server) = mover.cable.connect(false);
    mover.block(&server);
    let flow = mover.flow(&server);
    let frozen = freeze(server.into(), b"").unwrap();
    let snapshot = frozen.snapshot().clone();
    frozen.release();
    for _ in 0..3 {
        drop(mover.cable.server.on(|| thaw(&snapshot, snapshot.local())).unwrap());
    }
    let thawing = mover.cable.server.on(|| thaw(&snapshot, snapshot.local())).unwrap();
    mover.steer.remove(&flow).unwrap();
    let mut server = stream(thawing.finish().unwrap());
    server.write_all(b"fine").unwrap();
    let mut got = [0; 4];
    (&client).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"fine");
}

#[test]
fn a_frozen_connection_that_is_forgotten_is_closed_aloud() {
    let cable = Cable::new();
    let (mut client, server) = cable.connect(false);
    drop(freeze(server.into(), b"").unwrap());
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "the peer learns of it");
}

#[test]
fn without_privilege_it_says_so() {
    let cable = Cable::new();
    let (_client, server) = cable.connect(false);
    let error = std::thread::spawn(move || {
        // SAFETY: drops the capabilities of this thread only.
        unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        refusal(server)
    });
    let error = error.join().unwrap();
    assert!(matches!(error, Error::Privilege), "{error}");
}

#[test]
fn under_an_address_of_another_host() {
    let mover = Mover::new();
    let (mut client, server) = mover.cable.connect(false);
    mover.block(&server);
    let flow = mover.flow(&server);
    let frozen = freeze(server.into(), b"").unwrap();
    let snapshot = frozen.snapshot().clone();
    frozen.release();
    // The address goes away, but packets that are sent to it are still delivered here.
    for command in [
        "ip addr del 10.0.0.2/24 dev eth0",
        "ip addr add 10.0.0.7/24 dev eth0",
        "ip rule add iif eth0 lookup 100",
        "ip route add local 10.0.0.2 dev lo table 100",
    ] {
        mover.cable.server.run(command);
    }
    let error = mover.cable.server.on(|| thaw(&snapshot, snapshot.local())).expect_err("not this host's");
    assert!(matches!(error, Error::NotLocal(_)), "{error}");
    let thawing = mover.cable.server.on(|| thaw_foreign(&snapshot)).unwrap();
    mover.steer.remove(&flow).unwrap();
    let mut server = stream(thawing.finish().unwrap());
    server.write_all(b"fine").unwrap();
    let mut got = [0; 4];
    client.read_exact(&mut got).unwrap();
    client.write_all(b"ping").unwrap();
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"ping");
}
