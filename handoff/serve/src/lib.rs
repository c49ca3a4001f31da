//! The reference HTTP/1.1 server: a balancer that hands connections over, and the backends that answer them.
//!
//! One thread per connection. `config` is read, `balancer` takes a client's request and hands the connection over
//! (`away`) or relays the answer (`relay`); `backend` takes it (`take`), answers (`respond`), and gives it back (`give`)
//! or ends it (`farewell`); the balancer takes it back (`back`). `watch` knows which backends live, `peers` are the
//! control connections, `past` remembers transfers that are over, `reset` ends a client's connection whose owner is gone,
//! `http` and `objects` are the little of HTTP that this needs, `metrics` counts.

mod away;
mod back;
mod backend;
mod balancer;
pub mod config;
mod farewell;
mod give;
mod http;
mod metrics;
pub mod objects;
mod past;
mod peers;
mod relay;
mod reset;
mod respond;
mod take;
mod watch;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

pub use config::{Config, ConfigError};
pub use metrics::{BackendReport, Connections, Handoffs, Report, Rules, STEPS, TimesReport};

/// Why a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] underdeck_handoff_control::tls::TlsError),
    /// Steering.
    #[error(transparent)]
    Steer(#[from] underdeck_handoff_steer::Error),
    /// An address cannot be listened at.
    #[error("{what} {at}: {source}")]
    Listen {
        /// Which key of the configuration.
        what: &'static str,
        /// Its value.
        at: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// No thread can be started.
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
}

impl ServeError {
    /// A privilege or a kernel feature is missing.
    pub fn is_missing(&self) -> bool {
        use underdeck_handoff_steer::Error::{NoHook, Privilege, Refused};
        match self {
            ServeError::Steer(error) => matches!(error, Privilege | NoHook(_) | Refused { .. }),
            ServeError::Listen { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            ServeError::Tls(_) | ServeError::Thread(_) => false,
        }
    }
}

/// Runs a balancer until the process ends. `ready` is called when clients can come.
///
/// # Errors
/// Only at the start.
pub fn balancer(config: Config, ready: impl FnOnce()) -> Result<(), ServeError> {
    balancer::run(config, ready)
}

/// Runs a backend until the process ends. `ready` is called when balancers can come.
///
/// # Errors
/// Only at the start.
pub fn backend(config: Config, ready: impl FnOnce()) -> Result<(), ServeError> {
    backend::run(config, ready)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Every thread of this crate: one that cannot be started is an error, not a panic.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(1 << 20).spawn(work).map(drop)
}

/// How long an address may be taken. A server that was killed in the instant between leaving repair mode and setting SO_REUSEADDR
/// anew leaves a connection that keeps the address until the client has heard its end.
const TAKEN: Duration = Duration::from_secs(5);

fn bind(what: &'static str, at: SocketAddr) -> Result<TcpListener, ServeError> {
    let end = Instant::now() + TAKEN;
    loop {
        match TcpListener::bind(at) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done.map_err(|source| ServeError::Listen { what, at: at.to_string(), source }),
        }
    }
}

/// Gives each connection to `serve` in a thread of its own, for ever.
fn accept(listener: &TcpListener, name: &str, serve: impl Fn(TcpStream) + Clone + Send + 'static) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let serve = serve.clone();
                // Without a thread the connection is closed.
                let _ = spawn(name, move || serve(stream));
            }
            // No descriptors, or a client that left already: others end meanwhile.
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Time limits of a client's connection.
fn prepare(stream: &TcpStream, config: &Config) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(config.idle()))?;
    stream.set_write_timeout(Some(config.idle()))?;
    sockopt::set_tcp_user_timeout(stream, config.user_timeout_ms)?;
    // Finds clients that are silent because they are gone; the time limit above then holds for the probes.
    let probe = (Duration::from_millis(u64::from(config.user_timeout_ms)) / 3).max(Duration::from_secs(1));
    sockopt::set_tcp_keepidle(stream, probe)?;
    sockopt::set_tcp_keepintvl(stream, probe)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_still_taken_for_a_moment_is_waited_for() {
        let first = TcpListener::bind("127.0.0.1:0").expect("an address");
        let at = first.local_addr().expect("its address");
        let second = std::thread::spawn(move || bind("listen", at).map(drop));
        std::thread::sleep(Duration::from_millis(100));
        drop(first);
        second.join().expect("no panic").expect("it is free now");
    }
}
