//! The node agent of the mesh engine.
//!
//! ```text
//! application ── connect4 ──> the agent's listener        (kernel: taken over)
//!      │
//!      ├─ request decided, an upstream idle ──> upstream   (kernel: sk_msg, and back by sk_skb)
//!      ├─ request decided, tagged ──> agent ──> upstream   (answers, long bodies, no idle upstream)
//!      └─ anything else ──> agent ──> Envoy
//! ```
//!
//! Files in the order of the path of a request: `config`, `policies`, `kernel`, `guard`, `client`, `exchange`, `upstream`,
//! `message`, `answer`, `unread`, `envoy`, `agent`, `status`.

mod agent;
mod answer;
mod client;
pub mod config;
mod envoy;
mod exchange;
pub mod guard;
mod kernel;
mod message;
mod policies;
pub mod status;
mod unread;
mod upstream;

pub use agent::{AgentError, run};
pub use config::{Config, ConfigError, Fail};
pub use envoy::EnvoyError;
pub use kernel::KernelError;
pub use policies::PolicyError;
