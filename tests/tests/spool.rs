//! Payload that leaves to a file: arriving in pieces so small that one read is made of many, and more than pipes hold.

use underdeck_lab::content::Checked;
use underdeck_tests::download::{download, trickling_backend};

/// Spools `len` bytes that come in pieces of `sizes` and end with the connection.
fn spooled(len: usize, field: String, sizes: &'static [usize], how: &str, buffers: &[&str]) -> Checked {
    let (addr, backend) = trickling_backend(len, field, sizes, drop);
    let it = download(env!("CARGO_BIN_EXE_spooler"), addr, &[&[how], buffers].concat());
    backend.join().expect("all was sent");
    it.body
}

#[test]
fn what_arrives_in_small_pieces_is_spooled_right() {
    const BODY: usize = 1 << 20;
    // Around the length of a mark, and around that of a buffer.
    let pieces: [&'static [usize]; 4] = [&[7], &[17, 23, 24, 25, 4096], &[1448, 13], &[8192, 3, 8189]];
    for sizes in pieces {
        for buffers in [&["65536"][..], &["8192", "8192", "100", "8192"], &["4096"], &["1000", "50", "70000"]] {
            let seen = spooled(BODY, format!("Content-Length: {BODY}"), sizes, "spool", buffers);
            assert_eq!((seen.first_wrong, seen.len), (None, BODY as u64), "pieces of {sizes:?} into {buffers:?}");
        }
    }
}

#[test]
fn the_end_of_a_body_is_seen_when_no_pipe_takes_any_more() {
    // Reads of a kilobyte take a slot each: more than 16 pipes of 256 slots have.
    const BODY: usize = 7 << 20;
    let seen = spooled(BODY, "Connection: close".to_owned(), &[1000, 24], "hoard", &["1000"]);
    assert_eq!((seen.first_wrong, seen.len), (None, BODY as u64));
}
