//! Connections for the tests of this crate: a proxy in the test's own process, with its two peers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use libc::{c_int, epoll_event};

use crate::{ahead, table};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a body that is announced. Above the least body that is anchored.
pub(crate) const BODY: usize = 1 << 20;

/// The library's own hook says nothing.
pub(crate) fn hear_panics() {
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
}

/// Both ends of a connection; the first one is the one that connected.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    hear_panics();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let near = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
    let (far, _) = listener.accept().expect("accepted");
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
    }
    (near, far)
}

/// An epoll set.
pub(crate) fn set() -> RawFd {
    // SAFETY: no pointers.
    unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }
}

/// `epoll_ctl(2)`, with the descriptor as data.
pub(crate) fn control(set: RawFd, operation: c_int, fd: RawFd, events: c_int) {
    let mut event = epoll_event { events: events.cast_unsigned(), u64: fd as u64 };
    // SAFETY: the event lives.
    assert_eq!(unsafe { libc::epoll_ctl(set, operation, fd, &raw mut event) }, 0);
}

/// The events that the set reports within `ms`: (bits, data).
pub(crate) fn events(set: RawFd, ms: c_int) -> Vec<(u32, u64)> {
    let mut events = [epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: there is room for as many events as is said.
    let n = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 8, ms) };
    assert!(n >= 0, "{}", std::io::Error::last_os_error());
    events[..n as usize].iter().map(|it| (it.events, it.u64)).collect()
}

/// The bytes of a body from `from` on. None of them may be the first one of a mark, so that none has to wait for what follows.
pub(crate) fn body(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at * 31 + at / 251) as u8 & 0x7f).collect()
}

/// A connection to a backend that has sent the head and the first bytes of a body of [`BODY`].
pub(crate) struct Begun {
    pub(crate) near: TcpStream,
    pub(crate) far: TcpStream,
    /// What the proxy has read: the head, and more.
    pub(crate) had: Vec<u8>,
    /// Bytes of the body among it.
    pub(crate) got: usize,
}

/// Bytes of the body that the backend of [`begun`] has sent: all of them fit into what is read ahead, and the kernel has none.
pub(crate) const SENT: usize = 60_000;

/// Reads in pieces of 16 KiB until something was read ahead. `set`: where the proxy has registered the connection.
pub(crate) fn begun(set: Option<RawFd>) -> Begun {
    let (mut near, mut far) = pair();
    near.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
    assert_ne!(far.read(&mut [0; 256]).expect("a request"), 0);
    near.set_nonblocking(true).expect("set");
    if let Some(set) = set {
        control(set, libc::EPOLL_CTL_ADD, near.as_raw_fd(), libc::EPOLLIN);
    }
    events(set.unwrap_or_else(self::set), 0);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n");
    far.write_all(head.as_bytes()).expect("sent");
    far.write_all(&body(0, SENT)).expect("sent");
    until("all of it has arrived", || unread(&near) == head.len() + SENT);
    let (mut had, mut buffer) = (Vec::new(), [0; 16_384]);
    while ahead::waiting(near.as_raw_fd()) == 0 && had.len() < SENT / 2 {
        let n = near.read(&mut buffer).expect("there is more");
        had.extend_from_slice(&buffer[..n]);
    }
    let got = had.len() - head.len();
    Begun { near, far, had, got }
}

/// As [`begun`]; something was read ahead for certain.
pub(crate) fn ahead(set: Option<RawFd>) -> (TcpStream, TcpStream, usize) {
    let it = begun(set);
    assert_ne!(ahead::waiting(it.near.as_raw_fd()), 0, "otherwise this would test nothing");
    (it.near, it.far, it.got)
}

/// The next `len` bytes, by a call that is answered with copies.
pub(crate) fn copied(stream: &TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: the buffer lives.
    let n = unsafe { libc::recv(stream.as_raw_fd(), bytes.as_mut_ptr().cast(), len, libc::MSG_WAITALL) };
    bytes.truncate(usize::try_from(n).expect("no error"));
    bytes
}

/// What `FIONREAD` says.
pub(crate) fn unread(stream: &TcpStream) -> usize {
    let mut n: c_int = 0;
    // SAFETY: the kernel writes one int.
    assert_eq!(unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut n) }, 0);
    n as usize
}

/// Waits for something that is bound to become true.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// Runs `then` in a thread; fails when it does not end.
pub(crate) fn ends<T: Send + 'static>(what: &str, then: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(then()));
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what}"))
}

/// Runs a test in a process of its own: what the engine has once is not shared with other tests. `name` is the test's whole name.
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    alone_with(name, &[], test);
}

/// As [`alone`], with these variables in its environment.
pub(crate) fn alone_with(name: &str, variables: &[(&str, &str)], test: impl FnOnce()) {
    const NAME: &str = "UNDERDECK_TEST_ALONE";
    if std::env::var(NAME).is_ok_and(|it| it == name) {
        return test();
    }
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--nocapture"]).env(NAME, name).envs(variables.iter().copied());
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = !output.status.success() || !said.contains("1 passed");
    assert!(!failed, "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// Whether a thread of this process sleeps in the kernel.
pub(crate) fn sleeps(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

/// Forwards the head and some of a body to the client behind `server`, so that the last pieces of it wait in a batch. Returns the
/// backend's connections, which keep the rest, and how many bytes were accepted for the client.
pub(crate) fn batched(server: &mut TcpStream) -> (TcpStream, TcpStream, usize) {
    assert_ne!(server.read(&mut [0; 256]).expect("a request"), 0);
    server.set_nonblocking(true).expect("set");
    let Begun { mut near, far, had, .. } = begun(Some(set()));
    server.write_all(&had).expect("taken");
    let mut accepted = had.len();
    let mut buffer = [0; 8192];
    for _ in 0..3 {
        let n = near.read(&mut buffer).expect("there is more");
        server.write_all(&buffer[..n]).expect("taken");
        accepted += n;
    }
    let fd = server.as_raw_fd();
    let waits = table::socket(fd).and_then(|cell| cell.with(fd, |it| it.batch.is_some()));
    assert_eq!(waits, Some(true), "otherwise this would test nothing");
    (near, far, accepted)
}

/// One message of one byte with room for one descriptor.
fn with_message<T>(then: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0u64; 3];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    then(&mut message)
}

/// Passes a descriptor to whoever has the other end.
pub(crate) fn pass(by: &UnixStream, fd: RawFd) {
    // SAFETY: the caller's promise.
    pass_by(fd, |message| unsafe { libc::sendmsg(by.as_raw_fd(), message, 0) });
}

/// As [`pass`], by `sendmmsg(2)`.
pub(crate) fn pass_among_several(by: &UnixStream, fd: RawFd) {
    pass_by(fd, |message| {
        let mut messages = [libc::mmsghdr { msg_hdr: *message, msg_len: 0 }];
        // SAFETY: the caller's promise.
        assert_eq!(unsafe { libc::sendmmsg(by.as_raw_fd(), messages.as_mut_ptr(), 1, 0) }, 1);
        messages[0].msg_len.cast_signed() as isize
    });
}

/// Hands a message that carries a descriptor to `send`, which is to say that it sent one byte.
fn pass_by(fd: RawFd, send: impl FnOnce(&mut libc::msghdr) -> isize) {
    with_message(|message| {
        // SAFETY: there is room for one entry, and everything lives.
        let n = unsafe {
            let entry = &mut *libc::CMSG_FIRSTHDR(message);
            (entry.cmsg_level, entry.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            entry.cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(entry).cast::<RawFd>().write_unaligned(fd);
            message.msg_controllen = libc::CMSG_SPACE(4) as usize;
            send(message)
        };
        assert_eq!(n, 1);
    });
}

/// Receives the descriptor of [`pass`].
pub(crate) fn passed(by: &UnixStream) -> OwnedFd {
    with_message(|message| {
        // SAFETY: the kernel has put one descriptor there.
        unsafe {
            assert_eq!(libc::recvmsg(by.as_raw_fd(), message, 0), 1);
            OwnedFd::from_raw_fd(libc::CMSG_DATA(libc::CMSG_FIRSTHDR(message)).cast::<RawFd>().read_unaligned())
        }
    })
}
