//! Downloads the first `BYTES` of `http://127.0.0.1:PORT/` to a file in reads of `SIZE` bytes, and waits again and again:
//! `waiter PORT FILE HOW SIZE BYTES`.
//!
//! `HOW` says who tells that there is something to read: `level` and `edge` (epoll), `rearmed` (edge-triggered, one read for
//! each time that it is registered anew), `late` (level-triggered, registered only while it waits), `poll`, `select`; `leave`
//! is `level`, and closes the connection before all is read; `splice` moves what follows after three reads to a pipe; `forget`
//! is `level`, keeps nothing of the body, and then waits for [`FORGOTTEN`], never long.
//! Whatever says so, `FIONREAD` and `MSG_PEEK` must agree; what they say otherwise is an error. Says `done`, how
//! often more was there than the kernel knew of, and waits for the end of its input, so that its counters can be read.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::time::{Duration, Instant};

use libc::{c_int, epoll_event, pollfd};

/// Longer than a wait may take when there is something to be told, ms.
const PATIENCE: c_int = 20_000;
/// Longer than the engine keeps payload that nobody sends.
const FORGOTTEN: Duration = Duration::from_secs(8);
/// Short waits, as of an event loop with timers, ms.
const SHORT: c_int = 100;

fn checked(result: c_int) -> Result<c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn control(set: RawFd, operation: c_int, fd: RawFd, events: c_int) -> Result<()> {
    let mut event = epoll_event { events: events.cast_unsigned(), u64: 42 };
    // SAFETY: both descriptors are open, and the event lives.
    checked(unsafe { libc::epoll_ctl(set, operation, fd, &raw mut event) }).map(drop)
}

/// Whether the set reports that there is something to read.
fn reported(set: RawFd, patience: c_int) -> Result<bool> {
    let mut events = [epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: there is room for as many events as is said.
    let n = checked(unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 4, patience) })?;
    let (bits, data) = (events[0].events, events[0].u64);
    if n > 1 || (n == 1 && data != 42) {
        return Err(Error::other(format!("{n} events, the first of {data}")));
    }
    Ok(n == 1 && bits & libc::EPOLLIN as u32 != 0)
}

/// Waits until there is something to read, or the end.
fn wait(how: &str, set: RawFd, fd: RawFd) -> Result<()> {
    let readable = match how {
        "level" | "leave" | "splice" | "forget" | "edge" => reported(set, PATIENCE)?,
        "rearmed" => {
            control(set, libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN | libc::EPOLLET)?;
            reported(set, PATIENCE)?
        }
        "late" => {
            control(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN)?;
            let readable = reported(set, PATIENCE)?;
            control(set, libc::EPOLL_CTL_DEL, fd, 0)?;
            readable
        }
        "poll" => {
            let mut list = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
            // SAFETY: one entry, as is said.
            let n = checked(unsafe { libc::poll(list.as_mut_ptr(), 1, PATIENCE) })?;
            n == 1 && list[0].revents & libc::POLLIN != 0
        }
        "select" => {
            // SAFETY: all-zero is an empty set; the descriptor is below FD_SETSIZE.
            let (mut list, mut patience) = unsafe { core::mem::zeroed::<(libc::fd_set, libc::timeval)>() };
            patience.tv_sec = i64::from(PATIENCE) / 1000;
            // SAFETY: as above; the unused sets may be null.
            checked(unsafe {
                libc::FD_SET(fd, &raw mut list);
                let none = core::ptr::null_mut();
                libc::select(fd + 1, &raw mut list, none, none, &raw mut patience)
            })? == 1
        }
        _ => return Err(ErrorKind::InvalidInput.into()),
    };
    if readable { Ok(()) } else { Err(Error::other("nothing to read is reported")) }
}

/// Splices from the socket by way of a pipe that waits for room, but is full at first. Returns how many bytes.
fn splice(fd: RawFd, file: &mut File) -> Result<usize> {
    let mut ends: [c_int; 2] = [0; 2];
    // SAFETY: the kernel writes two ints.
    checked(unsafe { libc::pipe(ends.as_mut_ptr()) })?;
    // SAFETY: two descriptors that nobody else has.
    let (mut reader, mut writer) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    let (mut filling, mut moved) = (vec![0; 65_536], vec![0; 65_536]);
    writer.write_all(&filling)?;
    let into_pipe = || {
        let none = core::ptr::null_mut();
        // SAFETY: no memory of this process is involved.
        unsafe { libc::splice(fd, none, writer.as_raw_fd(), none, 65_536, libc::SPLICE_F_NONBLOCK) }
    };
    if into_pipe() != -1 || Error::last_os_error().kind() != ErrorKind::WouldBlock {
        return Err(Error::other("a full pipe took something"));
    }
    reader.read_exact(&mut filling)?;
    let n = usize::try_from(into_pipe()).map_err(|_| Error::last_os_error())?;
    reader.read_exact(&mut moved[..n])?;
    file.write_all(&moved[..n])?;
    Ok(n)
}

/// Bytes that there are to read and that the kernel does not know of.
fn in_engine(fd: RawFd) -> Result<c_int> {
    let (mut all, mut in_kernel): (c_int, c_int) = (0, 0);
    // SAFETY: the kernel writes one int. Not by way of the hooks.
    checked(unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::FIONREAD, &raw mut in_kernel) } as c_int)?;
    // SAFETY: the kernel writes one int.
    checked(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut all) })?;
    Ok(all - in_kernel)
}

/// Checks that what was reported is there, whoever is asked. True: the kernel knows of less.
fn agrees(fd: RawFd) -> Result<bool> {
    let in_engine = in_engine(fd)?;
    let (mut waiting, mut byte): (c_int, u8) = (0, 0);
    // SAFETY: the kernel writes one int.
    checked(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut waiting) })?;
    // SAFETY: the kernel writes at most one byte.
    let peeked = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    if (waiting > 0) == (peeked == 1) {
        return Ok(in_engine > 0);
    }
    Err(Error::other(format!("FIONREAD says {waiting}, MSG_PEEK {peeked}")))
}

/// Lets the backend get ahead of the reader, or come to its end.
fn let_in(fd: RawFd) -> Result<()> {
    const ENOUGH: c_int = 60_000;
    let until = Instant::now() + Duration::from_millis(50);
    let mut waiting: c_int = 0;
    while waiting < ENOUGH && Instant::now() < until {
        std::thread::yield_now();
        // SAFETY: the kernel writes one int.
        checked(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut waiting) })?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, file, how, size, until] = &arguments[..] else { return Err(ErrorKind::InvalidInput.into()) };
    let port: u16 = port.parse().map_err(|_| ErrorKind::InvalidInput)?;
    let until: usize = until.parse().map_err(|_| ErrorKind::InvalidInput)?;
    let mut buffer = vec![0; size.parse().map_err(|_| ErrorKind::InvalidInput)?];
    let mut file = File::create(file)?;

    // SAFETY: no pointers.
    let set = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let fd = socket.as_raw_fd();
    socket.write_all(b"GET / HTTP/1.1\r\nHost: waiter\r\nConnection: close\r\n\r\n")?;
    socket.set_nonblocking(true)?;
    match how.as_str() {
        "level" | "leave" | "splice" | "forget" => control(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN)?,
        "edge" | "rearmed" => control(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN | libc::EPOLLET)?,
        _ => {}
    }
    let (mut reads, mut ahead, mut got) = (0, 0, 0);
    'body: while got < until {
        // Whatever is used to wait, the thread is one that also looks at its epoll set.
        if matches!(how.as_str(), "poll" | "select") {
            reported(set, 0)?;
        }
        let_in(fd)?;
        wait(how, set, fd)?;
        // Not always, because to look at the bytes takes them out of the pipe.
        if reads % 2 == 0 && agrees(fd)? {
            ahead += 1;
        }
        loop {
            match socket.read(&mut buffer) {
                Ok(0) => break 'body,
                Ok(n) => {
                    got += n;
                    if how != "forget" || got == n {
                        file.write_all(&buffer[..n])?;
                    }
                    reads += 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            if got >= until {
                break;
            }
            // An edge says nothing more until all is read; the others are asked again.
            match how.as_str() {
                "leave" if reads == 3 => {
                    ahead = usize::from(agrees(fd)?);
                    break 'body;
                }
                "splice" if reads >= 3 => {
                    ahead += usize::from(in_engine(fd)? > 0);
                    got += splice(fd, &mut file)?;
                    break;
                }
                "edge" if reads % 16 == 5 && agrees(fd)? => ahead += 1,
                "edge" => {}
                _ if reads % 3 == 0 => break,
                _ => {}
            }
        }
    }
    drop(socket);
    let since = Instant::now();
    while how == "forget" && since.elapsed() < FORGOTTEN {
        reported(set, SHORT)?;
    }
    println!("done {ahead}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
