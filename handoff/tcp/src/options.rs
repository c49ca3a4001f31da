//! Socket options that go with a connection. One table, in the order in which they are set.

use std::os::fd::RawFd;

use crate::Error;
use crate::sys;

/// An option whose value is one `int`. The id is what the encoding uses and must never change.
struct IntOption {
    id: u8,
    level: i32,
    name: i32,
    call: &'static str,
}

const fn int(id: u8, level: i32, name: i32, call: &'static str) -> IntOption {
    IntOption { id, level, name, call }
}

const INTS: &[IntOption] = &[
    int(1, libc::IPPROTO_TCP, libc::TCP_NODELAY, "TCP_NODELAY"),
    int(2, libc::IPPROTO_TCP, libc::TCP_CORK, "TCP_CORK"),
    int(3, libc::SOL_SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE"),
    int(4, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, "TCP_KEEPIDLE"),
    int(5, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, "TCP_KEEPINTVL"),
    int(6, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, "TCP_KEEPCNT"),
    int(7, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT"),
    int(8, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, "TCP_NOTSENT_LOWAT"),
    int(10, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE"),
    int(11, libc::SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT"),
    int(12, libc::SOL_SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR"),
];

/// The type of service byte, whose level depends on the address family.
const TOS: u8 = 32;

/// Set last, because setting the type of service changes it.
const PRIORITY: IntOption = int(9, libc::SOL_SOCKET, libc::SO_PRIORITY, "SO_PRIORITY");

/// Bytes of a congestion control's name (`TCP_CA_NAME_MAX`).
const CONGESTION_NAME: usize = 16;

/// Buffer sizes as `SO_RCVBUF` and `SO_SNDBUF` report them: with the kernel's allowance for overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub receive: u32,
    pub send: u32,
    /// `SO_BUF_LOCK`: which of them were set by the application, and so are not tuned by the kernel.
    pub lock: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketOptions {
    /// (id, value). Unknown ids are refused by the decoder.
    pub ints: Vec<(u8, u32)>,
    pub linger: Option<u32>,
    pub congestion: Vec<u8>,
    pub buffers: Buffers,
}

/// An id that this version knows.
pub(crate) fn is_known(id: u8) -> bool {
    id == TOS || id == PRIORITY.id || INTS.iter().any(|option| option.id == id)
}

pub(crate) fn read(fd: RawFd, v6: bool) -> Result<SocketOptions, Error> {
    let mut ints = Vec::with_capacity(INTS.len() + 1);
    for option in INTS.iter().chain([&PRIORITY]) {
        ints.push((option.id, sys::option::<u32>(fd, option.level, option.name, option.call)?));
    }
    ints.push((TOS, tos(fd, v6)?));
    let linger: libc::linger = sys::option(fd, libc::SOL_SOCKET, libc::SO_LINGER, "SO_LINGER")?;
    let mut congestion =
        sys::option_bytes(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, CONGESTION_NAME, "TCP_CONGESTION")?;
    if let Some(end) = congestion.iter().position(|byte| *byte == 0) {
        congestion.truncate(end);
    }
    Ok(SocketOptions {
        ints,
        linger: (linger.l_onoff != 0).then_some(linger.l_linger.max(0) as u32),
        congestion,
        buffers: Buffers {
            receive: sys::option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, "SO_RCVBUF")?,
            send: sys::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, "SO_SNDBUF")?,
            // Linux 5.14. Before that nobody can tell, and the kernel's tuning is the better guess.
            lock: sys::option(fd, libc::SOL_SOCKET, sys::SO_BUF_LOCK, "SO_BUF_LOCK").unwrap_or(0),
        },
    })
}

fn tos(fd: RawFd, v6: bool) -> Result<u32, Error> {
    if v6 {
        return sys::option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, "IPV6_TCLASS");
    }
    // A dual-stack socket that carries IPv4 answers this too.
    sys::option(fd, libc::IPPROTO_IP, libc::IP_TOS, "IP_TOS")
}

/// All but the buffers. A congestion control that this kernel lacks is left out: it changes the rate, not the stream.
pub(crate) fn apply(fd: RawFd, options: &SocketOptions, v6: bool) -> Result<(), Error> {
    let value = |wanted: u8| options.ints.iter().find(|(id, _)| *id == wanted).map(|(_, value)| *value);
    for option in INTS {
        let Some(value) = value(option.id) else { continue };
        sys::set_option(fd, option.level, option.name, value, option.call)?;
    }
    match value(TOS) {
        Some(tos) if v6 => sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, tos, "IPV6_TCLASS")?,
        Some(tos) => sys::set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, tos, "IP_TOS")?,
        None => {}
    }
    if let Some(priority) = value(PRIORITY.id) {
        sys::set_option(fd, PRIORITY.level, PRIORITY.name, priority, PRIORITY.call)?;
    }
    if let Some(seconds) = options.linger {
        let linger = libc::linger { l_onoff: 1, l_linger: seconds.min(i32::MAX as u32) as i32 };
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger, "SO_LINGER")?;
    }
    let _ = sys::set_slice(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &options.congestion, "TCP_CONGESTION");
    Ok(())
}

/// Makes room for queues of these sizes, whatever `net.core.wmem_max` says. The kernel doubles what it is given.
pub(crate) fn make_room(fd: RawFd, buffers: &Buffers, receive: usize, send: usize) -> Result<(), Error> {
    let receive = (buffers.receive as usize).max(2 * receive);
    let send = (buffers.send as usize).max(2 * send + (1 << 16));
    let half = |bytes: usize| (bytes / 2).min(1 << 30) as u32;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, half(receive), "SO_RCVBUFFORCE")?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, half(send), "SO_SNDBUFFORCE")
}

/// Gives the send buffer its old size and both their old locks back. The receive buffer stays as large as the restored
/// queue needs: the peer was promised that room.
pub(crate) fn restore_buffers(fd: RawFd, buffers: &Buffers) -> Result<(), Error> {
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, buffers.send / 2, "SO_SNDBUFFORCE")?;
    match sys::set_option(fd, libc::SOL_SOCKET, sys::SO_BUF_LOCK, buffers.lock, "SO_BUF_LOCK") {
        Err(Error::Call { source, .. }) if source.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        result => result,
    }
}

impl SocketOptions {
    /// `SO_REUSEADDR`, which repair mode overwrites.
    pub fn reuse_address(&self) -> u32 {
        let id = INTS.iter().find(|option| option.name == libc::SO_REUSEADDR && option.level == libc::SOL_SOCKET);
        let value = id.and_then(|option| self.ints.iter().find(|(id, _)| *id == option.id));
        value.map_or(0, |(_, value)| *value)
    }
}
