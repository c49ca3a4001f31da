//! What a balancer and its backends say to each other while a connection is handed over.
//!
//! ```text
//! balancer                              backend
//!   block, freeze
//!   BEGIN_OFFLOAD(snapshot) ──────────>   thaw, rewrite the source
//!   <────────────────── SERVER_READY(address)
//!   redirect
//!   LB_READY ─────────────────────────>   finish, serve
//!   release  <──────────────────── TAKEN
//!                                         block, freeze
//!   <────────────── SERVER_DONE(snapshot)
//!   thaw, remove the redirection, finish
//!   END_OFFLOAD ──────────────────────>   release, remove its rules
//! ```
//!
//! If TAKEN or END_OFFLOAD is overdue, the side that waits asks with an abort: see [`machine`].
//!
//! [`message`] is the codec, [`machine`] decides what follows what, [`tls`] is the channel and [`keys`] makes its
//! certificates, [`policy`] says who answers a request. Only `tls` touches a socket.

pub mod keys;
pub mod machine;
pub mod message;
pub mod policy;
pub mod tls;
