//! Loads for connections.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::{content, eventually, queued};

/// Writes until both sides' buffers have been full for a while. Returns how much went in at each.
pub fn fill(client: &TcpStream, server: &TcpStream, up: &[u8], down: &[u8]) -> (usize, usize) {
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
pub fn drain(client: &TcpStream, server: &TcpStream, up: &[u8], down: &[u8]) {
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

/// Four bytes each way.
pub fn ping(mut client: &TcpStream, mut server: &TcpStream) {
    let mut four = [0; 4];
    client.write_all(b"ping").unwrap();
    server.read_exact(&mut four).unwrap();
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut four).unwrap();
    assert_eq!(&four, b"pong");
}

/// Bytes both ways at the same time, compared.
pub fn talk(client: &TcpStream, server: &TcpStream, length: usize, seed: u64) {
    let (up, down) = (content(length, seed), content(length, seed + 1));
    std::thread::scope(|scope| {
        for (mut from, bytes) in [(client, &up), (server, &down)] {
            scope.spawn(move || from.write_all(bytes).unwrap());
        }
        for (mut to, bytes) in [(server, &up), (client, &down)] {
            scope.spawn(move || {
                let mut got = vec![0; bytes.len()];
                to.read_exact(&mut got).unwrap();
                assert!(got == *bytes, "a byte differs");
            });
        }
    });
}
