//! HAProxy as a reverse proxy.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{worker_user, write};
use crate::LabError;
use crate::tls::Certificate;
use crate::tools::Tool;

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
    /// `maxconn`.
    pub connections: usize,
    /// Reuses connections to the backend.
    pub keepalive: bool,
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
            connections: 6000,
            keepalive: true,
        }
    }
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
        let verify = if self.upstream_tls { " ssl verify none" } else { "" };
        let proto = if self.upstream_http2 { " proto h2" } else { "" };
        let (reuse, close) = if self.keepalive { ("always", "") } else { ("never", "option http-server-close") };
        let log = if log { "log global" } else { "no log" };
        let Self { threads, connections, .. } = self;
        let config = format!(
            "global\n    maxconn {connections}\n    nbthread {threads}\n    {bufsize}\n    {user}\n    log stdout format raw local0\n\
             defaults\n    mode http\n    {log}\n    log-format \"%HU %ST %B %U %ts\"\n    {auto}\n    {always}\n    {close}\n    \
             timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n    timeout tunnel 60s\n\
             frontend lab\n    bind {listen}{ssl}{alpn} backlog 4096\n    default_backend backend\n\
             backend backend\n    http-reuse {reuse}\n    server one {backend}{proto}{verify}\n"
        );
        let config = write(dir, "haproxy.cfg", &config)?;
        let mut command = Command::new(Tool::Haproxy.path()?);
        command.arg("-db").arg("-f").arg(config);
        Ok(command)
    }
}
