//! HAProxy as a reverse proxy.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{worker_user, write};
use crate::LabError;
use crate::error::While;
use crate::tls::Certificate;
use crate::tools::Tool;

const ANSWERS: Duration = Duration::from_secs(10);

/// HAProxy, configured.
#[derive(Clone, Debug)]
pub struct Haproxy {
    /// `nbthread`.
    pub threads: usize,
    /// `option splice-auto`: HAProxy splices where it finds that worth it.
    pub splice: bool,
    /// `option splice-request` and `option splice-response`: it splices wherever it can.
    pub splice_always: bool,
    /// `tune.bufsize`, bytes; None: 16384.
    pub bufsize: Option<u32>,
    /// HTTPS to the client.
    pub tls: bool,
    /// HTTP/2 by ALPN. Without TLS, HAProxy takes it from any client that begins with it.
    pub http2: bool,
    /// HTTP/2 to the backend, without TLS.
    pub upstream_http2: bool,
    /// TLS to the backend, whose certificate is not looked at.
    pub upstream_tls: bool,
    /// The PROXY protocol to the backend.
    pub upstream_proxy_protocol: bool,
    /// Clients begin with the PROXY protocol.
    pub proxy_protocol: bool,
    /// `maxconn`.
    pub connections: usize,
    /// Reuses connections to the backend.
    pub keepalive: bool,
    /// `timeout client`, `server` and `tunnel`, seconds. HAProxy 2.6 that splices by itself was seen to keep connections of
    /// clients that had left until then, with the engine and without.
    pub timeout_s: u32,
}

impl Default for Haproxy {
    fn default() -> Self {
        Self {
            threads: 1,
            splice: false,
            splice_always: false,
            bufsize: None,
            tls: false,
            http2: false,
            upstream_http2: false,
            upstream_tls: false,
            upstream_proxy_protocol: false,
            proxy_protocol: false,
            connections: 6000,
            keepalive: true,
            timeout_s: 60,
        }
    }
}

/// Where it answers questions about itself.
fn socket(dir: &Path) -> PathBuf {
    dir.join("haproxy.sock")
}

/// Bytes that it has sent by its own splicing, by `show info`.
pub(super) fn spliced(dir: &Path) -> Result<u64, LabError> {
    let socket = socket(dir);
    let what = || format!("ask {}", socket.display());
    let mut stream = UnixStream::connect(&socket).doing(what)?;
    stream.set_read_timeout(Some(ANSWERS)).doing(what)?;
    stream.write_all(b"show info\n").doing(what)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).doing(what)?;
    // HAProxy 2.6 spells it TotalSplicdedBytesOut, later ones TotalSplicedBytesOut.
    let line = text.lines().find(|line| line.starts_with("TotalSplic")).and_then(|line| line.split_once(": "));
    let bytes = line.and_then(|(_, bytes)| bytes.trim().parse().ok());
    bytes.ok_or_else(|| std::io::Error::other(format!("no spliced bytes in {text:?}"))).doing(what)
}

impl Haproxy {
    pub(super) fn command(
        &self,
        dir: &Path,
        listen: SocketAddr,
        backend: SocketAddr,
        certificate: Option<&Certificate>,
        log: bool,
    ) -> Result<Command, LabError> {
        let user = worker_user().map(|user| format!("user {user}\n    group {user}")).unwrap_or_default();
        let bufsize = self.bufsize.map(|bytes| format!("tune.bufsize {bytes}")).unwrap_or_default();
        let auto = if self.splice { "option splice-auto" } else { "" };
        let always = if self.splice_always { "option splice-request\n    option splice-response" } else { "" };
        let ssl = certificate.map(|it| format!(" ssl crt {}", it.both.display())).unwrap_or_default();
        let alpn = if self.tls && self.http2 { " alpn h2,http/1.1" } else { "" };
        let accept = if self.proxy_protocol { " accept-proxy" } else { "" };
        let send = if self.upstream_proxy_protocol { " send-proxy" } else { "" };
        let verify = if self.upstream_tls { " ssl verify none" } else { "" };
        let proto = if self.upstream_http2 { " proto h2" } else { "" };
        let (reuse, close) = if self.keepalive { ("always", "") } else { ("never", "option http-server-close") };
        let log = if log { "log global" } else { "no log" };
        let socket = socket(dir).display().to_string();
        let Self { threads, connections, timeout_s, .. } = self;
        let config = format!(
            "global\n    maxconn {connections}\n    nbthread {threads}\n    {bufsize}\n    {user}\n    stats socket {socket}\n    log stdout format raw local0\n\
             defaults\n    mode http\n    {log}\n    log-format \"%HU %ST %B %U %ts\"\n    {auto}\n    {always}\n    {close}\n    \
             timeout connect 5s\n    timeout client {timeout_s}s\n    timeout server {timeout_s}s\n    timeout tunnel {timeout_s}s\n\
             frontend lab\n    bind {listen}{accept}{ssl}{alpn} backlog 4096\n    default_backend backend\n\
             backend backend\n    http-reuse {reuse}\n    server one {backend}{proto}{verify}{send}\n"
        );
        let config = write(dir, "haproxy.cfg", &config)?;
        let mut command = Command::new(Tool::Haproxy.path()?);
        command.arg("-db").arg("-f").arg(config);
        Ok(command)
    }
}
