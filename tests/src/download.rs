//! Programs of the tests' own that download one body under the engine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use underdeck_lab::content::{self, Checked, Checker};
use underdeck_lab::engine as counters;

use crate::matrix::engine;

const WITHIN: Duration = Duration::from_secs(60);

/// Answers one request with `len` bytes of a body, in pieces of `sizes` in turn, each sent at once. Then `end` has the
/// connection.
pub fn trickling_backend<T: Send + 'static>(
    len: usize,
    field: String,
    sizes: &'static [usize],
    end: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let addr = listener.local_addr().expect("its address");
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        assert_ne!(stream.read(&mut [0; 1000]).expect("a request"), 0);
        stream.write_all(head(&field).as_bytes()).expect("a head is sent");
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
        end(stream)
    });
    (addr, thread)
}

/// The head of such an answer.
pub fn head(field: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n")
}

/// What a program left in its file, and what it said.
#[derive(Debug)]
pub struct Downloaded {
    /// The body.
    pub body: Checked,
    /// What it printed after `done`.
    pub said: String,
}

/// Runs `program PORT FILE arguments…`, with the library where there is one, until it says `done` and more in one line.
pub fn download(program: &str, backend: SocketAddr, arguments: &[&str]) -> Downloaded {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("downloaded");
    let mut command = Command::new(program);
    command.arg(backend.port().to_string()).arg(&file).args(arguments);
    let engine = engine().map(|engine| engine.min_body(64).max_anchored(64 << 20));
    if let Some(engine) = &engine {
        engine.apply(&mut command);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let (mut out, said) = (BufReader::new(child.stdout.take().expect("its output")), channel());
    std::thread::spawn(move || {
        let mut line = String::new();
        // The receiver is gone when this came too late.
        let _ = said.0.send(out.read_line(&mut line).map(|_| line));
    });
    let line = said.1.recv_timeout(WITHIN).map(|line| line.unwrap_or_default());
    if line.is_err() {
        child.kill().expect("killed");
    }
    let line = line.unwrap_or_default();
    let done = line.trim_end().strip_prefix("done").map(|rest| rest.trim().to_owned());
    if engine.is_some() && done.is_some() {
        let counters = counters::of_pid(child.id()).expect("the library is in it");
        assert_eq!((counters.bytes_held, counters.panics, counters.resets), (0, 0, 0), "{arguments:?}");
        assert_ne!(counters::anchored(&counters), 0, "nothing was anchored: {arguments:?}");
    }
    drop(child.stdin.take());
    let status = child.wait().expect("it ends");
    assert!(done.is_some() && status.success(), "{arguments:?}: {status}, said {line:?}");
    let bytes = std::fs::read(&file).expect("a file");
    let head = bytes.windows(4).position(|at| at == b"\r\n\r\n").expect("a head") + 4;
    let mut checker = Checker::new(5, 0);
    checker.update(&bytes[head..]);
    Downloaded { body: checker.finish(), said: done.unwrap_or_default() }
}
