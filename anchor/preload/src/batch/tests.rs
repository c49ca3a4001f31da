//! What waits, and when it leaves, over loopback.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
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

fn datagrams() -> (UdpSocket, UdpSocket) {
    let [from, to] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket"));
    from.connect(to.local_addr().expect("its address")).expect("connected");
    (from, to)
}

#[test]
fn nothing_waits_while_the_thread_waits_for_something_else() {
    type Wait = (&'static str, fn(&TcpStream));
    let ways: [Wait; 12] = [
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
        ("recv of a datagram", |_| {
            let (from, to) = datagrams();
            from.send(b"x").expect("room");
            assert_eq!(to.recv(&mut [0]).expect("a datagram"), 1);
        }),
        ("recvfrom of a datagram", |_| {
            let (from, to) = datagrams();
            from.send(b"x").expect("room");
            assert_eq!(to.recv_from(&mut [0]).expect("a datagram").0, 1);
        }),
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
    let of = |what: fn(&mut Socket) -> usize| table::socket(fd).and_then(|cell| cell.with(fd, what)).expect("it is");
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
    let set = unsafe { libc::setsockopt(client.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const much).cast(), size) };
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
    // A full window makes a few shorter ones; a batch of 128 KiB in a packet of its own would make 6 more.
    assert!(packets <= full + 3, "{packets} packets for {forwarded} bytes");
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

/// A thread that waits in ways that the library does not see, as for another thread.
fn forks_and_sends() {
    let (client, mut server) = client();
    assert_ne!(server.read(&mut [0; 256]).expect("a request"), 0);
    server.set_nonblocking(true).expect("set");
    let testing::Begun { mut near, far: _far, mut had, .. } = testing::begun(Some(testing::set()));
    let mut pieces = vec![[0; 8192]; 3];
    for piece in &mut pieces {
        near.read_exact(piece).expect("there is more");
        had.extend_from_slice(piece);
    }
    let sent = had.len() - 3 * 8192;
    let thread = std::thread::spawn(move || {
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no pointers.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) }, child);
        server.write_all(&had[..sent]).expect("taken");
        had[sent..].chunks(8192).for_each(|piece| server.write_all(piece).expect("taken"));
        let fd = server.as_raw_fd();
        let waits = table::socket(fd).and_then(|cell| cell.with(fd, |it| it.batch.is_some()));
        (server, had.len(), waits)
    });
    let (_server, accepted, waits) = thread.join().expect("no panic");
    assert_eq!(waits, Some(false));
    testing::until("all of it", || testing::unread(&client) == accepted);
}

#[test]
fn a_thread_that_forks_is_no_event_loop_for_that() {
    testing::alone("batch::tests::a_thread_that_forks_is_no_event_loop_for_that", forks_and_sends);
}

#[test]
fn a_reset_that_a_batch_meets_is_no_orderly_end_for_who_reads() {
    type Meeting = (&'static str, fn(&TcpStream));
    let meetings: [Meeting; 2] = [
        ("a loop that waits", |_| drop(testing::events(testing::set(), 1))),
        ("a half-close", |server| server.shutdown(Shutdown::Write).unwrap_or_default()),
    ];
    for (how, meet) in meetings {
        let (mut client, mut server) = client();
        let (_near, _far, _) = testing::batched(&mut server);
        client.write_all(b"GET").expect("sent");
        sys::reset(client.as_raw_fd());
        meet(&server);
        let mut bytes = [0; 8];
        assert_eq!(server.read(&mut bytes).ok(), Some(3), "{how}: it came before");
        let next = server.read(&mut bytes).map_err(|error| error.kind());
        assert_eq!(next, Err(ErrorKind::ConnectionReset), "{how}");
        assert_eq!(server.read(&mut bytes).ok(), Some(0), "{how}: an error is told once");
    }
}

#[test]
fn a_reset_behind_an_orderly_end_does_not_undo_it() {
    let (mut client, mut server) = client();
    let (_near, _far, _) = testing::batched(&mut server);
    client.write_all(b"GET").expect("sent");
    client.shutdown(Shutdown::Write).expect("shut down");
    sys::reset(client.as_raw_fd());
    testing::events(testing::set(), 1);
    let mut bytes = [0; 8];
    assert_eq!(server.read(&mut bytes).ok(), Some(3), "it came before");
    assert_eq!(server.read(&mut bytes).map_err(|error| error.kind()), Ok(0));
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
