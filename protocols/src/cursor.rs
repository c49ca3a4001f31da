//! Where one direction of one connection stands between spans.

use crate::abi::{Direction, Role, UD_STATE_WORDS, UNTIL_CLOSE, WINDOW};
use crate::program::{Cut, Program, Then};

/// Memory of a protocol program for one connection, shared by both directions. Begins as zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    words: [u64; UD_STATE_WORDS as usize],
    passed: bool,
}

impl State {
    /// The state of a connection on which nothing has happened yet.
    #[must_use]
    pub const fn new() -> Self {
        State { words: [0; UD_STATE_WORDS as usize], passed: false }
    }

    /// Whether the program gave this connection up in either direction.
    ///
    /// The other direction's cursor still finishes an opaque span that it is in (its length is exact), then passes too.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.passed
    }

    /// Gives the whole connection up: both cursors pass at the end of the span they are in.
    pub fn pass(&mut self) {
        self.passed = true;
    }
}

/// What the next byte of a stream is, as far as is known before it has been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It must be shown to the process (or is not known yet).
    Metadata,
    /// It begins so many bytes of payload; [`UNTIL_CLOSE`] for all that is to come.
    Opaque(u64),
    /// Nobody follows this stream any more.
    Passed,
}

/// What a run of bytes turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// The process must see them.
    Metadata,
    /// Payload: nobody needs to look at them.
    Opaque,
    /// The program gave the connection up; these bytes and all that follow are none of our business.
    Passed,
}

/// Bytes that have gone by, but that the program wants to see again together with more.
#[derive(Clone)]
struct Carry {
    bytes: [u8; WINDOW],
}

impl Carry {
    /// The first `carried` bytes with `fresh` behind them, together at most a window.
    #[cold]
    fn followed_by(&mut self, carried: usize, fresh: &[u8]) -> &[u8] {
        let end = carried + fresh.len();
        self.bytes[carried..end].copy_from_slice(fresh);
        &self.bytes[..end]
    }
}

/// Where one direction of a connection stands. 24 bytes; a carry buffer is allocated once, and only on a connection where a
/// program asked for more bytes than one slice held.
#[derive(Clone, Default)]
pub struct Cursor {
    opaque_left: u64,
    carry: Option<Box<Carry>>,
    carried: u16,
    passed: bool,
    inside: bool,
}

const _: () = assert!(size_of::<Cursor>() <= 24);

impl Cursor {
    /// The cursor at the beginning of a stream.
    #[must_use]
    pub const fn new() -> Self {
        Cursor { opaque_left: 0, carry: None, carried: 0, passed: false, inside: false }
    }

    /// What the next byte is, without asking the program. See [`Cursor::settle`].
    #[must_use]
    pub fn place(&self) -> Place {
        match (self.opaque_left, self.passed) {
            (0, false) => Place::Metadata,
            (0, true) => Place::Passed,
            (left, _) => Place::Opaque(left),
        }
    }

    /// What the next byte is; asks the program (with an empty window) when the cursor stands between two spans.
    ///
    /// [`Cursor::next`] does this at the end of each slice. It is worth asking again when the *other* direction has
    /// moved in between: a response of 101 makes a tunnel of both.
    pub fn settle(&mut self, program: &Program, state: &mut State, direction: Direction, role: Role) -> Place {
        if self.opaque_left == 0 && self.carried == 0 && !self.passed {
            if state.passed {
                self.pass();
            } else {
                match program.cut(&mut state.words, direction, role, &[]) {
                    Cut::NeedMore(inside) => self.inside = inside,
                    Cut::Opaque(span) => self.opaque_left = span,
                    // Nothing is there that could be metadata: a broken program.
                    Cut::Metadata(..) | Cut::Pass => self.give_up(state),
                }
            }
        }
        self.place()
    }

    /// Consumes the beginning of `bytes`, the next bytes of the stream: returns what they are and how many of them
    /// (at least one, unless `bytes` is empty). Call it again with the rest until all is consumed.
    ///
    /// Consecutive metadata spans come as one. Bytes that the program wants to see again together with later ones count
    /// as metadata. Does not allocate, except for the one carry buffer of the cursor; never panics, whatever the
    /// program does: a verdict that breaks the contract counts as pass.
    pub fn next(
        &mut self,
        program: &Program,
        state: &mut State,
        direction: Direction,
        role: Role,
        bytes: &[u8],
    ) -> (SpanKind, usize) {
        let (mut metadata, mut settled) = (0, false);
        loop {
            let rest = &bytes[metadata..];
            if rest.is_empty() {
                if !settled {
                    self.settle(program, state, direction, role);
                }
                return (SpanKind::Metadata, metadata);
            }
            if self.opaque_left > 0 {
                return if metadata > 0 { (SpanKind::Metadata, metadata) } else { self.take_opaque(rest.len()) };
            }
            if self.passed || state.passed {
                self.pass();
                return if metadata > 0 { (SpanKind::Metadata, metadata) } else { (SpanKind::Passed, rest.len()) };
            }
            let n;
            (n, settled) = self.cut(program, state, direction, role, rest);
            metadata += n;
        }
    }

    /// Whether the stream is inside a message, so that more is bound to follow, as far as the program says so.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        !self.passed && (self.opaque_left > 0 || self.inside)
    }

    /// Opaque bytes went by unseen, because they were spliced.
    ///
    /// `n` must not exceed what [`Place::Opaque`] said; if it does, the cursor has lost its stream and passes.
    pub fn skip_opaque(&mut self, n: u64) {
        if n > self.opaque_left {
            self.pass();
        } else if self.opaque_left != UNTIL_CLOSE {
            self.opaque_left -= n;
        }
    }

    /// Gives this direction up.
    pub fn pass(&mut self) {
        *self = Cursor { passed: true, ..Cursor::new() };
    }

    fn give_up(&mut self, state: &mut State) {
        state.passed = true;
        self.pass();
    }

    fn take_opaque(&mut self, available: usize) -> (SpanKind, usize) {
        let taken = self.opaque_left.min(available as u64);
        self.skip_opaque(taken);
        (SpanKind::Opaque, taken as usize)
    }

    /// One cut at the carried bytes followed by `bytes` (not empty). Returns how many of `bytes` became metadata, and whether
    /// it is known already what comes behind them.
    fn cut(
        &mut self,
        program: &Program,
        state: &mut State,
        direction: Direction,
        role: Role,
        bytes: &[u8],
    ) -> (usize, bool) {
        let carried = usize::from(self.carried);
        let fresh = &bytes[..bytes.len().min(WINDOW - carried)];
        let window = match &mut self.carry {
            Some(carry) if carried > 0 => carry.followed_by(carried, fresh),
            _ => fresh,
        };
        match program.cut(&mut state.words, direction, role, window) {
            Cut::Metadata(span, then) => {
                let from_carry = carried.min(span as usize);
                self.drop_carried(from_carry);
                match then {
                    Then::Ask => {}
                    Then::Opaque(span) => self.begin_opaque(span),
                    Then::Between => self.inside = false,
                }
                (span as usize - from_carry, then != Then::Ask)
            }
            Cut::Opaque(span) => {
                self.begin_opaque(span);
                (0, true)
            }
            Cut::NeedMore(inside) => {
                self.inside = inside;
                self.keep(fresh);
                (fresh.len(), true)
            }
            Cut::Pass => {
                self.give_up(state);
                (0, true)
            }
        }
    }

    /// Payload begins. Carried bytes were given out as metadata already; what is opaque of those behind them stays exact.
    fn begin_opaque(&mut self, span: u64) {
        let from_carry = span.min(u64::from(self.carried));
        self.drop_carried(from_carry as usize);
        self.opaque_left = if span == UNTIL_CLOSE { span } else { span - from_carry };
    }

    /// The program wants to see these bytes again, behind those that are carried already.
    #[cold]
    fn keep(&mut self, fresh: &[u8]) {
        let carried = usize::from(self.carried);
        let carry = self.carry.get_or_insert_with(|| Box::new(Carry { bytes: [0; WINDOW] }));
        self.carried = carry.followed_by(carried, fresh).len() as u16;
    }

    #[inline]
    fn drop_carried(&mut self, n: usize) {
        if n > 0 {
            self.drop_first_carried(n);
        }
    }

    #[cold]
    fn drop_first_carried(&mut self, n: usize) {
        if let Some(carry) = &mut self.carry {
            carry.bytes.copy_within(n..usize::from(self.carried), 0);
        }
        self.carried -= n as u16;
    }
}
