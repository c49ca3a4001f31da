//! Cuts whole streams and says what came out.
#![allow(dead_code, reason = "each test file uses a part")]

use std::ops::Range;

use underdeck_protocols::{Cursor, Direction, Place, Program, Role, SpanKind, State};

/// A shipped program.
pub fn shipped(name: &str) -> Program {
    Program::shipped(name).expect("it is shipped").expect("it loads")
}

/// What the cursor of one direction made of its stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    /// Ranges of opaque bytes, adjacent ones merged (chunks never are: a size line lies between).
    pub opaque: Vec<Range<usize>>,
    /// The first byte that was passed.
    pub passed: Option<usize>,
    /// What comes next.
    pub place: Option<Place>,
}

impl Cuts {
    /// The opaque bytes of `stream`, range by range.
    pub fn payload<'a>(&self, stream: &'a [u8]) -> Vec<&'a [u8]> {
        self.opaque.iter().map(|range| &stream[range.clone()]).collect()
    }
}

/// One connection, both directions.
pub struct Connection<'p> {
    program: &'p Program,
    role: Role,
    pub state: State,
    cursors: [Cursor; 2],
    at: [usize; 2],
    pub cuts: [Cuts; 2],
}

impl<'p> Connection<'p> {
    pub fn new(program: &'p Program, role: Role) -> Self {
        let (cursors, cuts) = Default::default();
        Connection { program, role, state: State::new(), cursors, at: [0; 2], cuts }
    }

    /// Sends a slice through the cursor of `direction`.
    pub fn feed(&mut self, direction: Direction, mut bytes: &[u8]) {
        let side = direction as usize;
        let (cursor, cuts, at) = (&mut self.cursors[side], &mut self.cuts[side], &mut self.at[side]);
        while !bytes.is_empty() {
            let before = cursor.place();
            let (kind, n) = cursor.next(self.program, &mut self.state, direction, self.role, bytes);
            assert!((1..=bytes.len()).contains(&n), "{kind:?} {n} of {}", bytes.len());
            if let Place::Opaque(_) = before {
                assert_eq!(kind, SpanKind::Opaque, "what was promised holds");
            }
            match kind {
                SpanKind::Opaque => match cuts.opaque.last_mut() {
                    Some(last) if last.end == *at => last.end += n,
                    _ => cuts.opaque.push(*at..*at + n),
                },
                SpanKind::Passed => cuts.passed = cuts.passed.or(Some(*at)),
                SpanKind::Metadata => assert_eq!(cuts.passed, None, "passed is for good"),
            }
            *at += n;
            bytes = &bytes[n..];
        }
        cuts.place = Some(cursor.settle(self.program, &mut self.state, direction, self.role));
    }

    /// As the client: a request goes out.
    pub fn request(&mut self, bytes: &[u8]) {
        self.feed(Direction::Tx, bytes);
    }

    /// As the client: a response comes in.
    pub fn response(&mut self, bytes: &[u8]) {
        self.feed(Direction::Rx, bytes);
    }

    pub fn requests(&self) -> &Cuts {
        &self.cuts[Direction::Tx as usize]
    }

    pub fn responses(&self) -> &Cuts {
        &self.cuts[Direction::Rx as usize]
    }
}

/// Cuts a stream of requests, at the positions in `splits`.
pub fn cut_requests(program: &Program, stream: &[u8], splits: &[usize]) -> (Cuts, bool) {
    let mut connection = Connection::new(program, Role::Client);
    for piece in pieces(stream, splits) {
        connection.request(piece);
    }
    (connection.requests().clone(), connection.state.is_passed())
}

/// Cuts a stream of responses to these whole requests, at the positions in `splits`.
pub fn cut_responses(program: &Program, requests: &[u8], stream: &[u8], splits: &[usize]) -> (Cuts, bool) {
    let mut connection = Connection::new(program, Role::Client);
    connection.request(requests);
    assert!(!connection.state.is_passed(), "the requests are plain ones");
    for piece in pieces(stream, splits) {
        connection.response(piece);
    }
    (connection.responses().clone(), connection.state.is_passed())
}

/// `stream` cut at these positions, in any order; empty pieces are left out.
pub fn pieces<'a>(stream: &'a [u8], splits: &[usize]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = splits.iter().map(|&split| split.min(stream.len())).collect();
    at.extend([0, stream.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &stream[pair[0]..pair[1]]).filter(|piece| !piece.is_empty()).collect()
}
