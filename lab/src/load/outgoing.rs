//! A message on its way out: heads and chunk lines by `send`, payload by `sendfile` or by `send`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::content;

/// One piece of a message.
#[derive(Clone, Debug)]
enum Part {
    Bytes(Vec<u8>),
    Payload { offset: u64, len: u64 },
}

/// By which call payload is sent. It decides in what pieces the kernel keeps it in socket buffers, and so what it costs
/// to splice it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// `sendfile`, as servers of files do: the pages of the file itself, each a piece of its own (4 KiB).
    Sendfile,
    /// `send`, as programs do that make their answers: copied to memory of the kernel, in pieces of up to 32 KiB.
    Write,
}

/// Payload in memory, with the content of a seed, to be sent in one way.
#[derive(Clone, Debug)]
pub struct Source {
    payload: Payload,
    len: u64,
}

#[derive(Clone, Debug)]
enum Payload {
    /// A memory file.
    File(Arc<OwnedFd>),
    Memory(Arc<[u8]>),
}

/// Made and written in one go.
const BLOCK: u64 = 1 << 20;

impl Source {
    /// Makes `len` bytes of the content of `seed`, to be sent as `sending` says.
    pub fn new(seed: u64, len: u64, sending: Sending) -> io::Result<Self> {
        let payload = match sending {
            Sending::Sendfile => Payload::File(Arc::new(file(seed, len)?)),
            Sending::Write => Payload::Memory(content::bytes(seed, 0, len as usize).into()),
        };
        Ok(Self { payload, len })
    }

    /// One without payload, for those who only ask.
    pub fn empty() -> Self {
        Self { payload: Payload::Memory(Arc::new([])), len: 0 }
    }

    /// Bytes in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sends some of the `len` bytes from `offset` on; how many.
    fn send(&self, socket: impl AsFd, offset: u64, len: u64, flags: SendFlags) -> rustix::io::Result<usize> {
        match &self.payload {
            Payload::File(file) => sendfile(socket, file, Some(&mut { offset }), len as usize),
            Payload::Memory(bytes) => {
                let bytes = bytes.get(offset as usize..(offset + len) as usize).unwrap_or_default();
                send(socket, bytes, flags)
            }
        }
    }
}

fn file(seed: u64, len: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("underdeck-lab-source", MemfdFlags::CLOEXEC)?;
    let mut offset = 0;
    while offset < len {
        let n = BLOCK.min(len - offset);
        let block = content::bytes(seed, offset, n as usize);
        let mut done = 0;
        while done < block.len() {
            done += rustix::io::pwrite(&file, &block[done..], offset + done as u64)?;
        }
        offset += n;
    }
    Ok(file)
}

/// A message and how far it has been sent.
#[derive(Clone, Debug)]
pub struct Outgoing {
    parts: Vec<Part>,
    part: usize,
    at: u64,
    base: u64,
}

impl Outgoing {
    /// `head` (with its empty line), then `len` payload bytes of the source; in chunks of `chunk` bytes if given.
    pub fn new(head: &str, len: u64, chunk: Option<u64>) -> Self {
        let mut parts = Vec::new();
        let mut text = head.as_bytes().to_vec();
        let piece = chunk.unwrap_or(len).max(1);
        let mut offset = 0;
        while offset < len {
            let n = piece.min(len - offset);
            if chunk.is_some() {
                text.extend_from_slice(format!("{n:x}\r\n").as_bytes());
            }
            parts.push(Part::Bytes(std::mem::take(&mut text)));
            parts.push(Part::Payload { offset, len: n });
            if chunk.is_some() {
                text.extend_from_slice(b"\r\n");
            }
            offset += n;
        }
        if chunk.is_some() {
            text.extend_from_slice(b"0\r\n\r\n");
        }
        if !text.is_empty() {
            parts.push(Part::Bytes(text));
        }
        Self { parts, part: 0, at: 0, base: 0 }
    }

    /// Begins again, with the payload from `base` on in the source.
    pub fn rewind(&mut self, base: u64) {
        (self.part, self.at, self.base) = (0, 0, base);
    }

    /// Whether everything has been sent.
    pub fn done(&self) -> bool {
        self.part >= self.parts.len()
    }

    /// Sends as much as the socket takes; true when the message is complete. Payload bytes sent are added to `sent`.
    pub fn push(&mut self, socket: impl AsFd, source: &Source, sent: &mut u64) -> io::Result<bool> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while let Some(part) = self.parts.get(self.part) {
            let more = if self.part + 1 < self.parts.len() { SendFlags::MORE } else { SendFlags::empty() };
            let (result, len) = match part {
                Part::Bytes(bytes) => (send(&socket, &bytes[self.at as usize..], flags | more), bytes.len() as u64),
                Part::Payload { offset, len } => {
                    let from = self.base + offset + self.at;
                    (source.send(&socket, from, len - self.at, flags | more), *len)
                }
            };
            match result {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    if matches!(part, Part::Payload { .. }) {
                        *sent += n as u64;
                    }
                    self.at += n as u64;
                    if self.at == len {
                        (self.part, self.at) = (self.part + 1, 0);
                    }
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};

    use super::*;

    const LEN: u64 = 1 << 20;
    const PAGE: usize = 4096;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let ours = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        (ours, listener.accept().expect("accepted").0)
    }

    #[test]
    fn both_ways_send_the_same_bytes() {
        for sending in [Sending::Sendfile, Sending::Write] {
            let source = Source::new(7, LEN, sending).expect("a source");
            let (ours, mut theirs) = connection();
            let reader = std::thread::spawn(move || {
                let mut seen = Vec::new();
                theirs.read_to_end(&mut seen).map(|_| seen).expect("read")
            });
            let (mut outgoing, mut sent) = (Outgoing::new("head\r\n\r\n", 300_000, Some(65_536)), 0);
            outgoing.rewind(5);
            while !outgoing.push(&ours, &source, &mut sent).expect("sent") {
                std::thread::yield_now();
            }
            drop(ours);
            let seen = reader.join().expect("it read");
            let body = content::bytes(7, 5, 300_000);
            assert_eq!(sent, 300_000);
            assert!(seen.starts_with(b"head\r\n\r\n10000\r\n") && seen.ends_with(b"\r\n0\r\n\r\n"), "{sending:?}");
            assert_eq!(seen[15..][..65_536], body[..65_536], "{sending:?}");
            assert_eq!(seen[15 + 65_536 + 9..][..65_536], body[65_536..][..65_536], "{sending:?}");
        }
    }

    /// A pipe has a slot for each piece: what fits into one of 16 slots says how large they are.
    #[test]
    fn what_is_written_arrives_in_larger_pieces_than_what_is_sent_from_a_file() {
        let fits = |sending| {
            let source = Source::new(7, LEN, sending).expect("a source");
            let (ours, theirs) = connection();
            let mut outgoing = Outgoing::new("head", LEN, None);
            let (_out, into) = pipe().expect("a pipe");
            fcntl_setpipe_size(&into, 16 * PAGE).expect("16 slots");
            let (mut moved, deadline) = (0, Instant::now() + Duration::from_secs(20));
            while writable(&into) {
                assert!(Instant::now() < deadline, "{moved} bytes did not fill the pipe");
                outgoing.push(&ours, &source, &mut 0).expect("sent");
                match splice(&theirs, None, &into, None, LEN as usize, SpliceFlags::NONBLOCK) {
                    Ok(n) => moved += n,
                    Err(error) => assert_eq!(error, Errno::AGAIN),
                }
            }
            moved / 16
        };
        let (file, written) = (fits(Sending::Sendfile), fits(Sending::Write));
        assert!(file <= PAGE && written > 2 * PAGE, "pieces of {file} and {written} bytes");
    }

    fn writable(pipe: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(pipe, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}
