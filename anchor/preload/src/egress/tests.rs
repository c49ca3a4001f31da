//! What is searched, cut and held back, over loopback.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::*;
use crate::testing;

fn long_calls() {
    let near_the_end = [-4096, -2049, -2048, -2047, -100, -25, -24, -23, -8, -1, 0, 1, 100];
    for from_the_end in near_the_end {
        let (mut client, mut server) = testing::pair();
        client.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
        assert_ne!(server.read(&mut [0; 256]).expect("a request"), 0);
        server.set_nonblocking(true).expect("set");
        let (mut near, _far, got) = testing::ahead(Some(testing::set()));
        let mut placeholder = vec![0; 8192];
        let n = near.read(&mut placeholder).expect("it was read ahead");
        let before = LOOK_MOST.strict_add_signed(from_the_end);
        let mut message = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", before + n).into_bytes();
        // The head goes by itself: what is searched begins behind it.
        assert_eq!(server.write(&message).expect("room"), message.len());
        let head = message.len();
        message.extend((0..before).map(|at| (at * 7) as u8));
        let mut right = message.clone();
        right.extend(testing::body(got, n));
        message.extend_from_slice(&placeholder[..n]);
        let reader = std::thread::spawn(move || {
            let mut seen = vec![0; right.len()];
            client.read_exact(&mut seen).expect("all of it");
            (0..right.len()).find(|at| seen[*at] != right[*at])
        });
        let mut at = head;
        while at < message.len() {
            match server.write(&message[at..]) {
                Ok(n) => at += n,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            testing::events(testing::set(), 0);
        }
        testing::events(testing::set(), 1);
        assert_eq!(reader.join().expect("no panic"), None, "{from_the_end}");
    }
}

/// A client, and the proxy's end of its connection, on which a body of `len` bytes has begun.
pub(super) fn client_of(len: usize) -> (TcpStream, TcpStream) {
    let (mut client, mut server) = testing::pair();
    client.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
    assert_ne!(server.read(&mut [0; 256]).expect("a request"), 0);
    server.set_nonblocking(true).expect("set");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
    server.write_all(head.as_bytes()).expect("sent");
    client.read_exact(&mut vec![0; head.len()]).expect("received");
    (client, server)
}

/// Payload of which nothing has left: both ends of the backend's connection, where it begins in the body, the placeholder.
pub(super) fn held() -> (TcpStream, TcpStream, usize, Vec<u8>) {
    let (mut near, far, got) = testing::ahead(Some(testing::set()));
    let mut placeholder = vec![0; 8192];
    let n = near.read(&mut placeholder).expect("it was read ahead");
    placeholder.truncate(n);
    (near, far, got, placeholder)
}

fn a_loop_waits() {
    testing::events(testing::set(), 1);
}

/// `known` bytes that look like the beginning of a mark, and are none.
fn bytes_by_chance() {
    for known in 1..MAGIC {
        let (_near, _far, _, placeholder) = held();
        let ((client, mut server), (_other_client, mut other_server)) = (client_of(1 << 20), client_of(1 << 20));
        let bytes = [b"by chance", &placeholder[..known]].concat();
        server.write_all(&bytes).expect("accepted");
        a_loop_waits();
        // What comes before it is only delayed, by the kernel (MSG_MORE).
        testing::until("what is none", || testing::unread(&client) > 0);
        assert_eq!(testing::unread(&client), 9, "it may be the payload's");
        // Now it leaves somewhere else.
        assert_eq!(other_server.write(&placeholder).expect("room"), placeholder.len());
        a_loop_waits();
        testing::until("all of it", || testing::unread(&client) == bytes.len());
    }
}

fn cut_marks() {
    for known in 1..MAGIC {
        let (mut client, mut server) = client_of(1 << 20);
        let (_near, _far, got, placeholder) = held();
        server.write_all(&placeholder[..known]).expect("accepted");
        for _ in 0..3 {
            a_loop_waits();
        }
        assert_eq!(testing::unread(&client), 0);
        server.write_all(&placeholder[known..]).expect("accepted");
        a_loop_waits();
        let mut seen = vec![0; placeholder.len()];
        client.read_exact(&mut seen).expect("all of it");
        assert!(seen == testing::body(got, seen.len()), "{known}");
    }
}

fn marks_of_nothing() {
    let (near, _far, _, placeholder) = held();
    let (_other_client, mut other_server) = client_of(1 << 20);
    assert_eq!(other_server.write(&placeholder).expect("room"), placeholder.len());
    for known in 1..MAGIC {
        let (mut client, mut server) = client_of(1 << 20);
        server.write_all(&placeholder[..known]).expect("accepted");
        a_loop_waits();
        client.read_exact(&mut vec![0; known]).expect("nothing can stand behind it");
        server.write_all(&placeholder[known..MAGIC]).expect_err("it was a mark");
        assert!(client.read(&mut [0; 1]).is_err(), "no orderly end");
    }
    drop(near);
}

#[test]
fn what_looks_like_the_beginning_of_a_mark_waits_only_while_it_may_be_one() {
    const NAME: &str = "egress::tests::what_looks_like_the_beginning_of_a_mark_waits_only_while_it_may_be_one";
    testing::alone(NAME, bytes_by_chance);
}

#[test]
fn a_mark_may_be_cut() {
    testing::alone("egress::tests::a_mark_may_be_cut", cut_marks);
}

#[test]
fn a_cut_mark_that_nothing_stands_behind_breaks_the_connection() {
    const NAME: &str = "egress::tests::a_cut_mark_that_nothing_stands_behind_breaks_the_connection";
    testing::alone(NAME, marks_of_nothing);
}

#[test]
fn a_placeholder_is_found_wherever_it_stands_in_a_long_call() {
    testing::alone("egress::tests::a_placeholder_is_found_wherever_it_stands_in_a_long_call", long_calls);
}
