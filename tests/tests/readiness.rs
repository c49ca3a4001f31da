//! What was read ahead is reported to everybody who asks, in whatever way.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

use underdeck_tests::download::{download, head, trickling_backend};
use underdeck_tests::matrix::engine;

const BODY: usize = 1 << 20;

/// Sends the first `len` bytes of a body of `BODY` and keeps the connection open: when the last bytes were read ahead, the kernel
/// has nothing to report. Says how the connection ended.
fn backend(len: usize, sizes: &'static [usize]) -> (SocketAddr, JoinHandle<Result<usize, ErrorKind>>) {
    let end = |mut stream: TcpStream| stream.read(&mut [0]).map_err(|error| error.kind());
    trickling_backend(len, length(), sizes, end)
}

fn length() -> String {
    format!("Content-Length: {BODY}")
}

/// Reads the body in pieces of `size` bytes, with waits in between.
fn waited_for(how: &str, size: &str, sizes: &'static [usize]) {
    let (addr, thread) = backend(BODY, sizes);
    let all = (head(&length()).len() + BODY).to_string();
    let it = download(env!("CARGO_BIN_EXE_waiter"), addr, &[how, size, &all]);
    assert_eq!((it.body.first_wrong, it.body.len), (None, BODY as u64), "{how}, reads of {size}, pieces of {sizes:?}");
    assert_eq!(thread.join().expect("no panic"), Ok(0), "{how}, reads of {size}, pieces of {sizes:?}");
    let ahead: usize = it.said.parse().expect("how often more was there than the kernel knew of");
    // Otherwise this would test nothing.
    assert!(engine().is_none() || ahead > 0, "{how}, reads of {size}: nothing was read ahead");
}

#[test]
fn every_way_of_waiting_is_told_of_what_was_read_ahead() {
    for how in ["level", "edge", "rearmed", "late", "poll", "select", "splice"] {
        for size in ["4096", "16384", "1000"] {
            waited_for(how, size, &[65_536, 30_000]);
        }
        waited_for(how, "8192", &[1448]);
    }
}

#[test]
fn who_leaves_with_bytes_unread_resets_the_connection() {
    // All of it is in the pipe when the application leaves: nothing that the kernel would reset the connection for.
    let (addr, thread) = backend(70_000, &[70_000]);
    let it = download(env!("CARGO_BIN_EXE_waiter"), addr, &["leave", "16384", "70000"]);
    assert_eq!(it.body.first_wrong, None);
    assert!(it.body.len < 70_000, "it left before the end");
    assert!(engine().is_none() || it.said == "1", "nothing was read ahead");
    assert_eq!(thread.join().expect("no panic"), Err(ErrorKind::ConnectionReset));
}

#[test]
fn payload_that_nobody_sends_is_dropped_however_short_the_waits() {
    let (addr, thread) = backend(BODY, &[65_536]);
    let all = (head(&length()).len() + BODY).to_string();
    // That nothing is held any more is asked of every download.
    download(env!("CARGO_BIN_EXE_waiter"), addr, &["forget", "16384", &all]);
    assert_eq!(thread.join().expect("no panic"), Ok(0));
}
