//! Takes a live TCP connection out of one kernel and puts it into another, without a packet to the peer.
//!
//! # Order of calls
//!
//! ```text
//! host A                                        host B
//! ──────                                        ──────
//! block the peer's packets (steer)
//! freeze(fd, blob) -> Frozen
//! frozen.snapshot().encode()  ── bytes ──>      Snapshot::decode(bytes)
//!                                               thaw(&snapshot, local) -> Thawing
//!                                               rewrite the source, block the peer's packets (steer)
//!                                               thawing.half_close()
//! redirect the peer's packets (steer)           <── ready ──
//! frozen.release()            ── go ──>         lift the block (steer)
//!                                               thawing.finish() -> fd
//! ```
//!
//! Anything that fails before `release` is undone by [`Frozen::resume`] on host A, after the block is lifted: the peer
//! notices a delay at most. The block on host B is what makes that true: a connection in repair mode acknowledges what
//! arrives, and if it is given up then, nobody has that data. After `go` nothing can fail but for want of memory.
//! `finish` may also come before `redirect`: then what is unacknowledged or unsent leaves at once, and the peer's answers
//! are lost until the redirection stands.
//!
//! # Ownership
//!
//! [`freeze()`] takes the descriptor and [`Frozen`] keeps it; an error gives it back. [`Thawing::finish`] gives a new one.
//! No descriptor may be shared with another process or thread while it is frozen.
//!
//! # What travels
//!
//! Sequence numbers, both queues (unread, unacknowledged and unsent bytes), windows, what was negotiated in the
//! handshake, half-closed states, socket options, kernel TLS keys between records, and a blob of the application.
//! Not restorable on Linux: the congestion window and RTT estimate, out-of-order segments and SACK state (the peer
//! retransmits them), urgent data (refused), ECN (switched off), the peer's last timestamp (echoed again from the first
//! segment on that arrives).
//!
//! # Privilege
//!
//! `CAP_NET_ADMIN` in the user namespace of the network namespace; half-closed connections need `CAP_NET_RAW` too. Without
//! it a connection with unacknowledged data waits for a retransmission time-out after each move. All calls are made in the
//! network namespace of the connection.

mod encode;
mod error;
mod freeze;
mod half_close;
mod ktls;
mod options;
mod resend;
mod segment;
mod snapshot;
mod sys;
mod thaw;

pub use encode::{DecodeError, MAX_BLOB, MAX_QUEUE};
pub use error::{Error, FreezeError};
pub use freeze::{Frozen, freeze};
pub use ktls::KtlsError;
pub use snapshot::{Negotiated, Queue, Snapshot, TcpState};
pub use thaw::{Thawing, thaw, thaw_foreign};
