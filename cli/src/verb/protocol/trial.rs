//! Runs a program on a stream, in one piece and byte by byte.

use std::fmt;

use underdeck_protocols::{Cursor, Direction, Program, Role, SpanKind, State};

/// Bytes of a stream that nobody gave.
const MADE_UP_BYTES: usize = 16 * 1024;

/// What became of the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trial {
    metadata: usize,
    opaque: usize,
    passed: usize,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes metadata, {} opaque, {} after a pass", self.metadata, self.opaque, self.passed)
    }
}

/// A byte that is payload or not, depending on how the stream arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of the stream is payload when the stream arrives in pieces of {piece}, but not in one piece")]
pub struct Difference {
    at: usize,
    piece: usize,
}

/// Cuts `stream` (or made-up bytes) as a server that receives it.
pub fn run(program: &Program, stream: Option<&[u8]>) -> Result<Trial, Difference> {
    let made_up;
    let stream = match stream {
        Some(stream) => stream,
        None => {
            made_up = noise();
            &made_up
        }
    };
    let whole = kinds(program, stream, stream.len().max(1));
    for piece in [1, 2, 7, 255] {
        let pieces = kinds(program, stream, piece);
        // A byte that came too early to be known is metadata; the other way round is never right.
        let differs = |(one, other): (&SpanKind, &SpanKind)| *one == SpanKind::Opaque && *other != SpanKind::Opaque;
        if let Some(at) = pieces.iter().zip(&whole).position(differs) {
            return Err(Difference { at, piece });
        }
    }
    let count = |kind| whole.iter().filter(|one| **one == kind).count();
    Ok(Trial { metadata: count(SpanKind::Metadata), opaque: count(SpanKind::Opaque), passed: count(SpanKind::Passed) })
}

/// What each byte is.
fn kinds(program: &Program, stream: &[u8], piece: usize) -> Vec<SpanKind> {
    let (mut state, mut cursor) = (State::new(), Cursor::new());
    let mut kinds = Vec::with_capacity(stream.len());
    for mut bytes in stream.chunks(piece) {
        while !bytes.is_empty() {
            let (kind, n) = cursor.next(program, &mut state, Direction::Rx, Role::Server, bytes);
            kinds.extend(std::iter::repeat_n(kind, n));
            bytes = &bytes[n..];
        }
    }
    kinds
}

/// Small numbers mostly, so that lengths are met: xorshift with a fixed seed.
fn noise() -> Vec<u8> {
    let mut x: u32 = 0x2545_f491;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x
    };
    (0..MADE_UP_BYTES)
        .map(|_| match next() {
            n if n % 4 == 0 => (n >> 8) as u8,
            n => (n >> 8) as u8 % 4,
        })
        .collect()
}
