//! Answers requests.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Component, Path};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::backend::Backend;
use crate::http::Request;
use crate::objects;

impl Backend {
    /// Answers one request, and counts body bytes.
    ///
    /// # Errors
    /// Those of the connection; a file that became shorter.
    pub fn respond(&self, stream: &mut TcpStream, request: &Request, count: &AtomicU64) -> io::Result<()> {
        let close = if request.close { "Connection: close\r\n" } else { "" };
        let head = |status: &str, length: u64| format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{close}\r\n");
        if let Some(size) = objects::size(&request.path) {
            stream.write_all(head("200 OK", size).as_bytes())?;
            let mut sent = if request.head { size } else { 0 };
            while sent < size {
                let bytes = objects::content(sent);
                let length = bytes.len().min((size - sent) as usize);
                stream.write_all(&bytes[..length])?;
                sent += length as u64;
                count.fetch_add(length as u64, Relaxed);
            }
            return Ok(());
        }
        let file = self.config.root.as_deref().and_then(|root| open(root, &request.path));
        let Some((file, size)) = file else { return stream.write_all(head("404 Not Found", 0).as_bytes()) };
        stream.write_all(head("200 OK", size).as_bytes())?;
        if !request.head {
            let sent = io::copy(&mut file.take(size), stream)?;
            count.fetch_add(sent, Relaxed);
            if sent < size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

/// A regular file below `root`. Links are followed; `..` is not.
fn open(root: &Path, path: &str) -> Option<(File, u64)> {
    let relative = Path::new(path.split('?').next()?.trim_start_matches('/'));
    if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return None;
    }
    let file = File::open(root.join(relative)).ok()?;
    let about = file.metadata().ok()?;
    about.is_file().then_some((file, about.len()))
}
