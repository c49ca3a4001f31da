//! Relays a request to a backend, and the answer to the client.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;

use crate::balancer::Balancer;
use crate::http::{self, Request};

/// A connection to a backend that is kept for the next request.
pub struct Upstream {
    backend: usize,
    stream: TcpStream,
}

/// One request.
pub struct Exchange<'a> {
    pub balancer: &'a Balancer,
    pub request: &'a Request,
    pub head: &'a [u8],
}

/// Where a relay failed.
enum Failure {
    /// The client has not seen anything: another backend may answer.
    Before,
    /// The client has a part of the answer.
    Midway(io::Error),
}

impl Exchange<'_> {
    /// Asks one backend after the other, those last that did not take the connection (`failed`). False if the connection
    /// must not go on.
    ///
    /// # Errors
    /// Those of the client's connection, and an answer that broke off.
    pub fn relay(&self, client: &mut TcpStream, upstream: &mut Option<Upstream>, failed: &[usize]) -> io::Result<bool> {
        let mut tried = Vec::new();
        loop {
            let avoided = [&tried[..], failed].concat();
            let path = &self.request.path;
            let chosen = self.balancer.choose(path, &avoided, true);
            let Some(backend) = chosen.or_else(|| self.balancer.choose(path, &tried, false)) else {
                client.write_all(http::UNAVAILABLE)?;
                return Ok(false);
            };
            match self.ask(client, upstream, backend) {
                Ok(()) => return Ok(true),
                Err(Failure::Before) => tried.push(backend),
                Err(Failure::Midway(error)) => return Err(error),
            }
        }
    }

    fn ask(&self, client: &mut TcpStream, upstream: &mut Option<Upstream>, backend: usize) -> Result<(), Failure> {
        if let Some(kept) = upstream.take_if(|kept| kept.backend == backend) {
            match self.answer(client, kept.stream) {
                // The backend may have closed a connection that was idle: that is no answer.
                Err(Failure::Before) => {}
                done => return done.map(|stream| self.keep(upstream, backend, stream)),
            }
        }
        *upstream = None;
        let config = &self.balancer.config;
        let at = &self.balancer.peers[backend].config.listen;
        let connected = TcpStream::connect_timeout(at, config.step()).and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(config.idle()))?;
            stream.set_write_timeout(Some(config.idle()))?;
            Ok(stream)
        });
        let stream = self.answer(client, connected.map_err(|_| Failure::Before)?)?;
        self.keep(upstream, backend, stream);
        Ok(())
    }

    fn keep(&self, upstream: &mut Option<Upstream>, backend: usize, stream: TcpStream) {
        if !self.request.close {
            *upstream = Some(Upstream { backend, stream });
        }
    }

    fn answer(&self, client: &mut TcpStream, mut server: TcpStream) -> Result<TcpStream, Failure> {
        server.write_all(self.head).map_err(|_| Failure::Before)?;
        let mut buffer = Vec::new();
        let response = http::response(&mut server, &mut buffer).map_err(|_| Failure::Before)?;
        client.write_all(&buffer).map_err(Failure::Midway)?;
        let body = if self.request.head { 0 } else { response.body };
        let left = body.saturating_sub((buffer.len() - response.length) as u64);
        copy(&mut server, client, left).map_err(Failure::Midway)?;
        self.balancer.metrics.requests.fetch_add(1, Relaxed);
        self.balancer.metrics.relayed_bytes.fetch_add(body, Relaxed);
        Ok(server)
    }
}

fn copy(from: &mut TcpStream, to: &mut TcpStream, mut left: u64) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    while left > 0 {
        let room = bytes.len().min(left as usize);
        let count = http::read(from, &mut bytes[..room])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all(&bytes[..count])?;
        left -= count as u64;
    }
    Ok(())
}
