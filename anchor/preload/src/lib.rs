//! `libunderdeck_anchor.so`: loaded into a proxy (LD_PRELOAD), it keeps the payload that the proxy forwards in the kernel.
//!
//! The life of one response, file by file:
//!
//! 1. [`hooks`]: `readv()` on the upstream socket comes here instead of libc.
//! 2. [`table`], [`socket`]: the descriptor is a connection of ours, and this is where its streams stand.
//! 3. [`ingress`]: the head is copied to the proxy; the protocol program says that payload follows.
//! 4. [`anchor`], [`pipe`], [`mark`]: the payload moves into a pipe, a placeholder into the proxy's buffer.
//! 5. [`egress`]: the proxy sends its own head and the placeholder; the payload moves from the pipe to the client.
//!    Small pieces wait for each other in [`batch`].
//! 6. [`tls`], [`exits`]: where it goes to a TLS library, a file or a compressor instead, the payload is put back.
//!
//! Around it: [`config`] (the environment), [`engine`] (what a process has once), [`routes`] (what was learnt of a peer),
//! [`probes`] (whether uploads leave as they came), [`lifecycle`] (how connections begin and end), [`sys`] and [`iov`] (system
//! calls, lists of buffers).

mod ahead;
mod anchor;
mod batch;
mod cell;
mod config;
mod egress;
mod engine;
mod exits;
pub mod hooks;
mod ingress;
mod iov;
mod lifecycle;
mod mark;
mod messages;
mod pipe;
mod probes;
mod routes;
mod socket;
mod sys;
mod table;
#[cfg(test)]
mod testing;
mod tls;
mod watch;

/// Runs when the library is loaded, before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    // `catch_unwind`: nothing may unwind into the loader.
    let _ = std::panic::catch_unwind(|| {
        if config::is_off() {
            return;
        }
        config::get();
        // A message on the proxy's standard error would be taken for one of its own.
        std::panic::set_hook(Box::new(|_| {}));
        // SAFETY: the handler is a function of this library, which is never unloaded.
        let registered = unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork)) };
        if registered == 0 {
            engine::allow();
        }
    });
}

unsafe extern "C" fn before_fork() {
    // Not as before events: who forks need not be an event loop, and may wait unseen from then on.
    batch::before_waiting();
}

unsafe extern "C" fn after_fork() {
    lifecycle::forked();
}
