//! Batches: pieces of payload that were accepted from the application one by one and leave together.
//!
//! Many proxies write 8 or 16 KiB at a time, each of which would become a packet of its own. Inside an event loop, pieces
//! of one segment after the other wait until there are [`MOST`] bytes, until something else is to be sent on the connection,
//! or until the thread waits for events, or for anything else that the library sees (`hooks/idle.rs`). While more of the message
//! is to come, full packets leave, and what is left over waits for it. Bytes are accepted only where the kernel has room for
//! them for certain, so that what was accepted can also be sent.

use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use syscalls::Errno;

use crate::anchor::{self, Anchor, Refusal};
use crate::egress;
use crate::engine::{self, Engine};
use crate::hooks::quietly;
use crate::mark::Vpi;
use crate::socket::{Link, Socket};
use crate::{sys, table};

/// Bytes that wait on one connection at most.
const MOST: usize = 128 << 10;
/// [`Batch::looks`] of what may still grow.
const LOOKS: u8 = 1;
/// The same of what is left over when full packets have left: alone it costs as much as a full packet.
const LOOKS_OF_A_TAIL: u8 = 8;

/// Payload of one anchor that waits, at the end of what was accepted on its connection.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) vpi: Vpi,
    /// Offset of its first byte in the anchor.
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// The application knows that the connection takes no more, and comes again.
    told: bool,
    /// How often the loop may still look for events, without waiting for them, before this leaves.
    looks: u8,
}

/// What comes after a piece of payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// More bytes of the same call.
    CallGoesOn,
    /// More of the same message, with another call.
    MessageGoesOn,
    Nothing,
}

impl Batch {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len as u64
    }
}

/// Some batch was begun in this process: before, there is nothing to look for.
static EVER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread waits for events with epoll: batches leave there.
    static IS_LOOP: Cell<bool> = const { Cell::new(false) };
    static WAITING: RefCell<Waiting> = const { RefCell::new(Waiting(Vec::new())) };
}

/// Descriptors of connections with batches.
struct Waiting(Vec<c_int>);

impl Drop for Waiting {
    /// The thread ends.
    fn drop(&mut self) {
        for fd in self.0.drain(..) {
            quietly(true, || leave_at(fd, false));
        }
    }
}

/// Sends `len` bytes from where the link stands, behind what waits, or lets them wait with it. Returns how many of them were
/// accepted.
pub(crate) fn forward(
    engine: &Engine,
    socket: &mut Socket,
    anchor: &mut Anchor,
    link: Link,
    len: usize,
    then: Then,
    flags: c_int,
) -> Result<usize, Refusal> {
    if link.is_proven && accept(socket, link, len) {
        return Ok(len);
    }
    if socket.batch.is_some() {
        expect_socket(socket.fd)?;
    }
    let mut tail = if link.is_proven && then == Then::MessageGoesOn { tail(socket, len) } else { 0 };
    loop {
        let (from, waiting) = socket.batch.as_ref().map_or((link.offset, 0), |batch| (batch.offset, batch.len));
        let all = waiting + len;
        let sent = anchor.forward(engine, from, all - tail, socket.fd, then == Then::CallGoesOn, flags)?;
        if tail > 0 && sent == all - tail && remember(socket.fd) {
            let offset = from + sent as u64;
            socket.batch =
                Some(Box::new(Batch { vpi: link.vpi, offset, len: tail, told: false, looks: LOOKS_OF_A_TAIL }));
            return Ok(len);
        }
        tail = 0;
        if sent > waiting {
            socket.batch = None;
            return Ok(sent - waiting);
        }
        if sent == 0 {
            return Ok(0);
        }
        moved(socket, sent);
    }
}

/// Lets `len` bytes wait, if there is room for them.
fn accept(socket: &mut Socket, link: Link, len: usize) -> bool {
    let fits = match &socket.batch {
        Some(batch) => batch.len + len <= MOST && !batch.told,
        None => len <= MOST / 2,
    };
    if !fits || !has_room(socket, len) {
        return false;
    }
    match &mut socket.batch {
        Some(batch) => batch.len += len,
        None => {
            if !remember(socket.fd) {
                return false;
            }
            socket.batch = Some(Box::new(Batch { vpi: link.vpi, offset: link.offset, len, told: false, looks: LOOKS }));
        }
    }
    true
}

/// Whether `len` more bytes may wait: this thread comes back to look after them, and the kernel will take them for certain.
fn has_room(socket: &mut Socket, len: usize) -> bool {
    if !IS_LOOP.get() || socket.aliases > 0 {
        return false;
    }
    if (socket.room as usize) < len {
        // Half of it: the kernel counts its own structures as well.
        let room = (sys::send_room(socket.fd) / 2).saturating_sub(socket.waiting());
        socket.room = u32::try_from(room).unwrap_or(u32::MAX);
        if socket.packet == 0 {
            socket.packet = sys::largest_packet(socket.fd);
        }
    }
    socket.room as usize >= len
}

/// How many bytes at the end of what waits and `len` more would leave in a packet that is not full, and had better wait for
/// those that follow.
fn tail(socket: &mut Socket, len: usize) -> usize {
    let all = socket.waiting() + len;
    if !has_room(socket, len) || socket.packet == 0 || all < usize::from(socket.packet) {
        return 0;
    }
    all % usize::from(socket.packet)
}

/// How many of the bytes that wait stay although the loop looks for events: it has more to do.
fn stays(socket: &mut Socket) -> usize {
    let packet = usize::from(socket.packet);
    let Some(batch) = &mut socket.batch else { return 0 };
    if packet > 0 && batch.len >= packet {
        batch.looks = LOOKS_OF_A_TAIL;
        return batch.len % packet;
    }
    let may_stay = batch.looks > 0;
    batch.looks = batch.looks.saturating_sub(1);
    if may_stay { batch.len } else { 0 }
}

/// Has a connection looked after when this thread looks for events. False: not now, in a signal handler for instance.
pub(crate) fn remember(fd: c_int) -> bool {
    EVER.store(true, Ordering::Relaxed);
    let remembered = WAITING.try_with(|waiting| waiting.try_borrow_mut().map(|mut it| it.0.push(fd)).is_ok());
    remembered.unwrap_or(false)
}

fn moved(socket: &mut Socket, sent: usize) {
    if let Some(batch) = &mut socket.batch {
        batch.offset += sent as u64;
        batch.len -= sent;
        if batch.len == 0 {
            socket.batch = None;
        }
    }
}

/// The application was told that the connection takes no more for now.
pub(crate) fn told(socket: &mut Socket) {
    if let Some(batch) = &mut socket.batch {
        batch.told = true;
    }
}

/// A splice goes to files as well, and the connection may have been closed unseen (fclose) since its bytes were accepted.
fn expect_socket(fd: c_int) -> Result<(), Refusal> {
    if sys::is_socket(fd) { Ok(()) } else { Err(Refusal::Kernel(Errno::ENOTSOCK)) }
}

/// Sends what waits; `more` follows at once.
pub(crate) fn leave(engine: &Engine, socket: &mut Socket, more: bool) -> Result<(), Refusal> {
    leave_but(engine, socket, 0, more)
}

/// Sends what waits, but for the last `tail` bytes.
fn leave_but(engine: &Engine, socket: &mut Socket, tail: usize, more: bool) -> Result<(), Refusal> {
    if socket.batch.is_some() {
        expect_socket(socket.fd)?;
    }
    while let Some(batch) = &socket.batch {
        let (vpi, offset, len) = (batch.vpi, batch.offset, batch.len.saturating_sub(tail));
        if len == 0 {
            break;
        }
        let mut anchor = anchor::lookup(vpi).ok_or(Refusal::Gone)?;
        match anchor.forward(engine, offset, len, socket.fd, more, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)? {
            0 => return Err(Refusal::Kernel(Errno::EAGAIN)),
            sent => {
                drop(anchor);
                moved(socket, sent);
            }
        }
    }
    Ok(())
}

/// Sends what waits on a connection. `is_busy`: the loop has more to do, so that a packet that is not full may wait a little longer.
/// False: something is left, because of that, because the kernel does not take it after all, or because somebody is at work on it.
pub(crate) fn leave_at(fd: c_int, is_busy: bool) -> bool {
    let (Some(cell), Some(engine)) = (table::socket(fd), engine::running()) else { return true };
    // A signal handler must not wait for the thread that it has interrupted.
    if cell.is_busy() {
        return false;
    }
    let gone = cell.with(fd, |socket| {
        if socket.batch.as_ref().is_none_or(|batch| batch.told) {
            return true;
        }
        let tail = if is_busy { stays(socket) } else { 0 };
        match leave_but(engine, socket, tail, false) {
            Ok(()) => tail == 0,
            Err(Refusal::Kernel(Errno::EAGAIN)) => false,
            Err(Refusal::Kernel(error)) => {
                socket.batch = None;
                socket.tx_error = Socket::due(error);
                true
            }
            Err(Refusal::Unspliceable | Refusal::Gone) => {
                egress::doubt(engine, socket, "payload that was accepted cannot be sent");
                true
            }
        }
    });
    gone.unwrap_or(true)
}

/// The thread is about to wait for something else than events, or may be.
#[inline]
pub(crate) fn before_waiting() {
    if EVER.load(Ordering::Relaxed) {
        leave_before_waiting();
    }
}

#[cold]
#[inline(never)]
fn leave_before_waiting() {
    quietly((), leave_if_any);
}

fn leave_if_any() {
    let has_any = |it: &RefCell<Waiting>| it.try_borrow().is_ok_and(|it| !it.0.is_empty());
    if IS_LOOP.get() && WAITING.try_with(has_any).unwrap_or(false) {
        before_events(true);
    }
}

/// The thread is about to look for events. `waits`: it may wait for them; otherwise what was begun lately may still grow. False:
/// something has not left yet, so that the wait must be short.
pub(crate) fn before_events(waits: bool) -> bool {
    IS_LOOP.set(true);
    let due = WAITING.try_with(|waiting| waiting.try_borrow_mut().map(|mut it| core::mem::take(&mut it.0)));
    let Ok(Ok(mut due)) = due else { return true };
    // A connection is put on the list again whenever its batch begins anew.
    due.sort_unstable();
    due.dedup();
    due.retain(|fd| !leave_at(*fd, !waits));
    let all_gone = due.is_empty();
    for fd in due {
        remember(fd);
    }
    all_gone
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;
    use crate::testing;

    fn client() -> (TcpStream, TcpStream) {
        let (mut client, server) = testing::pair();
        client.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
        (client, server)
    }

    #[test]
    fn nothing_waits_while_the_thread_waits_for_something_else() {
        type Wait = (&'static str, fn(&TcpStream));
        let ways: [Wait; 10] = [
            // SAFETY: there are no descriptors, or they live.
            ("poll", |_| unsafe {
                libc::poll(core::ptr::null_mut(), 0, 1);
            }),
            // SAFETY: as above.
            ("ppoll", |_| unsafe {
                let short = libc::timespec { tv_sec: 0, tv_nsec: 1 };
                libc::ppoll(core::ptr::null_mut(), 0, &raw const short, core::ptr::null());
            }),
            // SAFETY: as above.
            ("select", |_| unsafe {
                let (none, mut short) = (core::ptr::null_mut(), libc::timeval { tv_sec: 0, tv_usec: 1 });
                libc::select(0, none, none, none, &raw mut short);
            }),
            ("nanosleep", |_| std::thread::sleep(Duration::from_nanos(1))),
            // SAFETY: no pointers.
            ("usleep", |_| unsafe {
                libc::usleep(1);
            }),
            ("read", |_| {
                let (mut read, mut write) = std::io::pipe().expect("a pipe");
                write.write_all(b"x").expect("room");
                read.read_exact(&mut [0]).expect("a byte");
            }),
            // SAFETY: as above.
            ("waitpid", |_| unsafe {
                libc::waitpid(libc::getpid(), core::ptr::null_mut(), 0);
            }),
            ("pthread_join", |_| std::thread::spawn(|| {}).join().expect("no panic")),
            ("recv", |blocking| {
                { blocking }.read_exact(&mut [0]).expect("a byte");
            }),
            ("epoll_wait", |_| {
                testing::events(testing::set(), 1);
            }),
        ];
        for (how, wait) in ways {
            let (client, mut server) = client();
            let (_near, _far, accepted) = testing::batched(&mut server);
            assert!(testing::unread(&client) < accepted, "{how}");
            let (other, mut peer) = testing::pair();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(10));
                peer.write_all(b"x").expect("sent");
                peer
            });
            wait(&other);
            let left = server.as_raw_fd();
            let waits = table::socket(left).and_then(|cell| cell.with(left, |it| it.batch.is_some()));
            assert_eq!(waits, Some(false), "{how}");
            testing::until(how, || testing::unread(&client) == accepted);
            thread.join().expect("no panic");
        }
    }

    #[test]
    fn a_handler_that_waits_does_not_wait_for_the_thread_that_it_interrupted() {
        testing::ends("it ends", || {
            let (client, mut server) = client();
            let (_near, _far, accepted) = testing::batched(&mut server);
            let fd = server.as_raw_fd();
            table::socket(fd).and_then(|cell| cell.with(fd, |_| before_waiting())).expect("a connection");
            assert!(testing::unread(&client) < accepted, "it was busy");
            testing::events(testing::set(), 1);
            testing::until("all of it", || testing::unread(&client) == accepted);
        });
    }

    #[test]
    fn who_asks_for_the_bytes_that_are_not_sent_yet_is_told_of_all() {
        let (client, mut server) = client();
        let (_near, _far, accepted) = testing::batched(&mut server);
        testing::until("SIOCOUTQ", || {
            let mut left: c_int = 0;
            // SAFETY: the kernel writes one int.
            assert_eq!(unsafe { libc::ioctl(server.as_raw_fd(), libc::TIOCOUTQ, &raw mut left) }, 0);
            left == 0
        });
        assert_eq!(testing::unread(&client), accepted);
    }

    #[test]
    fn the_kernel_takes_whatever_was_accepted_and_is_not_asked_each_time() {
        let (_client, mut server) = client();
        let small: c_int = 256 << 10;
        // SAFETY: one int, as is said.
        let set = unsafe {
            libc::setsockopt(server.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const small).cast(), 4)
        };
        assert_eq!(set, 0);
        let (mut near, mut far, _) = testing::batched(&mut server);
        let fd = server.as_raw_fd();
        let of =
            |what: fn(&mut Socket) -> usize| table::socket(fd).and_then(|cell| cell.with(fd, what)).expect("it is");
        let (mut buffer, mut sent, mut batches, mut asked) = ([0; 8192], testing::SENT, 0, 0);
        // The client reads nothing: the kernel's room ends.
        loop {
            far.write_all(&testing::body(sent, buffer.len())).expect("sent");
            sent += buffer.len();
            testing::until("it has arrived", || testing::unread(&near) >= buffer.len());
            let n = near.read(&mut buffer).expect("there is more");
            let before = of(|socket| socket.room as usize);
            let taken = server.write(&buffer[..n]);
            asked += usize::from(of(|socket| socket.room as usize) + n != before);
            batches += of(|socket| usize::from(socket.batch.is_some()));
            testing::events(testing::set(), 1);
            assert_eq!(of(|socket| usize::from(socket.batch.is_some())), 0, "{sent}");
            if taken.ok() != Some(n) {
                break;
            }
        }
        assert!(batches > 10, "{batches} batches");
        assert!(asked < batches / 2, "asked {asked} times for {batches} batches");
    }

    /// A client for which the kernel keeps all that these tests send.
    fn roomy_client() -> (TcpStream, TcpStream) {
        let (client, server) = client();
        let much: c_int = 208 << 10;
        let (option, size) = (libc::SO_RCVBUF, size_of::<c_int>() as libc::socklen_t);
        // SAFETY: one int, as is said.
        let set =
            unsafe { libc::setsockopt(client.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const much).cast(), size) };
        assert_eq!(set, 0);
        (client, server)
    }

    /// Packets with payload that were sent (`tcpi_data_segs_out`, Linux 4.6).
    fn packets(stream: &TcpStream) -> u32 {
        let (mut info, mut length) = ([0u32; 40], 160);
        // SAFETY: the kernel writes at most `length` bytes there.
        let asked = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        assert_eq!((asked, length), (0, 160));
        info[39]
    }

    /// Forwards `pieces` of 16 KiB, and looks for events in between, without waiting, as a busy loop does.
    fn forward(near: &mut TcpStream, far: &mut TcpStream, server: &mut TcpStream, pieces: usize) -> usize {
        let (mut buffer, mut sent, mut all) = ([0; 16_384], testing::SENT, 0);
        for piece in 1..=pieces {
            far.write_all(&testing::body(sent, buffer.len())).expect("sent");
            sent += buffer.len();
            testing::until("it has arrived", || testing::unread(near) >= buffer.len());
            let n = near.read(&mut buffer).expect("there is more");
            assert_eq!(server.write(&buffer[..n]).expect("taken"), n);
            all += n;
            if piece % 5 == 0 {
                testing::events(testing::set(), 0);
            }
        }
        all
    }

    #[test]
    fn packets_are_full_while_the_message_goes_on() {
        let (mut client, mut server) = roomy_client();
        let (mut near, mut far, accepted) = testing::batched(&mut server);
        testing::events(testing::set(), 1);
        let before = packets(&server);
        let reader = std::thread::spawn(move || {
            let mut seen = vec![0; accepted];
            client.read_exact(&mut seen).expect("the beginning");
            std::io::copy(&mut client, &mut std::io::sink()).expect("an orderly end")
        });
        let forwarded = forward(&mut near, &mut far, &mut server, 50);
        testing::events(testing::set(), 1);
        let (packets, full) = (packets(&server) - before, forwarded.div_ceil(65_483) as u32);
        drop(server);
        assert_eq!(reader.join().expect("no panic"), forwarded as u64);
        assert!(packets <= full + 1, "{packets} packets for {forwarded} bytes");
    }

    #[test]
    fn what_is_left_over_from_full_packets_leaves_although_nothing_follows() {
        for waits in [0, 1] {
            let (client, mut server) = roomy_client();
            let (mut near, mut far, accepted) = testing::batched(&mut server);
            let accepted = accepted + forward(&mut near, &mut far, &mut server, 5);
            let waiting = || {
                let fd = server.as_raw_fd();
                table::socket(fd).and_then(|cell| cell.with(fd, |it| it.waiting())).expect("it is")
            };
            assert!((1..65_483).contains(&waiting()), "otherwise this would test nothing");
            let looks = (0..100).take_while(|_| {
                testing::events(testing::set(), waits);
                waiting() > 0
            });
            assert_eq!(looks.count(), if waits > 0 { 0 } else { usize::from(LOOKS_OF_A_TAIL) });
            testing::until("all of it", || testing::unread(&client) == accepted);
        }
    }

    #[test]
    fn a_duplicate_that_stays_open_keeps_nothing_back() {
        let (client, mut server) = client();
        let (_near, _far, accepted) = testing::batched(&mut server);
        let second = server.try_clone().expect("duplicated");
        drop(server);
        testing::events(testing::set(), 1);
        testing::until("all of it", || testing::unread(&client) == accepted);
        drop(second);
    }

    #[test]
    fn nothing_is_sent_to_a_file_that_has_the_number_by_now() {
        for (how, own) in [("epoll_wait", 0), ("close", 0), ("write", 1)] {
            let (_client, mut server) = client();
            let (_near, _far, _) = testing::batched(&mut server);
            let file = tempfile();
            // As libc does within fclose(3) and open(2): not by way of the hooks.
            // SAFETY: no pointers.
            unsafe { syscalls::syscall!(syscalls::Sysno::dup3, file.as_raw_fd(), server.as_raw_fd(), 0) }
                .expect("replaced");
            match how {
                "epoll_wait" => drop(testing::events(testing::set(), 1)),
                // SAFETY: one byte, as is said.
                "write" => assert_eq!(unsafe { libc::write(server.as_raw_fd(), b"x".as_ptr().cast(), 1) }, 1),
                _ => {}
            }
            drop(server);
            assert_eq!(file.metadata().expect("its size").len(), own, "{how}");
        }
    }

    fn tempfile() -> std::fs::File {
        // SAFETY: the name is zero-terminated, and nobody else has the descriptor.
        unsafe { std::os::fd::FromRawFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC)) }
    }

    unsafe extern "C" {
        fn execveat(
            directory: c_int,
            path: *const libc::c_char,
            arguments: *const *const libc::c_char,
            environment: *const *const libc::c_char,
            flags: c_int,
        ) -> c_int;
    }

    /// A process that ends with `how`, with a batch. `None`: not this process.
    fn ending() -> Option<()> {
        let how = std::env::var("UNDERDECK_TEST_ENDS_BY").ok()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        println!("port {}", listener.local_addr().expect("its address").port());
        let (mut server, _) = listener.accept().expect("a client");
        let (_near, _far, accepted) = testing::batched(&mut server);
        println!("sent {accepted}");
        let null = core::ptr::null::<libc::c_char>();
        let (path, name) = (c"/bin/echo".as_ptr(), c"echo".as_ptr());
        // More than there are registers for arguments.
        let a = c"argument".as_ptr();
        let (list, none) = ([name, a, null], [null]);
        let (list, none) = (list.as_ptr(), none.as_ptr());
        // SAFETY: everything lives, and nothing after it matters.
        unsafe {
            match how.as_str() {
                "_exit" => libc::_exit(0),
                "exit" => libc::exit(0),
                "execv" => libc::execv(path, list),
                "execve" => libc::execve(path, list, none),
                "execvp" => libc::execvp(name, list),
                "execvpe" => libc::execvpe(name, list, none),
                "execl" => libc::execl(path, name, a, a, a, a, a, a, a, a, null),
                "execlp" => libc::execlp(name, name, a, a, a, a, a, a, a, a, null),
                "execle" => libc::execle(path, name, a, a, a, a, a, a, a, a, null, none),
                "fexecve" => libc::fexecve(libc::open(path, libc::O_RDONLY), list, none),
                "execveat" => execveat(libc::AT_FDCWD, path, list, none, 0),
                _ => 0,
            }
        };
        None
    }

    #[test]
    fn what_was_accepted_is_sent_however_the_process_ends() {
        if std::env::var_os("UNDERDECK_TEST_ENDS_BY").is_some() {
            return ending().unwrap_or_default();
        }
        testing::hear_panics();
        let lists = ["execl", "execlp", "execle"];
        let arrays = ["execv", "execve", "execvp", "execvpe", "fexecve", "execveat"];
        for how in ["exit", "_exit"].into_iter().chain(lists).chain(arrays) {
            let name = "batch::tests::what_was_accepted_is_sent_however_the_process_ends";
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", name, "--nocapture"]).env("UNDERDECK_TEST_ENDS_BY", how);
            let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
            let mut said = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
            let mut number = |of: &str| -> usize {
                let found = said.find_map(|line| line.split_once(of).and_then(|(_, n)| n.trim().parse().ok()));
                found.unwrap_or_else(|| panic!("{how}: {of}"))
            };
            let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, number("port ") as u16)).expect("connected");
            client.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
            let accepted = number("sent ");
            let mut all = Vec::new();
            client.set_read_timeout(Some(testing::PATIENCE)).expect("set");
            client.read_to_end(&mut all).expect("an orderly end");
            // Of a process that was not replaced after all, this test itself would say more.
            assert!(child.wait().expect("it ends").success(), "{how}");
            let said: Vec<String> = said.collect();
            let expected = match how {
                "exit" | "_exit" => vec![],
                _ if lists.contains(&how) => vec![["argument"; 8].join(" ")],
                _ => vec!["argument".to_owned()],
            };
            assert_eq!((all.len(), said), (accepted, expected), "{how}");
        }
    }
}
