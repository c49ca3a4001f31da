//! Payload that leaves through a TLS library: it is put back into the application's buffer before the library reads it.
//!
//! Applications copy what they send into records of their own size, so that a placeholder may be cut anywhere. The stream
//! inside the TLS connection is therefore followed like that of any other connection, by the same code as in
//! [`crate::egress`]; only the sending is the library's.

use libc::{c_void, iovec};
use underdeck_stats::Reason;

use crate::engine::Engine;
use crate::socket::Socket;
use crate::{anchor, egress};

/// The connection inside a TLS connection.
pub(crate) struct Tls {
    /// Its streams. What it owes is held back until the next write.
    pub(crate) inside: Socket,
    /// Bytes at the beginning of the next write that were made fit already: the library did not take them.
    ready: usize,
    /// How many bytes the last write was to send, with those that were owed.
    offered: usize,
}

/// What the library is to be given.
pub(crate) enum Prepared {
    /// So many bytes of the application's buffer.
    AsItIs(usize),
    /// These: some that were held back, and the application's.
    Joined(Vec<u8>),
    /// None, for now; the application may believe that all was sent.
    Nothing,
}

/// A handshake begins: what goes through the connection from now on is followed inside.
pub(crate) fn begin(socket: &mut Socket) {
    of(socket);
}

/// Makes `size` bytes at `buffer` fit to be encrypted. None: they are not, and must not leave.
pub(crate) fn prepare(engine: &Engine, socket: &mut Socket, buffer: *const c_void, size: usize) -> Option<Prepared> {
    let tls = of(socket);
    let idle = !anchor::any_open() && tls.inside.link.is_none() && tls.inside.owed.is_none();
    if idle {
        // No placeholder stands in them, whatever there will be when the library wants them again.
        (tls.ready, tls.offered) = (tls.ready.max(size), size);
        return Some(Prepared::AsItIs(size));
    }
    let mut owed = tls.inside.owed.take();
    let prefix = owed.as_ref().map_or(0, |owed| owed.bytes.len());
    let (mut all, mut first) = ([iovec { iov_base: buffer.cast_mut(), iov_len: size }; 2], 1);
    if let Some(owed) = &mut owed {
        all[0] = iovec { iov_base: owed.bytes.as_mut_ptr().cast(), iov_len: prefix };
        first = 0;
    }
    let ready = tls.ready.min(prefix + size);
    match egress::put_back_all(engine, &mut tls.inside, &all[first..], ready) {
        Ok(sendable) => {
            // What was put back for a longer write stays so.
            (tls.ready, tls.offered) = (tls.ready.max(sendable), sendable);
            tls.inside.owed = owed;
            Some(tls.offer(buffer, size, prefix))
        }
        Err(why) => {
            egress::doubt(engine, socket, why);
            None
        }
    }
}

/// The library took `result` of the bytes it was offered, or none: what the application is to be told.
pub(crate) fn wrote(
    engine: &Engine,
    socket: &mut Socket,
    buffer: *const c_void,
    size: usize,
    result: isize,
) -> Option<isize> {
    let tls = of(socket);
    let Ok(taken @ 1..) = usize::try_from(result) else { return Some(result) };
    let owed = tls.inside.owed.take();
    let prefix = owed.as_ref().map_or(0, |owed| owed.bytes.len());
    tls.inside.expects_head = true;
    if let Some(owed) = &owed {
        tls.inside.sent_bytes(engine, &owed.bytes[..taken.min(prefix)]);
    }
    let own = taken.saturating_sub(prefix);
    let bytes = iovec { iov_base: buffer.cast_mut(), iov_len: size };
    tls.inside.sent(engine, &[bytes], 0, own);
    tls.ready = tls.ready.saturating_sub(taken);
    if taken < tls.offered || prefix + size == tls.offered {
        return Some(own.cast_signed());
    }
    // All that may be sent was; the rest may be the beginning of a mark, and waits for what follows.
    tls.hold(buffer, own, size);
    Some(size.cast_signed())
}

/// The application read these bytes.
pub(crate) fn read(engine: &Engine, socket: &mut Socket, buffer: *const c_void, size: usize) {
    let bytes = iovec { iov_base: buffer.cast_mut(), iov_len: size };
    of(socket).inside.received(engine, &[bytes], 0, size, Reason::ExitTls);
}

/// What is held back, when nothing can follow any more.
pub(crate) fn take_owed(engine: &Engine, socket: &mut Socket) -> Option<Vec<u8>> {
    egress::last_owed(engine, &mut socket.tls.as_mut()?.inside)
}

fn of(socket: &mut Socket) -> &mut Tls {
    if socket.tls.is_none() {
        socket.uncount_pass();
    }
    let (role, route, fd) = (socket.role, socket.route, socket.fd);
    socket.tls.get_or_insert_with(|| {
        // What was encrypted is never anchored.
        let mut inside = Socket::new(role, route, Some(Reason::ExitTls));
        inside.fd = fd;
        Box::new(Tls { inside, ready: 0, offered: 0 })
    })
}

impl Tls {
    fn offer(&mut self, buffer: *const c_void, size: usize, prefix: usize) -> Prepared {
        if prefix == 0 && self.offered > 0 {
            return Prepared::AsItIs(self.offered);
        }
        if self.offered <= prefix {
            // Nothing of the new bytes may go yet, and the old ones wait with them.
            self.hold(buffer, 0, size);
            return Prepared::Nothing;
        }
        let mut bytes = self.inside.owed.as_ref().map_or_else(Vec::new, |owed| owed.bytes.clone());
        // SAFETY: the application handed these bytes in to be read.
        bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(buffer.cast(), self.offered - prefix) });
        Prepared::Joined(bytes)
    }

    /// Keeps bytes `from..to` of the application's buffer, behind what is kept already.
    fn hold(&mut self, buffer: *const c_void, from: usize, to: usize) {
        // SAFETY: the application handed these bytes in to be read.
        let bytes = unsafe { core::slice::from_raw_parts(buffer.cast::<u8>().add(from), to - from) };
        let owed = self.inside.owed.get_or_insert_default();
        owed.before = anchor::next_message();
        owed.bytes.extend_from_slice(bytes);
    }
}
