//! http1: no split changes anything, both engines agree, and httparse has read the head before every payload.
#![no_main]

use std::ops::Range;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use underdeck_protocols::{Cursor, Direction, Program, Role, SpanKind, State};

static FAST: LazyLock<Program> = LazyLock::new(|| Program::shipped("http1").unwrap().unwrap());
static PLAIN: LazyLock<Program> = LazyLock::new(|| Program::plain(Program::shipped_object("http1").unwrap()).unwrap());

/// The opaque ranges of `stream`, which arrives in pieces of `piece` bytes after a first one of `first`.
fn opaque(program: &Program, is_response: bool, stream: &[u8], first: usize, piece: usize) -> (Vec<Range<usize>>, bool) {
    let (mut state, mut cursor) = (State::new(), Cursor::new());
    let direction = if is_response { Direction::Rx } else { Direction::Tx };
    if is_response {
        Cursor::new().next(program, &mut state, Direction::Tx, Role::Client, b"GET / HTTP/1.1\r\n\r\n");
    }
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let (mut at, mut end) = (0, first.min(stream.len()));
    while at < stream.len() {
        if at == end {
            end = (end + piece).min(stream.len());
        }
        let (kind, n) = cursor.next(program, &mut state, direction, Role::Client, &stream[at..end]);
        match (kind, ranges.last_mut()) {
            (SpanKind::Opaque, Some(last)) if last.end == at => last.end += n,
            (SpanKind::Opaque, _) => ranges.push(at..at + n),
            _ => {}
        }
        at += n;
    }
    (ranges, state.is_passed())
}

fuzz_target!(|input: (bool, u8, u8, &[u8])| {
    let (is_response, first, piece, stream) = input;
    let whole = opaque(&FAST, is_response, stream, stream.len(), 1);
    let split = opaque(&FAST, is_response, stream, usize::from(first), usize::from(piece) + 1);
    assert_eq!(whole, split);
    assert_eq!(whole, opaque(&PLAIN, is_response, stream, stream.len(), 1));
    let Some(payload) = whole.0.first() else { return };
    let mut fields = [httparse::EMPTY_HEADER; 256];
    let head = if is_response {
        httparse::Response::new(&mut fields).parse(stream)
    } else {
        httparse::Request::new(&mut fields).parse(stream)
    };
    match head {
        // An interim response or a request without content may come first.
        Ok(httparse::Status::Complete(head)) => assert!(head <= payload.start),
        Err(httparse::Error::TooManyHeaders) => {}
        other => panic!("httparse says {other:?}, but there is payload at {payload:?}"),
    }
});
