//! A connection that the engine follows: where both of its streams stand.

use core::sync::atomic::{AtomicUsize, Ordering};

use libc::iovec;
use syscalls::Errno;
use underdeck_protocols::{Cursor, Direction, Place, Role as ProgramRole, SpanKind, State, UNTIL_CLOSE};
use underdeck_stats::{Block, Reason, Role};

use crate::anchor::Segment;
use crate::batch::Batch;
use crate::engine::Engine;
use crate::mark::Vpi;
use crate::messages::{RECEIVED, SENT};
use crate::{anchor, egress, iov};

/// The sending side is in the middle of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) vpi: Vpi,
    /// The message that the anchor is a part of.
    pub(crate) message: u32,
    /// Offset of the next byte in the anchor.
    pub(crate) offset: u64,
    /// Bytes of the segment from there on.
    pub(crate) left: u32,
    /// The bytes must be put back into the application's buffer instead of being spliced.
    pub(crate) by_copy: bool,
    /// The connection has taken spliced bytes of this anchor.
    pub(crate) is_proven: bool,
}

/// Open connections by role that nobody follows. What is sent on them is framed where the engine does not see it, so that
/// nothing that might leave there is anchored.
static PASSED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Connections by role to which the application could not send all that it wanted to: what they get next may have been received
/// long before.
static FULL: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Bytes of the shortest head that has content behind it: `HTTP/1.1 200 `, a Content-Length of two digits, empty line.
const SHORTEST_HEAD: u8 = 32;

/// Bytes that the application believes to have sent, held back because they may be the beginning of a mark.
#[derive(Default)]
pub(crate) struct Owed {
    pub(crate) bytes: Vec<u8>,
    /// The number of the next message when they were handed in: the mark would be one of an earlier message.
    pub(crate) before: u32,
}

/// What became of the span that is being received.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Span {
    /// There is none.
    Outside,
    Copied,
    /// Copied, and its first bytes are one of the [`crate::probes`].
    Probed,
    /// Some of it was anchored.
    Anchored,
}

/// The message that is being received, or was the last one, is one of [`RECEIVED`].
const KEPT: u8 = 1;
/// Something was sent since it began: an answer.
const ANSWERED: u8 = 2;

/// What the engine knows of one connection.
pub(crate) struct Socket {
    pub(crate) fd: i32,
    pub(crate) role: Role,
    pub(crate) route: u8,
    /// Further descriptors that stand for the same connection.
    pub(crate) aliases: u8,
    /// Payload that is received here is copied, for this reason.
    pub(crate) copies: Option<Reason>,
    /// A read brought little; the next one looks before it splices.
    pub(crate) trickles: bool,
    /// The last splice took all that it asked for.
    pub(crate) flows: bool,
    /// The next metadata received is likely to be a whole head rather than the few bytes between two chunks.
    pub(crate) expects_head: bool,
    /// It is one of [`PASSED`].
    counted: bool,
    /// [`KEPT`], [`ANSWERED`].
    request: u8,
    /// The message of the last span was not over with it.
    goes_on: bool,
    /// Bytes of metadata since the last span.
    between: u8,
    /// The message that is being received is copied because anchoring did not pay; none: not asked yet.
    copies_message: Option<bool>,
    span: Span,
    state: State,
    pub(crate) rx: Cursor,
    pub(crate) tx: Cursor,
    /// The number of the message that is being received.
    pub(crate) message: u32,
    /// Where payload of the present span goes.
    pub(crate) anchor: Option<Vpi>,
    /// Bytes of the span that its anchor holds behind those that the application was given.
    pub(crate) ahead: u32,
    /// Bytes that the kernel is sure to take, when it was last asked, less what was accepted since.
    pub(crate) room: u32,
    /// Bytes of the largest packet that the kernel makes here. 0: not known.
    pub(crate) packet: u16,
    pub(crate) link: Option<Link>,
    /// Payload that was accepted and has not left yet.
    pub(crate) batch: Option<Box<Batch>>,
    /// What goes through this connection inside TLS, where the TLS library is one that the engine sees.
    pub(crate) tls: Option<Box<crate::tls::Tls>>,
    pub(crate) owed: Option<Box<Owed>>,
    /// It is one of [`FULL`].
    is_full: bool,
    /// Bytes of the beginning of a mark that were sent as they are, because no mark could begin there.
    pub(crate) let_out: u8,
    /// Errors that the kernel told after part of a call had succeeded; due at the next call.
    pub(crate) rx_error: i16,
    pub(crate) tx_error: i16,
}

/// Whether a connection on which what was received by `role` may leave takes no more at the moment.
pub(crate) fn is_other_side_full(role: Role) -> bool {
    FULL[1 - role as usize].load(Ordering::Relaxed) > 0
}

/// In the child of a fork: the connections are the parent's.
pub(crate) fn forget_counts() {
    PASSED.iter().chain(&FULL).for_each(|count| count.store(0, Ordering::Relaxed));
}

impl Socket {
    pub(crate) fn new(role: Role, route: u8, copies: Option<Reason>) -> Self {
        Self {
            fd: -1,
            role,
            route,
            aliases: 0,
            copies,
            trickles: false,
            flows: false,
            expects_head: true,
            counted: false,
            request: 0,
            goes_on: false,
            between: 0,
            span: Span::Outside,
            copies_message: None,
            state: State::new(),
            rx: Cursor::new(),
            tx: Cursor::new(),
            message: anchor::new_message(),
            anchor: None,
            ahead: 0,
            room: 0,
            packet: 0,
            link: None,
            batch: None,
            tls: None,
            owed: None,
            is_full: false,
            let_out: 0,
            rx_error: 0,
            tx_error: 0,
        }
    }

    /// An error as it is kept until the next call.
    pub(crate) fn due(error: Errno) -> i16 {
        error.into_raw() as i16 // at most 4095 (`MAX_ERRNO`)
    }

    fn program_role(&self) -> ProgramRole {
        match self.role {
            Role::Accepted => ProgramRole::Server,
            Role::Connected => ProgramRole::Client,
        }
    }

    /// What the next received byte is.
    pub(crate) fn rx_place(&self) -> Place {
        if self.state.is_passed() && self.rx.place() == Place::Metadata { Place::Passed } else { self.rx.place() }
    }

    /// What the next sent byte is; asks the program where it is between two spans.
    pub(crate) fn tx_place(&mut self, engine: &Engine) -> Place {
        let role = self.program_role();
        self.tx.settle(&engine.program, &mut self.state, Direction::Tx, role)
    }

    /// Follows no stream of this connection any more: something went by that cannot be seen.
    pub(crate) fn pass(&mut self) {
        self.state.pass();
        self.rx.pass();
        self.tx.pass();
        self.count_pass();
    }

    /// True: nobody knew it before.
    fn count_pass(&mut self) -> bool {
        // What goes through TLS is followed inside.
        let is_new = !self.counted && self.tls.is_none();
        if is_new {
            self.counted = true;
            PASSED[self.role as usize].fetch_add(1, Ordering::Relaxed);
        }
        is_new
    }

    /// It is closed, or followed after all.
    pub(crate) fn uncount_pass(&mut self) {
        if core::mem::take(&mut self.counted) {
            PASSED[self.role as usize].fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the application has more to send than the kernel takes.
    #[inline]
    pub(crate) fn note_full(&mut self, is_full: bool) {
        if self.is_full != is_full {
            self.is_full = is_full;
            let full = &FULL[self.role as usize];
            if is_full {
                full.fetch_add(1, Ordering::Relaxed)
            } else {
                full.fetch_sub(1, Ordering::Relaxed)
            };
        }
    }

    /// Whether payload received here might leave on a connection that nobody follows.
    pub(crate) fn may_leave_unseen(&self) -> bool {
        PASSED[1 - self.role as usize].load(Ordering::Relaxed) > 0
    }

    /// Bytes `from..from + len` of `iov` were received as copies.
    pub(crate) fn received(&mut self, engine: &Engine, iov: &[iovec], from: usize, len: usize, why: Reason) {
        for (address, bytes) in iov::pieces(iov, from, len) {
            // SAFETY: the kernel has just written these bytes into the application's buffer.
            let mut rest = unsafe { core::slice::from_raw_parts(address, bytes) };
            while !rest.is_empty() {
                let (role, is_new) = (self.program_role(), !self.rx.is_inside());
                let (kind, n) = self.rx.next(&engine.program, &mut self.state, Direction::Rx, role, rest);
                match kind {
                    SpanKind::Metadata => {
                        if is_new {
                            self.request &= !ANSWERED;
                        }
                        self.between = self.between.saturating_add(u8::try_from(n).unwrap_or(u8::MAX))
                    }
                    SpanKind::Opaque => {
                        if self.role == Role::Accepted && engine.routes.is_unproven(self.route) {
                            self.probe(engine, &rest[..n.min(rest.len())]);
                        }
                        self.payload(engine, n, Some(why));
                    }
                    SpanKind::Passed => {
                        self.count_pass();
                        return engine.stats.copied(self.role, Reason::ProtocolPass, rest.len() as u64);
                    }
                }
                rest = &rest[n.min(rest.len())..];
            }
        }
    }

    /// Whether payload received here may be anchored, as far as it is known where it leaves.
    pub(crate) fn is_trusted(&self, engine: &Engine) -> bool {
        self.role == Role::Connected || engine.routes.is_proven(self.route)
    }

    /// Payload that begins with `bytes` is copied because nobody knows yet where it will leave.
    fn probe(&mut self, engine: &Engine, bytes: &[u8]) {
        let left = if let Place::Opaque(left) = self.rx.place() { left } else { 0 };
        let len = left.saturating_add(bytes.len() as u64);
        self.enter_span(engine, len);
        let is_due = self.span == Span::Copied && self.copies.is_none() && len >= engine.config.min_body;
        if is_due && engine.probes.remember(self.route, bytes) {
            self.span = Span::Probed;
        }
    }

    /// `len` bytes of payload were anchored.
    pub(crate) fn anchored(&mut self, engine: &Engine, len: usize) {
        self.rx.skip_opaque(len as u64);
        self.payload(engine, len, None);
    }

    /// Payload went by that the application moved itself, without looking.
    pub(crate) fn skipped_rx(&mut self, engine: &Engine, len: usize) {
        match self.rx.place() {
            Place::Opaque(left) if left >= len as u64 => {
                self.rx.skip_opaque(len as u64);
                self.payload(engine, len, Some(Reason::CallFlags));
            }
            _ => self.pass(),
        }
    }

    fn payload(&mut self, engine: &Engine, len: usize, copied: Option<Reason>) {
        let left = if let Place::Opaque(left) = self.rx.place() { left } else { 0 };
        self.enter_span(engine, left.saturating_add(len as u64));
        let role = engine.stats.role(self.role);
        match copied {
            Some(why) => engine.stats.copied(self.role, why, len as u64),
            None => self.span = Span::Anchored,
        }
        if !matches!(self.rx.place(), Place::Opaque(_)) {
            let span = core::mem::replace(&mut self.span, Span::Outside);
            self.expects_head = false;
            Block::add(if span == Span::Anchored { &role.messages_anchored } else { &role.messages_copied }, 1);
            self.detach(engine);
            self.goes_on = self.rx_is_inside(engine);
            self.between = 0;
            if !self.goes_on && (self.role == Role::Connected || self.request & ANSWERED != 0) {
                self.give_message_up();
            }
        }
    }

    /// Payload of `len` bytes begins, if it has not yet.
    pub(crate) fn enter_span(&mut self, engine: &Engine, len: u64) {
        if self.span != Span::Outside {
            return;
        }
        self.span = Span::Copied;
        // A line between two chunks is shorter than any head.
        if !self.goes_on || self.between >= SHORTEST_HEAD {
            self.give_message_up();
            self.message = anchor::new_message();
            self.copies_message = None;
        }
        Block::add(&engine.stats.role(self.role).messages, 1);
        engine.routes.message(self.route, len >= engine.config.min_body);
    }

    /// Whether the message that is being received is copied because anchoring did not pay.
    pub(crate) fn copies_message(&self) -> bool {
        self.copies_message == Some(true)
    }

    /// The same, decided now if it was not: once for a message.
    pub(crate) fn asks_route(&mut self, engine: &Engine) -> bool {
        *self.copies_message.get_or_insert_with(|| engine.routes.copies(self.route))
    }

    /// Anchoring turned out not to pay: the rest of the message is copied.
    pub(crate) fn give_up_message(&mut self, engine: &Engine) {
        self.copies_message = Some(true);
        self.detach(engine);
    }

    /// Something of its message is anchored.
    pub(crate) fn keep_message(&mut self) {
        if self.request & KEPT == 0 {
            self.request |= KEPT;
            RECEIVED.enter(self.message);
        }
    }

    /// What nobody has begun to send of its message is not waited for.
    fn give_message_up(&mut self) {
        if self.request & KEPT != 0 {
            self.request &= !KEPT;
            RECEIVED.leave(self.message);
        }
    }

    /// The application sends `bytes`: if it has received a request, or some of it, that is its answer, unless it only tells the
    /// client to go on (100).
    fn answers(&mut self, bytes: &[u8]) {
        const INTERIM: &[u8] = b"HTTP/1.1 1";
        if self.role == Role::Connected || self.request == ANSWERED || bytes.starts_with(INTERIM) {
            return;
        }
        self.request |= ANSWERED;
        if self.span == Span::Outside && !self.goes_on {
            self.give_message_up();
        }
    }

    fn rx_is_inside(&mut self, engine: &Engine) -> bool {
        self.rx_settle(engine);
        self.rx.is_inside()
    }

    fn rx_settle(&mut self, engine: &Engine) -> Place {
        let role = self.program_role();
        self.rx.settle(&engine.program, &mut self.state, Direction::Rx, role)
    }

    /// Whether there are no messages any more in either direction (CONNECT, 101).
    pub(crate) fn is_tunnel(&mut self, engine: &Engine) -> bool {
        const TUNNEL: Place = Place::Opaque(UNTIL_CLOSE);
        self.tx_place(engine) == TUNNEL && self.rx_settle(engine) == TUNNEL
    }

    /// The span is over, or the connection is: what is anchored lives on by itself.
    pub(crate) fn detach(&mut self, engine: &Engine) {
        if let Some(vpi) = self.anchor.take() {
            anchor::detach(engine, vpi);
        }
    }

    /// Bytes `from..from + len` of `iov` were sent as they are.
    pub(crate) fn sent(&mut self, engine: &Engine, iov: &[iovec], from: usize, len: usize) {
        for (address, bytes) in iov::pieces(iov, from, len) {
            // SAFETY: the application handed these bytes in to be read.
            self.sent_bytes(engine, unsafe { core::slice::from_raw_parts(address, bytes) });
        }
    }

    pub(crate) fn sent_bytes(&mut self, engine: &Engine, mut bytes: &[u8]) {
        self.filled(bytes.len());
        self.answers(bytes);
        let role = self.program_role();
        while !bytes.is_empty() {
            let (kind, n) = self.tx.next(&engine.program, &mut self.state, Direction::Tx, role, bytes);
            if kind == SpanKind::Passed {
                return self.leave_unseen(engine, bytes);
            }
            let (these, rest) = bytes.split_at(n.min(bytes.len()));
            if kind == SpanKind::Opaque
                && engine.probes.are_some()
                && self.role == Role::Connected
                && let Some(listener) = engine.probes.recognise(these)
            {
                engine.routes.prove(listener);
            }
            bytes = rest;
        }
    }

    /// The connection goes on with `bytes`, and with what nobody follows. Inside TLS nobody could even see a placeholder: uploads
    /// of which nothing has left yet, and which may be meant for this connection, must not reach it.
    fn leave_unseen(&mut self, engine: &Engine, bytes: &[u8]) {
        const HTTP2: &[u8] = b"PRI * HTTP/2.0";
        let is_new = self.count_pass();
        // In clear text, and inside TLS whose library the engine sees, placeholders are seen, too.
        let is_seen = bytes.starts_with(HTTP2) || self.copies == Some(Reason::ExitTls);
        if !is_new || is_seen || self.role == Role::Accepted || engine.config.is_checked {
            return;
        }
        let listeners = anchor::unsent_uploads();
        for listener in &listeners {
            engine.routes.disprove(*listener);
        }
        if !listeners.is_empty() {
            egress::doubt(engine, self, "it may be TLS, and uploads were anchored that may be meant for it");
        }
    }

    /// Bytes that were accepted and have not left yet.
    pub(crate) fn waiting(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.len)
    }

    /// `len` bytes were given to the kernel to send, or are about to be.
    fn filled(&mut self, len: usize) {
        self.room = self.room.saturating_sub(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// `len` bytes of payload were sent from where they lay.
    pub(crate) fn skipped_tx(&mut self, engine: &Engine, len: usize) {
        self.filled(len);
        match self.tx_place(engine) {
            Place::Opaque(left) if left >= len as u64 => self.tx.skip_opaque(len as u64),
            Place::Passed => {}
            _ => self.pass(),
        }
    }

    /// The offset of the first byte of a segment that was not accepted for sending here.
    pub(crate) fn next_of(&self, vpi: Vpi, segment: Segment) -> u64 {
        let next = segment.next();
        match &self.batch {
            Some(batch) if batch.vpi == vpi && (batch.offset..batch.end()).contains(&next) => {
                batch.end().min(segment.end())
            }
            _ => next,
        }
    }

    /// Where the sending side stands; see [`Socket::set_tx_position`].
    pub(crate) fn tx_position(&self) -> (Cursor, State) {
        (self.tx.clone(), self.state.clone())
    }

    /// Goes back to where the sending side stood.
    pub(crate) fn set_tx_position(&mut self, (tx, state): (Cursor, State)) {
        (self.tx, self.state) = (tx, state);
    }

    /// How many of the bytes from `from` on are metadata, without moving on.
    pub(crate) fn metadata_ahead(&self, engine: &Engine, iov: &[iovec], from: usize, len: usize) -> usize {
        let (mut tx, mut state) = (self.tx.clone(), self.state.clone());
        let mut metadata = 0;
        for (address, bytes) in iov::pieces(iov, from, len) {
            // SAFETY: the application handed these bytes in to be read.
            let mut rest = unsafe { core::slice::from_raw_parts(address, bytes) };
            while !rest.is_empty() {
                let (kind, n) = tx.next(&engine.program, &mut state, Direction::Tx, self.program_role(), rest);
                if kind != SpanKind::Metadata {
                    return metadata;
                }
                metadata += n;
                rest = &rest[n.min(rest.len())..];
            }
        }
        metadata
    }

    /// Where, in the next `len` bytes, a span of payload ends with what may be the first bytes of a mark, cut by a line
    /// between two chunks.
    pub(crate) fn cut_mark_ahead(&self, engine: &Engine, iov: &[iovec], from: usize, len: usize) -> Option<usize> {
        let (mut tx, mut state) = (self.tx.clone(), self.state.clone());
        let mut before = 0;
        for (address, bytes) in iov::pieces(iov, from, len) {
            // SAFETY: the application handed these bytes in to be read.
            let mut rest = unsafe { core::slice::from_raw_parts(address, bytes) };
            while !rest.is_empty() {
                let (kind, n) = tx.next(&engine.program, &mut state, Direction::Tx, self.program_role(), rest);
                let n = n.min(rest.len());
                match kind {
                    SpanKind::Passed => return None,
                    SpanKind::Opaque if !matches!(tx.place(), Place::Opaque(_)) => {
                        if let Some(cut) = engine.magic.cut_at_the_end(&rest[..n]) {
                            return Some(before + cut);
                        }
                    }
                    _ => {}
                }
                before += n;
                rest = &rest[n..];
            }
        }
        None
    }

    /// Collects the next bytes of payload that the application sends, over whatever metadata stands between them, without
    /// moving on: how many there are (up to the length of `to`), and whether more is to come after this call. Where metadata
    /// comes first: none, unless `skips`.
    pub(crate) fn payload_ahead(
        &mut self,
        engine: &Engine,
        iov: &[iovec],
        from: usize,
        len: usize,
        to: &mut [u8],
        skips: bool,
    ) -> (usize, bool) {
        self.tx_place(engine);
        let (mut tx, mut state) = (self.tx.clone(), self.state.clone());
        let mut have = 0;
        for (address, bytes) in iov::pieces(iov, from, len) {
            // SAFETY: the application handed these bytes in to be read.
            let mut rest = unsafe { core::slice::from_raw_parts(address, bytes) };
            while !rest.is_empty() && have < to.len() {
                let (kind, n) = tx.next(&engine.program, &mut state, Direction::Tx, self.program_role(), rest);
                let n = n.min(rest.len());
                match kind {
                    SpanKind::Metadata if have == 0 && !skips => return (0, true),
                    SpanKind::Metadata => {}
                    SpanKind::Opaque | SpanKind::Passed => {
                        let taken = n.min(to.len() - have);
                        to[have..have + taken].copy_from_slice(&rest[..taken]);
                        have += taken;
                    }
                }
                rest = &rest[n..];
            }
        }
        tx.settle(&engine.program, &mut state, Direction::Tx, self.program_role());
        (have, tx.is_inside())
    }

    /// The connection is being closed: what was being sent on it, and was not sent, never will be.
    pub(crate) fn abandon(&mut self, engine: &Engine) {
        self.uncount_pass();
        self.note_full(false);
        if let Some(mut tls) = self.tls.take() {
            tls.inside.abandon(engine);
        }
        if let Some(link) = self.link.take() {
            SENT.leave(link.message);
            anchor::abandon(engine, link.message);
        }
        self.give_message_up();
    }
}
