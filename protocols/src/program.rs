//! A protocol program, loaded and ready to cut.

use crate::abi::{BETWEEN, Direction, Role, UD_STATE_WORDS, UNTIL_CLOSE, WINDOW, ud_cut, ud_verdict};
use crate::accepted::{Accepted, Digest};
use crate::engine::{Engine, Interpreter};
use crate::object::{self, Code, ObjectError};

/// The objects that the project ships; a test shows each one to the kernel's verifier.
pub(crate) static SHIPPED: [(&str, &[u8]); 2] = [
    ("http1", include_bytes!(concat!(env!("OUT_DIR"), "/http1.bpf.o"))),
    ("lenprefix", include_bytes!(concat!(env!("OUT_DIR"), "/lenprefix.bpf.o"))),
];

/// What a program said of the bytes at the beginning of its window, checked against the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// 1 <= span <= the window's length.
    Metadata(u32, Then),
    /// 1 <= span.
    Opaque(u64),
    /// Only with a window that is not full.
    /// Whether a message is under way, so that more is bound to follow.
    NeedMore(bool),
    /// Said so, or broke the contract.
    Pass,
}

/// What a program said of the bytes behind a span of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Nothing: it is to be asked.
    Ask,
    /// 1 <= bytes.
    Opaque(u64),
    /// No message is under way.
    Between,
}

/// Which engine runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// Machine code, for objects that the kernel's verifier accepted.
    Jit,
    /// Interpreter that checks every access and the number of instructions.
    Interpreter,
}

/// Why an object cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is no protocol program.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

/// A protocol program. Immutable, shared by all threads.
#[derive(Debug)]
pub struct Program {
    name: String,
    engine: Box<dyn Engine>,
    kind: EngineKind,
}

impl Program {
    /// The program of this name that the project ships ("http1", "lenprefix"), or None.
    #[must_use]
    pub fn shipped(name: &str) -> Option<Result<Program, LoadError>> {
        Self::shipped_object(name).map(|elf| Ok(Self::compiled(object::read(elf)?)))
    }

    /// The object file of a shipped program.
    #[must_use]
    pub fn shipped_object(name: &str) -> Option<&'static [u8]> {
        SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, elf)| *elf)
    }

    /// Names of the shipped programs.
    pub fn shipped_names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// Loads an object file. It is compiled to machine code if it is shipped or its digest is in `accepted`, else
    /// interpreted.
    ///
    /// # Errors
    /// If it is not an object that the contract allows; see [`LoadError`].
    pub fn from_object(elf: &[u8], accepted: &Accepted) -> Result<Program, LoadError> {
        let code = object::read(elf)?;
        if accepted.contains(&Digest::of(elf)) || SHIPPED.iter().any(|(_, shipped)| *shipped == elf) {
            Ok(Self::compiled(code))
        } else {
            Ok(Self::interpreted(code, true))
        }
    }

    /// Loads an object file into the interpreter, whoever accepted it, and runs nothing but the object's own code: slow,
    /// for tests and checks.
    ///
    /// # Errors
    /// If it is not an object that the contract allows; see [`LoadError`].
    pub fn plain(elf: &[u8]) -> Result<Program, LoadError> {
        Ok(Self::interpreted(object::read(elf)?, false))
    }

    /// The name that the object gives itself.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which engine runs it.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.kind
    }

    fn interpreted(code: Code, native_leaves: bool) -> Program {
        let name = code.name.clone();
        Program { name, engine: Box::new(Interpreter::new(code, native_leaves)), kind: EngineKind::Interpreter }
    }

    /// The caller answers for it that the kernel's verifier accepted the object.
    ///
    /// Where there is no compiler for the machine, or no executable memory to be had, the interpreter does it.
    fn compiled(code: Code) -> Program {
        #[cfg(target_arch = "x86_64")]
        if let Ok(jit) = crate::engine::Jit::new(&code) {
            return Program { name: code.name, engine: Box::new(jit), kind: EngineKind::Jit };
        }
        Self::interpreted(code, true)
    }

    /// Runs the program on a context as it is.
    #[cfg(feature = "kernel")]
    pub(crate) fn run(&self, cut: &mut ud_cut) -> Result<(), crate::engine::Trap> {
        self.engine.run(cut)
    }

    /// One cut at `bytes`, at most a window.
    pub(crate) fn cut(
        &self,
        state: &mut [u64; UD_STATE_WORDS as usize],
        direction: Direction,
        role: Role,
        bytes: &[u8],
    ) -> Cut {
        let len = bytes.len();
        let mut cut = ud_cut {
            window: [0; WINDOW],
            len: len as u32,
            direction: direction as u32,
            role: role as u32,
            verdict: ud_verdict::UD_PASS,
            span: 0,
            state: *state,
            then: 0,
        };
        let Some(window) = cut.window.get_mut(..len) else { return Cut::Pass };
        window.copy_from_slice(bytes);
        if self.engine.run(&mut cut).is_err() {
            return Cut::Pass;
        }
        let verdict = match (cut.verdict, cut.span) {
            (ud_verdict::UD_METADATA, span @ 1..) if span <= len as u64 => Cut::Metadata(
                span as u32,
                match cut.then {
                    0 => Then::Ask,
                    BETWEEN => Then::Between,
                    span => Then::Opaque(span),
                },
            ),
            (ud_verdict::UD_OPAQUE, span @ 1..=UNTIL_CLOSE) => Cut::Opaque(span),
            (ud_verdict::UD_NEED_MORE, span) if len < WINDOW => return Cut::NeedMore(span != 0),
            _ => return Cut::Pass,
        };
        *state = cut.state;
        verdict
    }
}
