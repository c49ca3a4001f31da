//! A protocol program, loaded and ready to cut.

use crate::abi::{Direction, Role};
use crate::accepted::Accepted;

/// What a program said of the bytes at the beginning of its window, checked against the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// 1 <= span <= the window's length.
    Metadata(u32),
    /// 1 <= span.
    Opaque(u64),
    /// Only with a window that is not full.
    NeedMore,
    /// Said so, or broke the contract.
    Pass,
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
pub enum LoadError {}

/// A protocol program. Immutable, shared by all threads.
#[derive(Debug)]
pub struct Program {
    name: String,
}

impl Program {
    /// The program of this name that the project ships ("http1", "lenprefix"), or None.
    #[must_use]
    pub fn shipped(name: &str) -> Option<Result<Program, LoadError>> {
        matches!(name, "http1" | "lenprefix").then(|| Ok(Program { name: name.into() }))
    }

    /// Loads an object file. It is compiled to machine code if its digest is in `accepted`, else interpreted.
    ///
    /// # Errors
    /// If it is not an object that the contract allows; see [`LoadError`].
    pub fn from_object(_elf: &[u8], _accepted: &Accepted) -> Result<Program, LoadError> {
        Ok(Program { name: String::new() })
    }

    /// The name that the object gives itself.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn cut(&self, _: &mut [u64; 8], _: Direction, _: Role, _carry: &[u8], fresh: &[u8]) -> Cut {
        if fresh.is_empty() { Cut::NeedMore } else { Cut::Pass }
    }
}
