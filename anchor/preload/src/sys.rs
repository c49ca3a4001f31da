//! System calls of the engine itself. They never go through libc's symbols, because those are the ones that are hooked.

use libc::{c_int, iovec, msghdr};
use syscalls::{Errno, Sysno, syscall};

pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// Receives from a socket into `iov`. One buffer is the common case, and `recvfrom` its cheapest call.
pub(crate) fn receive(fd: c_int, iov: &[iovec], flags: c_int) -> Result<usize> {
    if let [one] = iov {
        // SAFETY: the application owns the buffer and handed it in to be written.
        return unsafe { syscall!(Sysno::recvfrom, fd, one.iov_base, one.iov_len, flags, 0, 0) };
    }
    if flags == 0 {
        // SAFETY: as above.
        return unsafe { syscall!(Sysno::readv, fd, iov.as_ptr(), iov.len()) };
    }
    let message = message_of(iov);
    // SAFETY: as above; the header lives until the call returns.
    unsafe { syscall!(Sysno::recvmsg, fd, &raw const message, flags) }
}

/// Waits as a blocking `recv(2)` does, and leaves the bytes where they are.
pub(crate) fn wait_for_bytes(fd: c_int) -> Result<()> {
    let mut byte = 0u8;
    // SAFETY: the kernel writes at most one byte.
    unsafe { syscall!(Sysno::recvfrom, fd, &raw mut byte, 1, libc::MSG_PEEK, 0, 0) }.map(drop)
}

/// Waits until a socket takes more, as long as `send(2)` does.
pub(crate) fn wait_for_room(fd: c_int) -> Result<()> {
    let mut limit = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: the kernel writes one timeval.
    unsafe { syscall!(Sysno::getsockopt, fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &raw mut limit, &raw mut length) }?;
    let limit = libc::timespec { tv_sec: limit.tv_sec, tv_nsec: limit.tv_usec * 1000 };
    let for_ever = limit.tv_sec == 0 && limit.tv_nsec == 0;
    let limit = if for_ever { core::ptr::null() } else { &raw const limit };
    let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: the kernel reads and writes one pollfd, and reads one timespec or none.
    match unsafe { syscall!(Sysno::ppoll, &raw mut asked, 1, limit, 0, 0) }? {
        0 => Err(Errno::EAGAIN),
        _ => Ok(()),
    }
}

/// A descriptor that is readable for ever.
pub(crate) fn readable() -> Result<c_int> {
    // SAFETY: no pointers.
    let fd = unsafe { syscall!(Sysno::eventfd2, 1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }?;
    Ok(fd as c_int)
}

/// epoll_ctl(2), past the hooks.
pub(crate) fn epoll_control(set: c_int, operation: c_int, fd: c_int, event: libc::epoll_event) -> Result<usize> {
    // SAFETY: the kernel reads one event.
    unsafe { syscall!(Sysno::epoll_ctl, set, operation, fd, &raw const event) }
}

/// Whether a descriptor is a socket.
pub(crate) fn is_socket(fd: c_int) -> bool {
    let mut kind: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes one int.
    unsafe { syscall!(Sysno::getsockopt, fd, libc::SOL_SOCKET, libc::SO_TYPE, &raw mut kind, &raw mut length) }.is_ok()
}

/// Bytes in several slices that are joined before they are sent: `sendto(2)` saves the kernel more than this copy costs.
const JOINED_MOST: usize = 4096;

/// Sends `iov` on a socket.
pub(crate) fn send(fd: c_int, iov: &[iovec], flags: c_int) -> Result<usize> {
    if let [one] = iov {
        // SAFETY: the application owns the buffer and handed it in to be read.
        return unsafe { syscall!(Sysno::sendto, fd, one.iov_base, one.iov_len, flags, 0, 0) };
    }
    // With MSG_ZEROCOPY the kernel keeps the application's own pages.
    let total = crate::iov::total(iov);
    if total <= JOINED_MOST && flags & libc::MSG_ZEROCOPY == 0 {
        let mut joined = [const { core::mem::MaybeUninit::<u8>::uninit() }; JOINED_MOST];
        let mut at = 0;
        for (address, len) in crate::iov::pieces(iov, 0, total) {
            // SAFETY: the application handed these bytes in to be read; `pieces` are `total` bytes together.
            unsafe { core::ptr::copy_nonoverlapping(address, joined.as_mut_ptr().cast::<u8>().add(at), len) };
            at += len;
        }
        // SAFETY: the first `at` bytes are initialised.
        return unsafe { syscall!(Sysno::sendto, fd, joined.as_ptr(), at, flags, 0, 0) };
    }
    if flags == 0 {
        // SAFETY: as above.
        return unsafe { syscall!(Sysno::writev, fd, iov.as_ptr(), iov.len()) };
    }
    let message = message_of(iov);
    // SAFETY: as above; the header lives until the call returns.
    unsafe { syscall!(Sysno::sendmsg, fd, &raw const message, flags) }
}

/// Sends bytes of our own.
pub(crate) fn send_bytes(fd: c_int, bytes: &[u8], flags: c_int) -> Result<usize> {
    send(fd, &[iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }], flags)
}

/// `recvmsg` as the application asked for it, with its address and control buffers.
///
/// # Safety
/// `message` must be what `recvmsg(2)` takes.
pub(crate) unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> Result<usize> {
    // SAFETY: promised by the caller.
    unsafe { syscall!(Sysno::recvmsg, fd, message, flags) }
}

/// `sendmsg` as the application asked for it.
///
/// # Safety
/// `message` must be what `sendmsg(2)` takes.
pub(crate) unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Result<usize> {
    // SAFETY: promised by the caller.
    unsafe { syscall!(Sysno::sendmsg, fd, message, flags) }
}

fn message_of(iov: &[iovec]) -> msghdr {
    // SAFETY: all-zero is a valid msghdr: no address, no control data.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = iov.as_ptr().cast_mut();
    message.msg_iovlen = iov.len();
    message
}

/// Moves up to `len` bytes between a pipe and a socket without waiting for either.
pub(crate) fn splice(from: c_int, to: c_int, len: usize, more: bool) -> Result<usize> {
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE | if more { libc::SPLICE_F_MORE } else { 0 };
    // SAFETY: no memory of this process is involved.
    unsafe { syscall!(Sysno::splice, from, 0, to, 0, len, flags) }
}

/// Reads from a pipe of ours into `buffer`.
///
/// # Safety
/// `buffer` must be valid for writes of `len` bytes.
pub(crate) unsafe fn read(fd: c_int, buffer: *mut u8, len: usize) -> Result<usize> {
    // SAFETY: promised by the caller.
    unsafe { syscall!(Sysno::read, fd, buffer, len) }
}

/// Writes to a pipe of the application.
pub(crate) fn write(fd: c_int, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads within the slice.
    unsafe { syscall!(Sysno::write, fd, bytes.as_ptr(), bytes.len()) }
}

/// Whether a pipe or a socket takes more at the moment. If not, whoever waits for room will be told of it.
pub(crate) fn has_room(fd: c_int) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel reads and writes one pollfd, and reads one timespec.
    unsafe { syscall!(Sysno::ppoll, &raw mut asked, 1, &raw const at_once, 0, 0) }.is_ok_and(|n| n == 1)
}

/// Bytes that wait in the socket (`SIOCINQ`).
pub(crate) fn waiting(fd: c_int) -> Result<usize> {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes one int.
    unsafe { syscall!(Sysno::ioctl, fd, libc::FIONREAD, &raw mut bytes) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Whether `O_NONBLOCK` is set.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: F_GETFL takes no pointer.
    let flags = unsafe { syscall!(Sysno::fcntl, fd, libc::F_GETFL) };
    flags.is_ok_and(|flags| flags & libc::O_NONBLOCK as usize != 0)
}

/// A pipe: (read end, write end), close-on-exec, non-blocking.
pub(crate) fn pipe() -> Result<(c_int, c_int)> {
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: the kernel writes two ints.
    unsafe { syscall!(Sysno::pipe2, &raw mut ends, libc::O_CLOEXEC | libc::O_NONBLOCK) }?;
    Ok((ends[0], ends[1]))
}

/// Moves a descriptor of ours to a number of at least `floor`; stays where it is if that fails.
pub(crate) fn raise(fd: c_int, floor: c_int) -> c_int {
    // SAFETY: F_DUPFD_CLOEXEC takes no pointer.
    match unsafe { syscall!(Sysno::fcntl, fd, libc::F_DUPFD_CLOEXEC, floor) } {
        Ok(high) => {
            close(fd);
            high as c_int
        }
        Err(_) => fd,
    }
}

/// Sets the capacity of a pipe; returns what the kernel gave.
pub(crate) fn set_pipe_bytes(fd: c_int, bytes: usize) -> Result<usize> {
    // SAFETY: F_SETPIPE_SZ takes no pointer.
    unsafe { syscall!(Sysno::fcntl, fd, libc::F_SETPIPE_SZ, bytes) }
}

/// The capacity of a pipe in bytes.
pub(crate) fn pipe_bytes(fd: c_int) -> Result<usize> {
    // SAFETY: F_GETPIPE_SZ takes no pointer.
    unsafe { syscall!(Sysno::fcntl, fd, libc::F_GETPIPE_SZ) }
}

/// Closes a descriptor of ours.
pub(crate) fn close(fd: c_int) {
    // SAFETY: only called with descriptors that the engine made.
    let _ = unsafe { syscall!(Sysno::close, fd) };
}

/// The process that is running, also in the child of `vfork`.
pub(crate) fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getpid) }.map_or(0, |pid| pid as u32)
}

/// The limit of descriptors (`RLIMIT_NOFILE`, soft).
pub(crate) fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the kernel writes one rlimit64.
    let _ = unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit) };
    limit.rlim_cur
}

/// Ends a connection so that the peer sees a reset and the application an error. An orderly end, even before a reset, would
/// make a body that ends with the connection look whole.
pub(crate) fn reset(fd: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>();
    // SAFETY: the kernel reads one struct linger.
    let _ = unsafe { syscall!(Sysno::setsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, &raw const linger, size) };
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // connect(2): AF_UNSPEC dissolves the connection; TCP sends the reset at once.
    // SAFETY: the kernel reads one struct sockaddr.
    let dissolved = unsafe { syscall!(Sysno::connect, fd, &raw const nobody, size_of::<libc::sockaddr>()) };
    if dissolved.is_ok() {
        return;
    }
    // SAFETY: no pointers.
    let _ = unsafe { syscall!(Sysno::shutdown, fd, libc::SHUT_RDWR) };
}

/// Whether a write to a dead peer would end or interrupt the process.
pub(crate) fn sigpipe_is_ignored() -> bool {
    // The kernel's own layout (handler, flags, restorer, mask), not libc's.
    let mut action = [0usize; 4];
    // SAFETY: the kernel writes one struct kernel_sigaction of 32 bytes.
    let asked = unsafe { syscall!(Sysno::rt_sigaction, libc::SIGPIPE, 0, &raw mut action, 8) };
    asked.is_ok() && action[0] == libc::SIG_IGN
}

/// Whether a path exists.
pub(crate) fn exists(path: &core::ffi::CStr) -> bool {
    // SAFETY: the path is zero-terminated.
    unsafe { syscall!(Sysno::faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK) }.is_ok()
}

/// Bytes that the kernel would still take for sending on a socket; 0 where it does not tell (`SO_MEMINFO`, Linux 4.12).
pub(crate) fn send_room(fd: c_int) -> usize {
    // Indices of `SK_MEMINFO_WMEM_ALLOC`, `SK_MEMINFO_SNDBUF` and `SK_MEMINFO_WMEM_QUEUED` (linux/sock_diag.h).
    const ALLOCATED: usize = 2;
    const BUFFER: usize = 3;
    const QUEUED: usize = 5;
    const SO_MEMINFO: c_int = 55;
    let mut figures = [0u32; 9];
    let mut length = size_of_val(&figures) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes there.
    let result =
        unsafe { syscall!(Sysno::getsockopt, fd, libc::SOL_SOCKET, SO_MEMINFO, &raw mut figures, &raw mut length) };
    if result.is_err() || (length as usize) < (QUEUED + 1) * size_of::<u32>() {
        return 0;
    }
    figures[BUFFER].saturating_sub(figures[ALLOCATED].max(figures[QUEUED])) as usize
}

/// Bytes of payload in the largest packet that TCP makes on a connection, before the device cuts it (`tcp_xmit_size_goal` in
/// net/ipv4/tcp.c): as many segments as fit into 64 KiB with the headers. 0 where the kernel does not tell.
pub(crate) fn largest_packet(fd: c_int) -> u16 {
    /// `GSO_LEGACY_MAX_SIZE` less what `sk_setup_caps` leaves for headers.
    const MOST: u32 = 65_536 - 321;
    let mut segment = 0u32;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the kernel writes one int.
    let result = unsafe {
        syscall!(Sysno::getsockopt, fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, &raw mut segment, &raw mut length)
    };
    let segments = if result.is_err() || segment == 0 { 0 } else { (MOST / segment).max(1) };
    u16::try_from(segment * segments).unwrap_or(0)
}

/// Asks for the cache line of an address, which need not be valid.
#[inline]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that anybody could see.
    unsafe {
        core::arch::x86_64::_mm_prefetch(address.cast(), core::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Coarse monotonic time in seconds, cheap enough for hot paths (vDSO).
pub(crate) fn seconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec as u64
}

/// The address that a socket is bound to or connected to, as the kernel tells it.
pub(crate) fn local_address(fd: c_int) -> Option<(libc::sockaddr_storage, libc::socklen_t)> {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut address: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes.
    unsafe { syscall!(Sysno::getsockname, fd, &raw mut address, &raw mut length) }.ok()?;
    Some((address, length))
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    /// Slices that are joined, and such that are not, arrive as one after another.
    #[test]
    fn slices_are_sent_in_their_order() {
        for total in [3, super::JOINED_MOST, super::JOINED_MOST + 1] {
            let (near, mut far) = UnixStream::pair().expect("a pair");
            let mut bytes: Vec<u8> = (0..total).map(|at| at as u8).collect();
            let (first, second) = bytes.split_at_mut(total / 3);
            let slices =
                [(first.as_mut_ptr(), first.len()), (core::ptr::null_mut(), 0), (second.as_mut_ptr(), second.len())];
            let slices = slices.map(|(address, iov_len)| libc::iovec { iov_base: address.cast(), iov_len });
            assert_eq!(super::send(near.as_raw_fd(), &slices, libc::MSG_DONTWAIT), Ok(total));
            let mut got = vec![0; total];
            far.read_exact(&mut got).expect("received");
            assert!(got == bytes);
        }
    }

    #[test]
    fn the_peer_of_a_reset_connection_never_sees_an_orderly_end() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let mut peer = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
        let (mut stream, _) = listener.accept().expect("accepted");
        super::reset(stream.as_raw_fd());
        // The application has not closed it yet.
        let seen = peer.read(&mut [0; 8]).map_err(|error| error.kind());
        assert_eq!(seen, Err(ErrorKind::ConnectionReset));
        assert!(stream.write(b"more").is_err());
        assert_ne!(stream.read(&mut [0; 8]).ok(), Some(8));
    }
}
