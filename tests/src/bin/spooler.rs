//! Downloads `http://127.0.0.1:PORT/` to a file, as a proxy with temporary files does: `spooler PORT FILE HOW BUFFER…`.
//! `HOW` is `spool`, every read as it comes, or `hoard`, all of it after the last read. The buffers, sizes in bytes, are
//! filled by one call. Says `done` and waits for the end of its input, so that its counters can be read.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use rustix::event::{PollFd, PollFlags, poll};

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or(ErrorKind::InvalidInput);
    let port: u16 = next()?.parse().map_err(|_| ErrorKind::InvalidInput)?;
    let mut file = File::create(next()?)?;
    let hoards = next()? == "hoard";
    let sizes: Vec<usize> = arguments.filter_map(|size| size.parse().ok()).collect();
    let mut hoard = Vec::new();

    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    socket.write_all(b"GET / HTTP/1.1\r\nHost: spooler\r\nConnection: close\r\n\r\n")?;
    socket.set_nonblocking(true)?;
    loop {
        let mut buffers: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
        let mut into: Vec<IoSliceMut<'_>> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        match socket.read_vectored(&mut into) {
            Ok(0) => break,
            Ok(n) if hoards => hoard.push((buffers, n)),
            Ok(n) => spool(&mut file, &buffers, n)?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&socket, PollFlags::IN)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    for (buffers, n) in &hoard {
        spool(&mut file, buffers, *n)?;
    }
    println!("done");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Writes the first `len` bytes of the buffers with one call, as far as the kernel takes them at once.
fn spool(file: &mut File, buffers: &[Vec<u8>], len: usize) -> std::io::Result<()> {
    let mut left = len;
    let mut pieces = Vec::new();
    for buffer in buffers {
        let piece = left.min(buffer.len());
        pieces.push(IoSlice::new(&buffer[..piece]));
        left -= piece;
    }
    match file.write_vectored(&pieces)? {
        n if n == len => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}
