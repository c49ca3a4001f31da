//! Protocol programs, and the engine that verifies and runs them in user space.
//!
//! A protocol program is eBPF, written in C once. It cuts a byte stream into spans of metadata, which a proxy must see,
//! and of payload, which nobody needs to look at. The contract is `abi/underdeck_protocol.h`.
//!
//! ```
//! use underdeck_protocols::{Cursor, Direction, Place, Program, Role, SpanKind, State};
//!
//! let http1 = Program::shipped("http1").expect("it is shipped")?;
//! let (mut state, mut requests, mut responses) = (State::new(), Cursor::new(), Cursor::new());
//!
//! let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
//! requests.next(&http1, &mut state, Direction::Tx, Role::Client, request);
//! let response = b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n";
//! let span = responses.next(&http1, &mut state, Direction::Rx, Role::Client, response);
//! assert_eq!(span, (SpanKind::Metadata, response.len()));
//! assert_eq!(responses.place(), Place::Opaque(1_048_576));
//! # Ok::<(), underdeck_protocols::LoadError>(())
//! ```

mod abi;
mod accepted;
#[cfg(feature = "kernel")]
mod check;
mod cursor;
mod engine;
#[cfg(feature = "kernel")]
mod kernel;
mod leaf;
mod object;
mod program;

pub use abi::{Direction, Role, UD_PROTOCOL_VERSION, UNTIL_CLOSE, WINDOW};
pub use accepted::{Accepted, AcceptedError, Digest};
#[cfg(feature = "kernel")]
pub use check::{AcceptError, CheckError, Finding, Input, Report, Span, accept, check};
pub use cursor::{Cursor, Place, SpanKind, State};
#[cfg(feature = "kernel")]
pub use kernel::{KernelError, Loaded};
pub use object::ObjectError;
pub use program::{EngineKind, LoadError, Program};
