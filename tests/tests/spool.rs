//! Payload that leaves to a file, while it arrives in pieces so small that one read is made of many.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use underdeck_lab::content::{self, Checker};
use underdeck_lab::engine as counters;
use underdeck_tests::matrix::engine;

const BODY: usize = 1 << 20;

/// Answers one request with [`BODY`] bytes, in pieces of `sizes` in turn, each sent at once.
fn trickling_backend(sizes: &'static [usize]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let addr = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        let mut request = [0; 1000];
        assert_ne!(stream.read(&mut request).expect("a request"), 0);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("a head is sent");
        let body = content::bytes(5, 0, BODY);
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

fn spooled(sizes: &'static [usize], buffers: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("spooled");
    let mut command = Command::new(env!("CARGO_BIN_EXE_spooler"));
    command.arg(trickling_backend(sizes).port().to_string()).arg(&file).args(buffers);
    let engine = engine().map(|engine| engine.min_body(64));
    if let Some(engine) = &engine {
        engine.apply(&mut command);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut said).expect("it says something");
    if engine.is_some() && said == "done\n" {
        let counters = counters::of_pid(child.id()).expect("the library is in it");
        assert_eq!((counters.bytes_held, counters.panics), (0, 0));
        assert_ne!(counters::anchored(&counters), 0, "nothing was anchored: {sizes:?} {buffers:?}");
    }
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success(), "it failed: {sizes:?} {buffers:?}");
    std::fs::read(&file).expect("a file")
}

#[test]
fn what_arrives_in_small_pieces_is_spooled_right() {
    // Around the length of a mark, and around that of a buffer.
    let pieces: [&'static [usize]; 4] = [&[7], &[17, 23, 24, 25, 4096], &[1448, 13], &[8192, 3, 8189]];
    for sizes in pieces {
        for buffers in [&["65536"][..], &["8192", "8192", "100", "8192"], &["4096"], &["1000", "50", "70000"]] {
            let spooled = spooled(sizes, buffers);
            let head = spooled.windows(4).position(|at| at == b"\r\n\r\n").expect("a head") + 4;
            let mut checker = Checker::new(5, 0);
            checker.update(&spooled[head..]);
            let seen = checker.finish();
            assert_eq!((seen.first_wrong, seen.len), (None, BODY as u64), "pieces of {sizes:?} into {buffers:?}");
        }
    }
}
