//! The hot paths of the engine, alone and a known number of times, for a tool that counts instructions.
//!
//! `hot-paths lookup N`: N reads of a descriptor that is no connection. `hot-paths cut N`: the protocol program cuts N
//! requests of a browser and their responses. `hot-paths forward N BYTES`: a proxy of a few lines, on one thread, forwards N
//! responses of BYTES body bytes with reads and writes of 64 KiB. The library sees only the proxy's calls: client and
//! backend make theirs without libc.

use std::hint::black_box;
use std::io::{self, Error, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::ExitCode;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, sockopt};
use underdeck_protocols::{Cursor, Direction, Program, Role, SpanKind, State};

const REQUEST: &[u8] =
    b"GET /static/big HTTP/1.1\r\nHost: www.example.com\r\nAccept: */*\r\nAccept-Encoding: gzip, br\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\nAccept-Language: en\r\n\
    Connection: keep-alive\r\nCookie: session=0123456789abcdef0123456789abcdef\r\n\r\n";
/// One read or write of the proxy.
const PIECE: usize = 64 << 10;
/// Everything of a message must fit into a socket: the proxy is not to wait.
const QUEUE: usize = 16 << 20;

fn response(len: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Sat, 01 Jan 2022 00:00:00 GMT\r\nContent-Type: video/mp4\r\n\
         Content-Length: {len}\r\nLast-Modified: Sat, 01 Jan 2022 00:00:00 GMT\r\nConnection: keep-alive\r\n\
         ETag: \"61cf9980-100000\"\r\nAccept-Ranges: bytes\r\n\r\n"
    )
    .into_bytes()
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<usize>();
    let done = match words[..] {
        ["lookup", n] if number(n).is_ok() => lookup(number(n).unwrap_or(0)),
        ["cut", n] if number(n).is_ok() => cut(number(n).unwrap_or(0)),
        ["forward", n, bytes] if number(n).is_ok() && number(bytes).is_ok() => {
            forward(number(n).unwrap_or(0), number(bytes).unwrap_or(0))
        }
        _ => {
            eprintln!("usage: hot-paths lookup N | cut N | forward N BYTES");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hot-paths {}: {error}", words.join(" "));
            ExitCode::from(70)
        }
    }
}

/// A libc call's result.
fn checked(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
}

fn read(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length are those of one slice, which is writable.
    checked(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) })
}

fn write_all(fd: RawFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the pointer and the length are those of one slice.
        let n = checked(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) })?;
        bytes = &bytes[n..];
    }
    Ok(())
}

fn lookup(n: usize) -> io::Result<()> {
    let zero = std::fs::File::open("/dev/zero")?;
    let mut byte = 0u8;
    for _ in 0..n {
        // SAFETY: one writable byte.
        checked(unsafe { libc::read(zero.as_raw_fd(), (&raw mut byte).cast(), 1) })?;
    }
    Ok(())
}

fn cut(n: usize) -> io::Result<()> {
    let program = Program::shipped("http1").transpose().map_err(Error::other)?;
    let program = program.ok_or_else(|| Error::from(ErrorKind::NotFound))?;
    let response = response(1 << 20);
    let (mut state, mut requests, mut responses) = (State::new(), Cursor::new(), Cursor::new());
    for _ in 0..n {
        let request = requests.next(&program, &mut state, Direction::Rx, Role::Server, black_box(REQUEST));
        let answer = responses.next(&program, &mut state, Direction::Tx, Role::Server, black_box(&response));
        let whole = [(SpanKind::Metadata, REQUEST.len()), (SpanKind::Metadata, response.len())];
        if [request, answer] != whole {
            return Err(Error::other(format!("cut as {request:?}, {answer:?}")));
        }
        responses.skip_opaque(1 << 20);
    }
    Ok(())
}

/// A connection with one end seen by the library and the other not. `accepted`: the library's end is the accepted one.
fn connection(accepted: bool) -> io::Result<(RawFd, OwnedFd)> {
    let socket = || -> io::Result<OwnedFd> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE)?;
        sockopt::set_socket_send_buffer_size_force(&socket, QUEUE)?;
        Ok(socket)
    };
    let listener = socket()?;
    rustix::net::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    rustix::net::listen(&listener, 1)?;
    let address = rustix::net::getsockname(&listener)?;
    let address = SocketAddr::try_from(address).map_err(Error::other)?;
    let seen;
    let unseen;
    if accepted {
        unseen = socket()?;
        rustix::net::connect(&unseen, &address)?;
        // SAFETY: null pointers mean that the peer's address is not wanted.
        seen = unsafe {
            libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_NONBLOCK)
        };
    } else {
        // SAFETY: numbers only.
        seen = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        let size = QUEUE as libc::c_int;
        let len = size_of_val(&size) as libc::socklen_t;
        // SAFETY: the pointer and the length are those of `size`.
        unsafe { libc::setsockopt(seen, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const size).cast(), len) };
        let to = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: address.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
            sin_zero: [0; 8],
        };
        // SAFETY: the pointer and the length are those of `to`.
        let connected = unsafe { libc::connect(seen, (&raw const to).cast(), size_of_val(&to) as libc::socklen_t) };
        checked(connected as isize)?;
        // SAFETY: numbers only.
        checked(unsafe { libc::fcntl(seen, libc::F_SETFL, libc::O_NONBLOCK) } as isize)?;
        unseen = rustix::net::accept(&listener)?;
    }
    checked(seen as isize)?;
    sockopt::set_tcp_nodelay(&unseen, true)?;
    Ok((seen, unseen))
}

/// Waits until so much has arrived: on a busy machine another thread of the kernel may deliver it. Not through libc, so
/// the library sees nothing of it.
fn arrived(fd: RawFd, len: usize) -> io::Result<()> {
    // SAFETY: the descriptor stays open: nobody closes it before the process ends.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while rustix::io::ioctl_fionread(fd)? < len as u64 {
        if std::time::Instant::now() > deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        rustix::thread::sched_yield();
    }
    Ok(())
}

fn forward(n: usize, len: usize) -> io::Result<()> {
    let (front, client) = connection(true)?;
    let (up, backend) = connection(false)?;
    let mut message = response(len);
    message.resize(message.len() + len, b'x');
    let (mut buffer, mut sink) = (vec![0; PIECE], vec![0; PIECE]);
    for _ in 0..n {
        rustix::net::send(&client, REQUEST, SendFlags::empty())?;
        arrived(front, REQUEST.len())?;
        let got = read(front, &mut buffer)?;
        write_all(up, &buffer[..got])?;
        rustix::net::recv(&backend, &mut sink[..], RecvFlags::empty())?;
        let mut sent = 0;
        while sent < message.len() {
            sent += rustix::net::send(&backend, &message[sent..], SendFlags::empty())?;
        }
        arrived(up, message.len())?;
        let mut left = message.len();
        while left > 0 {
            let got = read(up, &mut buffer)?;
            if got == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            write_all(front, &buffer[..got])?;
            left -= got;
            // The client takes at once what has come, so that the proxy never waits.
            loop {
                match rustix::net::recv(&client, &mut sink[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                    Ok((_, 1..)) => {}
                    Ok(_) => return Err(ErrorKind::UnexpectedEof.into()),
                    Err(rustix::io::Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}
