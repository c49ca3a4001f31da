//! Marks that are cut, and payload that leaves in parts, one case at a time.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use underdeck_stats::Gauge;

use super::cuts::{buffers, in_socket, magic};
use super::tests::{client_of, held};
use crate::mark::{MAGIC, MARK};
use crate::testing::{self, PATIENCE};
use crate::tls::{self, Prepared};
use crate::{anchor, batch, engine, sys};

/// A program that gives up after it has cut a mark.
fn cut_and_closed() {
    for (known, how) in (1..MARK).flat_map(|known| [(known, "close"), (known, "shutdown")]) {
        let (mut client, mut server) = client_of(1 << 20);
        let (_near, _far, _, placeholder) = held();
        server.write_all(b"right").expect("accepted");
        server.write_all(&placeholder[..known]).expect("accepted");
        if how == "shutdown" {
            server.shutdown(Shutdown::Write).expect("shut down");
        }
        let server = (how == "shutdown").then_some(server);
        let mut seen = Vec::new();
        let _ = client.read_to_end(&mut seen);
        assert_eq!(seen, b"right", "{how} after {known} bytes of a mark");
        drop(server);
    }
}

/// A client of which the kernel takes 4 KiB at a time, and the proxy's end of its connection, which blocks.
fn narrow() -> (UnixStream, UnixStream) {
    testing::hear_panics();
    let name = SocketAddr::from_abstract_name(format!("underdeck-test-{}", std::process::id())).expect("a name");
    let listener = UnixListener::bind_addr(&name).expect("a listener");
    let mut client = UnixStream::connect_addr(&name).expect("connected");
    let (mut server, _) = listener.accept().expect("accepted");
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    client.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
    assert_ne!(server.read(&mut [0; 256]).expect("a request"), 0);
    buffers(&server, libc::SO_SNDBUF, 4608);
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
    server.write_all(head).expect("room");
    client.read_exact(&mut vec![0; head.len()]).expect("received");
    (client, server)
}

/// Payload that cannot be spliced, in several writes, of each of which the kernel takes a part.
fn half_put_back() {
    let (mut client, mut server) = narrow();
    let (mut near, _far, got) = testing::ahead(Some(testing::set()));
    let mut placeholder = vec![0; 40_000];
    let n = near.read(&mut placeholder).expect("it was read ahead");
    assert!(n > 20_000, "{n} bytes in one segment");
    let writer = std::thread::spawn(move || {
        for part in placeholder[..n].chunks(9000) {
            server.write_all(part).expect("accepted");
        }
        server
    });
    let mut seen = vec![0; n];
    client.read_exact(&mut seen).expect("all of it");
    assert!(seen == testing::body(got, n));
    drop(writer.join().expect("no panic"));
}

/// A client, and the proxy's end of its connection, on which a body has begun that ends with it.
fn until_close() -> (TcpStream, TcpStream) {
    let (mut client, mut server) = testing::pair();
    client.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
    assert_ne!(server.read(&mut [0; 256]).expect("a request"), 0);
    server.set_nonblocking(true).expect("set");
    let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    server.write_all(head).expect("accepted");
    client.read_exact(&mut vec![0; head.len()]).expect("received");
    (client, server)
}

/// The same where only the end of the connection ends the message, of which some has left.
fn cut_and_closed_until_close() {
    for known in 1..MARK {
        let (mut client, mut server) = until_close();
        let (mut near, _far, got, placeholder) = held();
        server.write_all(&placeholder).expect("accepted");
        let mut next = [0; 1000];
        near.read_exact(&mut next).expect("it was read ahead");
        server.write_all(&next[..known]).expect("accepted");
        drop(server);
        let mut seen = Vec::new();
        let _ = client.read_to_end(&mut seen);
        assert!(seen == testing::body(got, placeholder.len()), "{known}: {}", seen.len());
    }
}

/// A byte that looks like the beginning of a mark, for a client that takes nothing more, and then the end.
fn last_byte_of_a_full_client() {
    let (mut client, mut server) = until_close();
    let _held @ (_, _, _, placeholder) = &held();
    let mut accepted = 0;
    while let Ok(n) = server.write(&[b'x'; 65_536]) {
        accepted += n;
    }
    accepted += server.write(&placeholder[..1]).unwrap_or(0);
    server.set_nonblocking(false).expect("set");
    let reader = std::thread::spawn(move || std::io::copy(&mut client, &mut std::io::sink()));
    drop(server);
    assert_eq!(reader.join().expect("no panic").expect("an orderly end"), accepted as u64);
}

#[test]
fn what_was_accepted_for_a_full_client_arrives() {
    testing::alone("egress::parts::what_was_accepted_for_a_full_client_arrives", last_byte_of_a_full_client);
}

#[test]
fn a_cut_mark_is_not_the_last_that_a_client_sees_until_the_end() {
    let name = "egress::parts::a_cut_mark_is_not_the_last_that_a_client_sees_until_the_end";
    testing::alone(name, cut_and_closed_until_close);
}

#[test]
fn a_cut_mark_is_not_the_last_that_a_client_sees() {
    testing::alone("egress::parts::a_cut_mark_is_not_the_last_that_a_client_sees", cut_and_closed);
}

#[test]
fn what_is_put_back_may_leave_in_parts() {
    testing::alone("egress::parts::what_is_put_back_may_leave_in_parts", half_put_back);
}

/// A byte of payload that was let out, at the end of a chunk, and then a mark in the next one that is cut.
fn marks_behind_a_byte() {
    let (_near, _far, _, placeholder) = held();
    let (_other_client, mut other_server) = client_of(1 << 20);
    assert_eq!(other_server.write(&placeholder).expect("room"), placeholder.len());
    let (mut client, mut server) = testing::pair();
    client.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
    assert_ne!(server.read(&mut [0; 256]).expect("a request"), 0);
    server.set_nonblocking(true).expect("set");
    let mut right = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n".to_vec();
    server.write_all(&right).expect("accepted");
    let by_chance = [&placeholder[..1], b"\r\n"].concat();
    server.write_all(&by_chance).expect("accepted");
    let (_near, _far, got, placeholder) = held();
    let line = format!("{:x}\r\n", placeholder.len());
    server.write_all(&[line.as_bytes(), &placeholder[..1]].concat()).expect("accepted");
    for part in [1..3, 3..MAGIC, MAGIC..placeholder.len()] {
        server.write_all(&placeholder[part]).expect("accepted");
    }
    batch::before_events(true);
    right.extend([&by_chance[..], line.as_bytes(), &testing::body(got, placeholder.len())].concat());
    let mut seen = vec![0; right.len()];
    client.read_exact(&mut seen).expect("all of it");
    assert!(seen == right);
}

#[test]
fn a_mark_may_be_cut_behind_a_byte_that_looked_like_one() {
    testing::alone("egress::parts::a_mark_may_be_cut_behind_a_byte_that_looked_like_one", marks_behind_a_byte);
}

/// Payload that was received to its end, while the client that it may be for takes nothing.
fn kept_for_a_full_client() {
    let (mut client, mut server) = client_of(64 << 20);
    let engine = engine::running().expect("it runs");
    while server.write(&[b'x'; 65_536]).is_ok() {}
    let (near, _far, _, _) = held();
    drop(near);
    let held = || {
        anchor::reap(engine);
        engine.stats.level(Gauge::BytesHeld) > 0
    };
    let begun = sys::seconds();
    testing::until("more than the grace period", || !held() || sys::seconds() > begun + 2);
    assert!(held(), "it may be the next that the client gets");
    let reader = std::thread::spawn(move || std::io::copy(&mut client, &mut std::io::sink()));
    testing::until("there is room again", || { &server }.write(b"x").is_ok());
    testing::until("nobody can want it", || !held());
    drop(server);
    assert!(reader.join().expect("no panic").is_ok());
}

#[test]
fn what_a_full_client_may_get_next_is_kept() {
    let name = "egress::parts::what_a_full_client_may_get_next_is_kept";
    testing::alone_with(name, &[("UNDERDECK_GRACE_SECONDS", "0")], kept_for_a_full_client);
}

/// A connection on which a TLS library is about to send a body.
fn within_tls() -> (TcpStream, TcpStream) {
    let (client, server) = testing::pair();
    let request = b"GET / HTTP/1.1\r\nHost: it\r\n\r\n";
    in_socket(&server, |engine, socket| {
        tls::begin(socket);
        tls::read(engine, socket, request.as_ptr().cast(), request.len());
    });
    let mut head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".to_vec();
    let size = head.len();
    assert_eq!(given(&server, &mut head, size), Some(size));
    (client, server)
}

/// What a library is given of `bytes`, of which it takes `most`. None: it must not be given any.
fn given(server: &TcpStream, bytes: &mut [u8], most: usize) -> Option<usize> {
    let (address, size) = (bytes.as_mut_ptr().cast_const().cast(), bytes.len());
    in_socket(server, |engine, socket| {
        let offered = match tls::prepare(engine, socket, address, size)? {
            Prepared::AsItIs(size) => size,
            Prepared::Joined(bytes) => bytes.len(),
            Prepared::Nothing => return Some(0),
        };
        tls::wrote(engine, socket, address, size, if most == 0 { -1 } else { offered.min(most) as isize });
        Some(offered)
    })
}

/// What follows a cut mark of what is gone must not be given to a TLS library.
fn marks_of_nothing_within_tls() {
    let (_near, _far, _, mut placeholder) = held();
    let (_other_client, mut other_server) = client_of(1 << 20);
    assert_eq!(other_server.write(&placeholder).expect("room"), placeholder.len());
    for known in 1..MAGIC {
        let (_client, server) = within_tls();
        assert_eq!(given(&server, &mut placeholder[..known], known), Some(known), "nothing can stand behind it");
        assert_eq!(given(&server, &mut placeholder[known..1000], 1000), None, "{known}: it was a mark");
    }
}

/// A library that takes a part of what it is given, and a program that comes again with less than the rest.
fn parts_within_tls() {
    let (_near, _far, got, mut placeholder) = held();
    let (_client, server) = within_tls();
    let n = placeholder.len();
    assert_eq!(given(&server, &mut placeholder[..5000], 512), Some(5000));
    assert_eq!(given(&server, &mut placeholder[512..600], 88), Some(88));
    assert_eq!(given(&server, &mut placeholder[600..], n), Some(n - 600));
    assert!(placeholder == testing::body(got, n));
}

/// A library that takes nothing must be given the same again, whatever was received meanwhile.
fn same_again_within_tls() {
    let (_client, server) = within_tls();
    let magic = magic(engine::running().expect("it runs"));
    let mut bytes = [b"by chance", &magic[..3]].concat();
    let n = bytes.len();
    assert_eq!(given(&server, &mut bytes, 0), Some(n));
    let held = held();
    assert_eq!(given(&server, &mut bytes, n), Some(n));
    drop(held);
}

#[test]
fn a_tls_library_is_given_the_same_again() {
    testing::alone("egress::parts::a_tls_library_is_given_the_same_again", same_again_within_tls);
}

#[test]
fn a_tls_library_may_take_parts() {
    testing::alone("egress::parts::a_tls_library_may_take_parts", parts_within_tls);
}

#[test]
fn a_cut_mark_that_nothing_stands_behind_does_not_reach_tls() {
    let name = "egress::parts::a_cut_mark_that_nothing_stands_behind_does_not_reach_tls";
    testing::alone(name, marks_of_nothing_within_tls);
}

/// What is held back for a peer that is gone.
fn held_for_nobody() {
    let (_near, _far, _, placeholder) = held();
    let ((client, mut server), (_other_client, mut other_server)) = (client_of(1 << 20), client_of(1 << 20));
    server.write_all(&placeholder[..1]).expect("accepted");
    assert!(!batch::before_events(true), "it may be the payload's");
    sys::reset(client.as_raw_fd());
    assert_eq!(other_server.write(&placeholder).expect("room"), placeholder.len());
    testing::until("nothing keeps the loop awake", || batch::before_events(true));
    server.write(b"x").expect_err("it is the next call that is told");
}

#[test]
fn who_is_gone_does_not_keep_a_loop_awake() {
    testing::alone("egress::parts::who_is_gone_does_not_keep_a_loop_awake", held_for_nobody);
}
