//! What a cut costs: `cargo run --release --example cut_cost`. Prints nanoseconds per message head.

use std::hint::black_box;
use std::time::Instant;

use underdeck_protocols::{Cursor, Direction, Place, Program, Role, SpanKind, State};

const REQUEST: &[u8] = b"GET /static/big HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Sat, 01 Jan 2022 00:00:00 GMT\r\n\
    Content-Type: video/mp4\r\nContent-Length: 1048576\r\nLast-Modified: Sat, 01 Jan 2022 00:00:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"61cf9980-100000\"\r\nVary: *\r\n\r\n";

/// One exchange: request head, response head, body gone by unseen.
fn exchange(program: &Program, state: &mut State, requests: &mut Cursor, responses: &mut Cursor) {
    let (rx, tx, role) = (Direction::Rx, Direction::Tx, Role::Server);
    assert_eq!(requests.next(program, state, rx, role, black_box(REQUEST)), (SpanKind::Metadata, REQUEST.len()));
    assert_eq!(responses.next(program, state, tx, role, black_box(RESPONSE)), (SpanKind::Metadata, RESPONSE.len()));
    assert_eq!(responses.place(), Place::Opaque(1 << 20));
    responses.skip_opaque(1 << 20);
}

fn measure(rounds: u32, mut step: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..7 {
        let begin = Instant::now();
        for _ in 0..rounds {
            step();
        }
        best = best.min(begin.elapsed().as_nanos() as f64 / f64::from(rounds));
    }
    best
}

fn main() {
    // A bounded number for a run under callgrind.
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(200_000);
    let elf = Program::shipped_object("http1").expect("it is shipped");
    let engines = [
        ("jit", Program::shipped("http1").expect("it is shipped").expect("it loads"), rounds),
        ("plain interpreter", Program::plain(elf).expect("it loads"), rounds / 100 + 1),
    ];
    // "jit" alone is what to run under callgrind.
    let only = std::env::args().nth(2).unwrap_or_default();
    for (name, program, rounds) in engines.into_iter().filter(|(name, ..)| name.starts_with(&only)) {
        let (mut state, mut requests, mut responses) = (State::new(), Cursor::new(), Cursor::new());
        let both = measure(rounds, || exchange(&program, &mut state, &mut requests, &mut responses));
        let request = measure(rounds, || {
            let mut cursor = Cursor::new();
            let span = cursor.next(&program, &mut State::new(), Direction::Rx, Role::Server, black_box(REQUEST));
            assert_eq!(span, (SpanKind::Metadata, REQUEST.len()));
        });
        println!(
            "{name}: request of {} bytes {request:.1} ns; with response of {} bytes {both:.1} ns (heads and what follows them)",
            REQUEST.len(),
            RESPONSE.len()
        );
    }
}
