//! Payload that leaves to a file: arriving in pieces so small that one read is made of many, and more than pipes hold.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use underdeck_lab::content::{self, Checked, Checker};
use underdeck_lab::engine as counters;
use underdeck_tests::matrix::engine;

const WITHIN: Duration = Duration::from_secs(60);

/// Answers one request with `len` bytes and the end of the connection, in pieces of `sizes` in turn, each sent at once.
fn trickling_backend(len: usize, field: String, sizes: &'static [usize]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let addr = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        let mut request = [0; 1000];
        assert_ne!(stream.read(&mut request).expect("a request"), 0);
        let head = format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("a head is sent");
        let body = content::bytes(5, 0, len);
        let mut rest = &body[..];
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            stream.write_all(piece).expect("a piece is sent");
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
    });
    addr
}

/// Runs the spooler, with the library where there is one, and returns what it left in its file.
fn spooled(backend: SocketAddr, how: &str, buffers: &[&str]) -> Checked {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("spooled");
    let mut command = Command::new(env!("CARGO_BIN_EXE_spooler"));
    command.arg(backend.port().to_string()).arg(&file).arg(how).args(buffers);
    let engine = engine().map(|engine| engine.min_body(64).max_anchored(64 << 20));
    if let Some(engine) = &engine {
        engine.apply(&mut command);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let (mut out, said) = (child.stdout.take().expect("its output"), channel());
    std::thread::spawn(move || {
        let mut line = [0; 5];
        // The receiver is gone when this came too late.
        let _ = said.0.send(out.read_exact(&mut line).is_ok() && line == *b"done\n");
    });
    let done = said.1.recv_timeout(WITHIN);
    if engine.is_some() && done == Ok(true) {
        let counters = counters::of_pid(child.id()).expect("the library is in it");
        assert_eq!((counters.bytes_held, counters.panics), (0, 0), "{how} {buffers:?}");
        assert_ne!(counters::anchored(&counters), 0, "nothing was anchored: {how} {buffers:?}");
    }
    if done.is_err() {
        child.kill().expect("killed");
    }
    drop(child.stdin.take());
    let status = child.wait().expect("it ends");
    assert_eq!((done, status.success()), (Ok(true), true), "{how} {buffers:?}");
    let bytes = std::fs::read(&file).expect("a file");
    let head = bytes.windows(4).position(|at| at == b"\r\n\r\n").expect("a head") + 4;
    let mut checker = Checker::new(5, 0);
    checker.update(&bytes[head..]);
    checker.finish()
}

#[test]
fn what_arrives_in_small_pieces_is_spooled_right() {
    const BODY: usize = 1 << 20;
    // Around the length of a mark, and around that of a buffer.
    let pieces: [&'static [usize]; 4] = [&[7], &[17, 23, 24, 25, 4096], &[1448, 13], &[8192, 3, 8189]];
    for sizes in pieces {
        for buffers in [&["65536"][..], &["8192", "8192", "100", "8192"], &["4096"], &["1000", "50", "70000"]] {
            let seen = spooled(trickling_backend(BODY, format!("Content-Length: {BODY}"), sizes), "spool", buffers);
            assert_eq!((seen.first_wrong, seen.len), (None, BODY as u64), "pieces of {sizes:?} into {buffers:?}");
        }
    }
}

#[test]
fn the_end_of_a_body_is_seen_when_no_pipe_takes_any_more() {
    // Reads of a kilobyte take a slot each: more than 16 pipes of 256 slots have.
    const BODY: usize = 7 << 20;
    let seen = spooled(trickling_backend(BODY, "Connection: close".to_owned(), &[1000, 24]), "hoard", &["1000"]);
    assert_eq!((seen.first_wrong, seen.len), (None, BODY as u64));
}
