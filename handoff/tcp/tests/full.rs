//! Both directions full: each side has written until nothing more went in, and has read nothing. In this state a
//! restored connection stalls for ever if a window, a buffer or a timestamp is a little off.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use common::moving::Mover;
use common::{content, eventually, queued};

/// How often the connection is moved: 1 000 times with `UNDERDECK_TEST_FULL=1000`.
fn times() -> u64 {
    std::env::var("UNDERDECK_TEST_FULL").map_or(60, |times| times.parse().expect("UNDERDECK_TEST_FULL is a number"))
}

/// Most bytes that a side writes.
const MOST: usize = 16 << 20;

/// Writes until both sides' buffers have been full for a while. Returns how much went in at each.
fn fill(client: &TcpStream, server: &TcpStream, up: &[u8], down: &[u8]) -> (usize, usize) {
    for stream in [client, server] {
        stream.set_nonblocking(true).unwrap();
    }
    let (mut sent_up, mut sent_down) = (0, 0);
    let mut quiet = 0;
    let mut last = None;
    eventually("both directions are full", || {
        for (mut stream, bytes, sent) in [(client, up, &mut sent_up), (server, down, &mut sent_down)] {
            match stream.write(&bytes[*sent..]) {
                Ok(wrote) => *sent += wrote,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        let now = Some((sent_up, sent_down, queued(client), queued(server)));
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        quiet > 2000
    });
    for stream in [client, server] {
        stream.set_nonblocking(false).unwrap();
    }
    (sent_up, sent_down)
}

/// Both ends read what the other has written, and compare.
fn drain(client: &TcpStream, server: &TcpStream, up: &[u8], down: &[u8]) {
    std::thread::scope(|scope| {
        for (mut stream, expected, name) in [(server, up, "up"), (client, down, "down")] {
            scope.spawn(move || {
                let mut got = vec![0; expected.len()];
                let mut at = 0;
                while at < got.len() {
                    match stream.read(&mut got[at..]) {
                        Ok(0) => panic!("{name}: end of stream after {at} of {} bytes", expected.len()),
                        Ok(read) => at += read,
                        Err(error) => panic!(
                            "{name}: stalled after {at} of {} bytes: {error}, client {:?}, server {:?}",
                            expected.len(),
                            queued(client),
                            queued(server)
                        ),
                    }
                }
                assert!(got == expected, "{name}: a byte differs");
            });
        }
    });
}

#[test]
fn both_directions_full_never_stalls() {
    let mover = Mover::new();
    let (up, down) = (content(MOST, 1), content(MOST, 2));
    for round in 0..times() {
        let v6 = round % 2 == 1;
        let (client, server) = mover.cable.connect(v6);
        let (sent_up, sent_down) = fill(&client, &server, &up, &down);
        let (server, snapshot) = mover.go(server);
        assert!(!snapshot.unread().is_empty() && !snapshot.unsent().is_empty(), "{snapshot:?}");
        drain(&client, &server, &up[..sent_up], &down[..sent_down]);
        // And it is as good as new.
        drain_small(&client, &server);
    }
}

fn drain_small(mut client: &TcpStream, mut server: &TcpStream) {
    let mut four = [0; 4];
    client.write_all(b"ping").unwrap();
    server.read_exact(&mut four).unwrap();
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut four).unwrap();
    assert_eq!(&four, b"pong");
}
