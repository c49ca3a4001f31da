//! A server that says what it received.
//!
//! The path says what it does: `/size/N` answers with N bytes, `/chunked/N` the same in chunks, `/close/N` until the
//! end of the connection, `/bye/N` with `connection: close`, `/gone` closes without an answer, `/cut` in the middle
//! of one, `/wait` answers after [`Backend::let_go`], `/half/N` answers until the end of the connection, the second half
//! after that.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// One server. Its threads end with the process.
pub struct Backend {
    pub address: SocketAddr,
    connections: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

/// The bytes of a body: each depends on its place.
pub fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|at| b'a' + u8::try_from((at + at / 26 * 7) % 26).expect("below 26")).collect()
}

impl Backend {
    pub fn start() -> Self {
        Self::start_at("127.0.0.1:0")
    }

    pub fn start_at(address: &str) -> Self {
        let listener = TcpListener::bind(address).expect("a port");
        let address = listener.local_addr().expect("bound");
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (shared, connections) = (gate.clone(), Arc::new(AtomicU64::new(0)));
        let requests = Arc::new(AtomicU64::new(0));
        let (counted, read) = (connections.clone(), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (gate, read) = (shared.clone(), read.clone());
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || serve(stream, &gate, &read));
            }
        });
        Self { address, connections, requests, gate }
    }

    /// How many there were.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// How many it has read.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// `/wait` is answered from now on.
    pub fn let_go(&self) {
        *self.gate.0.lock().expect("no panic") = true;
        self.gate.1.notify_all();
    }
}

fn serve(stream: TcpStream, gate: &(Mutex<bool>, Condvar), requests: &AtomicU64) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut output = stream.try_clone().ok()?;
    let mut input = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if input.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        if lower.contains("transfer-encoding: chunked") {
            read_chunks(&mut input, &mut body)?;
        } else {
            input.read_exact(&mut body).ok()?;
        }
        requests.fetch_add(1, Ordering::Relaxed);
        let mut words = head.split(' ');
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut parts = path.trim_start_matches('/').split('/');
        let (what, size) = (parts.next()?, parts.next().and_then(|size| size.parse().ok()));
        let (what, size) = if size.is_none() && parts.clone().next().is_some() {
            let what = path.rsplit('/').nth(1)?;
            (what, path.rsplit('/').next()?.parse().ok())
        } else {
            (what, size)
        };
        match what {
            "gone" => return None,
            "wait" => drop(gate.1.wait_while(gate.0.lock().ok()?, |open| !*open).ok()?),
            _ => {}
        }
        let seen: Vec<_> = head.trim_end().lines().map(str::to_owned).collect();
        let text = seen.join("|");
        let payload = match size {
            Some(size) => pattern(size),
            None => format!("{text}|body {} {}", body.len(), u8::from(body == pattern(body.len()))).into_bytes(),
        };
        if what == "half" {
            let (first, second) = payload.split_at(payload.len() / 2);
            respond(&mut output, "close", &method, first)?;
            drop(gate.1.wait_while(gate.0.lock().ok()?, |open| !*open).ok()?);
            return output.write_all(second).ok();
        }
        respond(&mut output, what, &method, &payload)?;
        if matches!(what, "close" | "bye" | "cut") {
            return None;
        }
    }
}

fn respond(output: &mut TcpStream, what: &str, method: &str, payload: &[u8]) -> Option<()> {
    let mut out = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nx-up: one\r\n".to_vec();
    match what {
        "chunked" => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n"),
        "close" => out.extend_from_slice(b"\r\n"),
        "bye" => {
            out.extend_from_slice(format!("Connection: close\r\nContent-Length: {}\r\n\r\n", payload.len()).as_bytes())
        }
        _ => out.extend_from_slice(
            format!("Connection: keep-alive\r\nContent-Length: {}\r\n\r\n", payload.len()).as_bytes(),
        ),
    }
    match what {
        _ if method == "HEAD" => {}
        "chunked" => {
            for piece in payload.chunks(5000) {
                out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\n\r\n");
        }
        "cut" => out.extend_from_slice(&payload[..payload.len() / 2]),
        _ => out.extend_from_slice(payload),
    }
    output.write_all(&out).ok()
}

fn read_chunks(input: &mut BufReader<TcpStream>, body: &mut Vec<u8>) -> Option<()> {
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok()?;
        let size = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut piece = vec![0; size + 2];
        input.read_exact(&mut piece).ok()?;
        if size == 0 {
            return Some(());
        }
        body.extend_from_slice(&piece[..size]);
    }
}
