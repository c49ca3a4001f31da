//! Steers the packets of single TCP connections: blocks them, redirects them to another host, and gives them another
//! source, by eBPF programs at the traffic control hooks.
//!
//! # Order of calls
//!
//! ```text
//! balancer                                         backend
//! ────────                                         ───────
//! block(client flow)
//! freeze, send the snapshot     ── snapshot ──>    thaw at one of its own ports
//!                                                  rewrite_source(flow, the balancer's address)
//!                                                  block(flow)
//! redirect(client flow, target) <── ready ──
//! release the frozen socket     ── go ──>          remove_ingress(flow), finish
//!
//!                                                  block(flow), freeze, send the snapshot
//! thaw, remove_ingress          <── snapshot ──
//!                               ── end ──>         remove_source, release, remove
//! ```
//!
//! Each host names a flow as its own sockets do: [`Flow::local`] is the balancer's address on the balancer, and the
//! backend's own address and port on the backend.
//!
//! # Tiers
//!
//! [`Tiers`] adds a second, slow tier: a device that takes long to be told about a rule ([`SlowTier`]), such as a network
//! card by way of tc flower ([`Flower`]).
//!
//! # Ownership
//!
//! A [`Steer`] owns its programs and rules, and takes them back when it is dropped or the process dies. See
//! [`Options::pin`] for rules that shall outlive it.
//!
//! # Limits
//!
//! Ethernet frames, TCP, IPv4 (options allowed) and IPv6 without extension headers; fragments are left alone. A target
//! must be another host, reached by a route out of the interface that [`Target::resolve`] finds, over any number of
//! routers. Reverse path filters on the way must let the backends send with the balancer's address.

mod abi;
mod attach;
mod error;
mod flow;
mod flower;
mod netlink;
mod ports;
mod program;
mod queue;
mod slow;
mod steer;

/// The locks of the queue. Its model test puts those of a model checker here.
mod sync {
    pub use std::sync::{Condvar, Mutex, MutexGuard};
}

pub use attach::Attachment;
pub use error::Error;
pub use flow::{Action, Counters, Flow, Rule, Target};
pub use flower::Flower;
pub use ports::{Lease, Ports};
pub use slow::{Slow, SlowCounters, SlowError, SlowTier, Tiers, WORTH_BYTES};
pub use steer::{Options, Steer};
