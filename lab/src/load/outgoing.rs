//! A message on its way out: heads and chunk lines from memory, payload from a file by `sendfile`.

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
    File { offset: u64, len: u64 },
}

/// Payload in memory that `sendfile` can send: a memory file with the content of a seed.
#[derive(Clone, Debug)]
pub struct Source {
    file: Arc<OwnedFd>,
    len: u64,
}

impl Source {
    /// Makes `len` bytes of the content of `seed`.
    pub fn new(seed: u64, len: u64) -> io::Result<Self> {
        const BLOCK: u64 = 1 << 20;
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
        Ok(Self { file: Arc::new(file), len })
    }

    /// Bytes in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
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
            parts.push(Part::File { offset, len: n });
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
                Part::File { offset, len } => {
                    let mut from = self.base + offset + self.at;
                    (sendfile(&socket, &*source.file, Some(&mut from), (len - self.at) as usize), *len)
                }
            };
            match result {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    if matches!(part, Part::File { .. }) {
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
