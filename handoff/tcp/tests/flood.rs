//! A connection that is moved again and again while both sides write and read as fast as they can: the packets of the
//! peer come in at every moment of the transfer, and are blocked.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use common::moving::Mover;
use common::{Cable, PATIENCE, content};

/// How often the connection is moved, for each setting: more with `UNDERDECK_TEST_FLOOD=1000`.
fn times() -> usize {
    std::env::var("UNDERDECK_TEST_FLOOD").map_or(40, |times| times.parse().expect("UNDERDECK_TEST_FLOOD is a number"))
}

/// The content repeats after this many bytes, a prime, so that no shift goes unnoticed.
const PERIOD: usize = 1_000_003;

/// One end, which writes one endless stream and reads another, and checks it.
struct End<'a> {
    sends: &'a [u8],
    expects: &'a [u8],
    sent: usize,
    received: usize,
    buffer: Vec<u8>,
}

impl<'a> End<'a> {
    fn new(sends: &'a [u8], expects: &'a [u8]) -> End<'a> {
        End { sends, expects, sent: 0, received: 0, buffer: vec![0; 1 << 16] }
    }

    /// Whatever is possible now. True if that was anything.
    fn turn(&mut self, stream: &mut TcpStream, write: bool) -> bool {
        let mut moved = false;
        if write {
            let at = self.sent % PERIOD;
            match stream.write(&self.sends[at..(at + (1 << 15)).min(PERIOD)]) {
                Ok(wrote) => {
                    self.sent += wrote;
                    moved = true;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
        match stream.read(&mut self.buffer) {
            Ok(read) => {
                for byte in &self.buffer[..read] {
                    assert_eq!(*byte, self.expects[self.received % PERIOD], "byte {}", self.received);
                    self.received += 1;
                }
                moved |= read > 0;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        moved
    }
}

fn flood(mover: &Mover, v6: bool) {
    let (up, down) = (content(PERIOD, 1), content(PERIOD, 2));
    let (mut client, mut server) = mover.cable.connect(v6);
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let (mut one, mut other) = (End::new(&up, &down), End::new(&down, &up));
    let mut next = 0;
    for round in 0..times() {
        // Another amount of traffic each time, small and large.
        next += 20_000 + (round * 7_919_993) % 900_000;
        progress(&mut one, &mut client, &mut other, &mut server, |one, other| {
            one.received >= next && other.received >= next / 4
        });
        server = mover.go(server).0;
        server.set_nonblocking(true).unwrap();
    }
    let (sent_up, sent_down) = (one.sent, other.sent);
    finish(&mut one, &mut client, &mut other, &mut server, sent_up, sent_down);
}

/// Lets both ends work until `enough`.
fn progress(
    one: &mut End<'_>,
    client: &mut TcpStream,
    other: &mut End<'_>,
    server: &mut TcpStream,
    enough: impl Fn(&End<'_>, &End<'_>) -> bool,
) {
    let mut last = Instant::now();
    while !enough(one, other) {
        let moved = one.turn(client, true) | other.turn(server, true);
        if moved {
            last = Instant::now();
        }
        stalled(last, one, other, client, server);
    }
}

/// No more writing: all that is under way arrives.
fn finish(
    one: &mut End<'_>,
    client: &mut TcpStream,
    other: &mut End<'_>,
    server: &mut TcpStream,
    sent_up: usize,
    sent_down: usize,
) {
    let mut last = Instant::now();
    while one.received < sent_down || other.received < sent_up {
        if one.turn(client, false) | other.turn(server, false) {
            last = Instant::now();
        }
        stalled(last, one, other, client, server);
    }
}

fn stalled(last: Instant, one: &End<'_>, other: &End<'_>, client: &TcpStream, server: &TcpStream) {
    assert!(
        last.elapsed() < PATIENCE,
        "stalled: client sent {} received {} {:?}, server sent {} received {} {:?}",
        one.sent,
        one.received,
        common::queued(client),
        other.sent,
        other.received,
        common::queued(server)
    );
}

#[test]
fn a_flooded_connection_is_moved_again_and_again() {
    let mover = Mover::new();
    flood(&mover, false);
    flood(&mover, true);
}

#[test]
fn without_timestamps_scaling_and_sack() {
    let cable = Cable::new();
    cable.server.run("sysctl -qw net.ipv4.tcp_timestamps=0 net.ipv4.tcp_window_scaling=0 net.ipv4.tcp_sack=0");
    flood(&Mover::with(cable), false);
}

#[test]
fn with_small_locked_buffers() {
    let cable = Cable::new();
    cable.server.on(|| std::fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 8192 16384")).expect("root can");
    flood(&Mover::with(cable), false);
}
