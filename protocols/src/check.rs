//! What `underdeck protocol check` and `underdeck protocol accept` do.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::abi::{BETWEEN, Direction, Role, WINDOW, ud_cut, ud_verdict};
use crate::accepted::{Accepted, AcceptedError, Digest};
use crate::cursor::{Cursor, SpanKind, State};
use crate::kernel::{KernelError, Loaded};
use crate::program::{LoadError, Program};

/// A stream to show to a program.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Its bytes, from the beginning of a connection on.
    pub bytes: &'a [u8],
    /// Who opened the connection.
    pub role: Role,
    /// The direction of the stream.
    pub direction: Direction,
}

/// A run of bytes of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it is.
    pub kind: SpanKind,
    /// Its length.
    pub bytes: u64,
}

/// Something that a program does against the contract, with the shortest proof.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// A verdict that is none, or a span out of bounds: the engine would pass.
    #[error("{at}: verdict {verdict} with span {span} breaks the contract (len was {len})")]
    Invalid {
        /// Which input, and which cut of it.
        at: String,
        /// The verdict.
        verdict: u32,
        /// The span.
        span: u64,
        /// Bytes in the window.
        len: u32,
    },
    /// The result depends on window bytes from `len` on.
    #[error("{at}: the result depends on bytes of the window from len ({len}) on")]
    BeyondLen {
        /// Which input, and which cut of it.
        at: String,
        /// Bytes in the window.
        len: u32,
    },
    /// Two runs or two engines disagree: an instruction or a leaf function means different things.
    #[error(
        "{at}: {engine} disagrees with the interpreter; is a function named like one of leaf.bpf.h, but different?"
    )]
    Engines {
        /// Which input, and which cut of it.
        at: String,
        /// The kernel, or machine code with native leaves.
        engine: &'static str,
    },
    /// It left its memory or ran too long, although the verifier accepted it.
    #[error("{at}: the interpreter stopped it")]
    Trap {
        /// Which input, and which cut of it.
        at: String,
    },
    /// Cutting the input at another position gives other opaque bytes.
    #[error("the opaque bytes change when the input arrives in two pieces, cut at {split}")]
    Split {
        /// The position.
        split: usize,
    },
}

/// What was found out about an object that the kernel's verifier accepted.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name that the object gives itself.
    pub name: String,
    /// Its digest, as `accept` writes it down.
    pub digest: Digest,
    /// Cuts that were tried, in three engines each.
    pub cuts: usize,
    /// What is wrong. Empty: nothing was found.
    pub findings: Vec<Finding>,
    /// What the program makes of the given input, adjacent spans of one kind merged.
    pub spans: Vec<Span>,
}

/// Why an object could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The kernel did not take it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The engine did not take it.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Why a digest could not be written down.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The kernel did not take the object.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The file that is there is not as it must be.
    #[error(transparent)]
    File(#[from] AcceptedError),
    /// The file cannot be written.
    #[error("{path}: {source}")]
    Write {
        /// The file.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Findings after which there is no point in looking for more.
const MAX_FINDINGS: usize = 8;
/// Made-up streams that every program has to bear.
const STREAMS: u64 = 200;

/// Shows `elf` to the kernel's verifier, then runs it on `input` and on made-up streams in the kernel, in the interpreter
/// and as machine code, which must agree and keep to the contract.
///
/// # Errors
/// If the kernel or the engine does not take the object, or this process may not load it.
pub fn check(elf: &[u8], input: Option<Input<'_>>) -> Result<Report, CheckError> {
    let kernel = Loaded::load(elf)?;
    let plain = Program::plain(elf)?;
    let mut accepted = Accepted::none();
    accepted.insert(Digest::of(elf));
    let fast = Program::from_object(elf, &accepted)?;
    let mut check = Check { kernel, plain, fast, cuts: 0, findings: Vec::new() };

    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for number in 0..STREAMS {
        let bytes = random.stream(input.map(|input| input.bytes));
        let (role, direction) = any_side(number);
        check.stream(&format!("made-up stream {number}"), Input { bytes: &bytes, role, direction })?;
    }
    let mut spans = Vec::new();
    if let Some(input) = input {
        check.stream("input", input)?;
        spans = spans_of(&check.fast, input, input.bytes.len());
        check.splits(input, &spans);
    }
    let name = check.plain.name().to_string();
    Ok(Report { name, digest: Digest::of(elf), cuts: check.cuts, findings: check.findings, spans })
}

/// Shows `elf` to the kernel's verifier and, if it accepts, writes the digest down in `path` (by default
/// [`Accepted::PATH`]): from then on it is compiled to machine code.
///
/// # Errors
/// If the kernel does not take the object, or the file is not root's alone or cannot be written.
pub fn accept(elf: &[u8], path: &Path) -> Result<Digest, AcceptError> {
    Loaded::load(elf)?;
    let digest = Digest::of(elf);
    if Accepted::read(path)?.contains(&digest) {
        return Ok(digest);
    }
    let name = crate::object::read(elf).map_err(KernelError::from)?.name;
    let write = |source| AcceptError::Write { path: path.display().to_string(), source };
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(write)?;
    }
    let mut file = OpenOptions::new().append(true).create(true).mode(0o644).open(path).map_err(write)?;
    writeln!(file, "{digest}  {name}").map_err(write)?;
    Ok(digest)
}

fn any_side(number: u64) -> (Role, Direction) {
    (
        if number & 1 == 0 { Role::Server } else { Role::Client },
        if number & 2 == 0 { Direction::Rx } else { Direction::Tx },
    )
}

struct Check {
    kernel: Loaded,
    plain: Program,
    fast: Program,
    cuts: usize,
    findings: Vec<Finding>,
}

impl Check {
    /// Cuts one stream as a cursor would, looking at every verdict.
    fn stream(&mut self, name: &str, input: Input<'_>) -> Result<(), KernelError> {
        let mut state = [0; 8];
        let (mut from, mut len) = (0, 0);
        // A stream of n bytes has no more than n spans, and each grows byte by byte at most up to a window.
        for number in 0.. {
            if self.findings.len() >= MAX_FINDINGS {
                break;
            }
            let at = format!("{name}, cut {number}");
            let Some(cut) = self.cut(&at, &input.bytes[from..from + len], input, &state)? else { break };
            match cut.verdict {
                ud_verdict::UD_NEED_MORE if from + len == input.bytes.len() => break,
                ud_verdict::UD_NEED_MORE => len += 1,
                ud_verdict::UD_PASS => break,
                ud_verdict::UD_OPAQUE if from == input.bytes.len() => break,
                _ => {
                    state = cut.state;
                    let then = if cut.then == BETWEEN || cut.verdict == ud_verdict::UD_OPAQUE { 0 } else { cut.then };
                    let span = usize::try_from(cut.span.saturating_add(then)).unwrap_or(usize::MAX);
                    from += span.min(input.bytes.len() - from);
                    len = 0;
                }
            }
        }
        Ok(())
    }

    /// One cut in all engines, with different bytes beyond `len`. None if there was a finding.
    fn cut(
        &mut self,
        at: &str,
        bytes: &[u8],
        input: Input<'_>,
        state: &[u64; 8],
    ) -> Result<Option<ud_cut>, KernelError> {
        self.cuts += 1;
        let with = |filler: u8| {
            let mut cut = ud_cut {
                window: [filler; WINDOW],
                len: bytes.len() as u32,
                direction: input.direction as u32,
                role: input.role as u32,
                verdict: ud_verdict::UD_PASS,
                span: 0,
                state: *state,
                then: 0,
            };
            cut.window[..bytes.len()].copy_from_slice(bytes);
            cut
        };
        let at = || at.to_string();
        let (mut plain, mut other, mut fast, mut kernel) = (with(0), with(b'5'), with(0), with(0));
        if self.plain.run(&mut plain).is_err() || self.plain.run(&mut other).is_err() {
            return Ok(self.found(Finding::Trap { at: at() }));
        }
        if said(&plain) != said(&other) {
            return Ok(self.found(Finding::BeyondLen { at: at(), len: plain.len }));
        }
        if self.fast.run(&mut fast).is_err() || said(&fast) != said(&plain) {
            return Ok(self.found(Finding::Engines { at: at(), engine: "machine code" }));
        }
        self.kernel.run(&mut kernel)?;
        if said(&kernel) != said(&plain) {
            return Ok(self.found(Finding::Engines { at: at(), engine: "the kernel" }));
        }
        let (verdict, span, len) = (plain.verdict, plain.span, plain.len);
        let valid = match verdict {
            ud_verdict::UD_METADATA => (1..=u64::from(len)).contains(&span),
            ud_verdict::UD_OPAQUE => span > 0,
            ud_verdict::UD_NEED_MORE => (len as usize) < WINDOW,
            verdict => verdict == ud_verdict::UD_PASS,
        };
        if valid { Ok(Some(plain)) } else { Ok(self.found(Finding::Invalid { at: at(), verdict, span, len })) }
    }

    fn found(&mut self, finding: Finding) -> Option<ud_cut> {
        self.findings.push(finding);
        None
    }

    /// Where the input is cut in two must not matter.
    fn splits(&mut self, input: Input<'_>, whole: &[Span]) {
        let opaque = opaque_ranges(whole);
        for split in 1..input.bytes.len().min(4096) {
            if opaque_ranges(&spans_of(&self.fast, input, split)) != opaque {
                self.findings.push(Finding::Split { split });
                return;
            }
        }
    }
}

/// What counts of a result.
fn said(cut: &ud_cut) -> (u32, u64, u64, [u64; 8]) {
    match cut.verdict {
        ud_verdict::UD_METADATA => (cut.verdict, cut.span, cut.then, cut.state),
        ud_verdict::UD_OPAQUE => (cut.verdict, cut.span, 0, cut.state),
        verdict => (verdict, 0, 0, [0; 8]),
    }
}

/// The spans of `input`, arriving in two pieces.
fn spans_of(program: &Program, input: Input<'_>, split: usize) -> Vec<Span> {
    let (mut state, mut cursor) = (State::new(), Cursor::new());
    let mut spans: Vec<Span> = Vec::new();
    let (first, second) = input.bytes.split_at(split.min(input.bytes.len()));
    for mut piece in [first, second] {
        while !piece.is_empty() {
            let (kind, n) = cursor.next(program, &mut state, input.direction, input.role, piece);
            match spans.last_mut() {
                Some(last) if last.kind == kind => last.bytes += n as u64,
                _ => spans.push(Span { kind, bytes: n as u64 }),
            }
            piece = &piece[n..];
        }
    }
    spans
}

fn opaque_ranges(spans: &[Span]) -> Vec<(u64, u64)> {
    let mut at = 0;
    let mut ranges = Vec::new();
    for span in spans {
        if span.kind == SpanKind::Opaque {
            ranges.push((at, span.bytes));
        }
        at += span.bytes;
    }
    ranges
}

/// xorshift64*: the same streams every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Random bytes, small numbers, digits and blanks, or the sample with a few bytes changed.
    fn stream(&mut self, sample: Option<&[u8]>) -> Vec<u8> {
        let len = 1 + self.next() as usize % (3 * WINDOW);
        match (sample, self.next() % 4) {
            (Some(sample), 0 | 1) if !sample.is_empty() => {
                let mut bytes = sample[..sample.len().min(16 * WINDOW)].to_vec();
                for _ in 0..self.next() % 4 {
                    let at = self.next() as usize % bytes.len();
                    bytes[at] = self.next() as u8;
                }
                bytes
            }
            (_, 2) => (0..len).map(|_| self.next() as u8 % 4).collect(),
            (_, 3) => (0..len).map(|_| b"0123456789abc:, \r\n"[self.next() as usize % 18]).collect(),
            _ => (0..len).map(|_| self.next() as u8).collect(),
        }
    }
}
