//! nginx as a reverse proxy.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{worker_user, write};
use crate::LabError;
use crate::tls::Certificate;
use crate::tools::Tool;

/// Response buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// What nginx comes with: 8 of one page.
    Default,
    /// 16 of 64 KiB.
    Large,
}

/// nginx, configured.
#[derive(Clone, Debug)]
pub struct Nginx {
    /// Which nginx.
    pub tool: Tool,
    /// Its buffers.
    pub buffers: Buffers,
    /// `proxy_buffering`.
    pub buffering: bool,
    /// `proxy_request_buffering`.
    pub request_buffering: bool,
    /// Few buffers, so that a client that does not read makes it spool to temp files.
    pub temp_files: bool,
    /// `proxy_cache` with every 200 valid for a minute.
    pub cache: bool,
    /// With `cache`: every response is written to it under a key of its own, and it keeps some 200 of them.
    pub never_cached: bool,
    /// `gzip` for everything.
    pub gzip: bool,
    /// HTTPS to the client.
    pub tls: bool,
    /// HTTP/2 to the client: by ALPN with `tls`, else to one that begins with it. nginx 1.22 then takes nothing else without TLS.
    pub http2: bool,
    /// Keeps connections to the backend.
    pub keepalive: bool,
    /// `proxy_http_version`.
    pub upstream_version: &'static str,
    /// `worker_processes`.
    pub workers: usize,
    /// Started by a shell that is gone when nginx is up: nginx ignores USR2 as long as the parent that it started with lives.
    pub orphan: bool,
    /// Further lines of the `main` context, for instance `env LD_PRELOAD;`.
    pub main: String,
    /// Further lines of the `server` context.
    pub server: String,
}

impl Default for Nginx {
    fn default() -> Self {
        Self {
            tool: Tool::Nginx,
            buffers: Buffers::Default,
            buffering: true,
            request_buffering: true,
            temp_files: false,
            cache: false,
            never_cached: false,
            gzip: false,
            tls: false,
            http2: false,
            keepalive: true,
            upstream_version: "1.1",
            workers: 1,
            orphan: false,
            main: String::new(),
            server: String::new(),
        }
    }
}

impl Nginx {
    /// With 64 KiB buffers.
    pub fn large() -> Self {
        Self { buffers: Buffers::Large, ..Self::default() }
    }

    pub(super) fn command(
        &self,
        dir: &Path,
        listen: SocketAddr,
        backend: SocketAddr,
        certificate: Option<&Certificate>,
        log: bool,
    ) -> Result<Command, LabError> {
        let config = self.config(dir, listen, backend, certificate, log);
        let config = write(dir, "nginx.conf", &config)?;
        let program = self.tool.path()?;
        let mut command = if self.orphan { Command::new("sh") } else { Command::new(&program) };
        if self.orphan {
            let pid = dir.join("nginx.pid");
            let script = format!("\"$0\" \"$@\" & until [ -s {} ]; do sleep 0.01; done", pid.display());
            command.arg("-c").arg(script).arg(&program);
        }
        command.arg("-p").arg(dir).arg("-e").arg(dir.join("error.log")).arg("-c").arg(config);
        command.args(["-g", "daemon off;"]);
        Ok(command)
    }

    fn config(
        &self,
        dir: &Path,
        listen: SocketAddr,
        backend: SocketAddr,
        certificate: Option<&Certificate>,
        log: bool,
    ) -> String {
        let mut server = String::new();
        self.proxy_lines(&mut server);
        let ssl = if certificate.is_some() { " ssl" } else { "" };
        if let Some(certificate) = certificate {
            let (cert, key) = (certificate.cert.display(), certificate.key.display());
            let _ = writeln!(server, "ssl_certificate {cert}; ssl_certificate_key {key};");
        }
        let http2 = if self.http2 { " http2" } else { "" };
        let dir = dir.display();
        let user = worker_user().map(|user| format!("user {user};")).unwrap_or_default();
        let Self { workers, main, server: more, .. } = self;
        let keepalive = if self.keepalive { "keepalive 64;" } else { "" };
        // Where there is no room for another key, the worker itself removes a file; `max_size` is looked at every 10 s only.
        let keys = if self.never_cached { "32k max_size=64m" } else { "1m" };
        let cache = match self.cache {
            true => format!("proxy_cache_path {dir}/cache keys_zone=lab:{keys} inactive=10m;"),
            false => String::new(),
        };
        let access_log = if log { format!("{dir}/access.log lab") } else { "off".to_owned() };
        let format = "$request_uri $status $bytes_sent $body_bytes_sent $request_length $upstream_bytes_received \
                   $upstream_bytes_sent $request_completion";
        format!(
            "{user}\nworker_processes {workers};\npid {dir}/nginx.pid;\nerror_log {dir}/error.log info;\n{main}\n\
             events {{ worker_connections 12000; }}\n\
             http {{\n\
             client_body_temp_path {dir}/body_temp;\nproxy_temp_path {dir}/proxy_temp;\n\
             fastcgi_temp_path {dir}/fastcgi_temp;\nuwsgi_temp_path {dir}/uwsgi_temp;\nscgi_temp_path {dir}/scgi_temp;\n\
             log_format lab '{format}';\naccess_log {access_log};\n\
             client_max_body_size 0;\nkeepalive_requests 1000000;\nsendfile on;\nserver_tokens off;\n{cache}\n\
             map $http_upgrade $lab_connection {{ default upgrade; '' {connection}; }}\n\
             upstream backend {{ server {backend}; {keepalive} }}\n\
             server {{\nlisten {listen}{ssl}{http2} backlog=4096;\n\
             location / {{ proxy_pass http://backend; }}\n{server}\n{more}\n}}\n}}\n",
            connection = if self.keepalive { "''" } else { "close" },
        )
    }

    fn proxy_lines(&self, to: &mut String) {
        let on = |flag: bool| if flag { "on" } else { "off" };
        let _ = writeln!(to, "proxy_http_version {};", self.upstream_version);
        let _ = writeln!(to, "proxy_set_header Connection $lab_connection; proxy_set_header Upgrade $http_upgrade;");
        let _ = writeln!(to, "proxy_buffering {};", on(self.buffering));
        let _ = writeln!(to, "proxy_request_buffering {};", on(self.request_buffering));
        if self.buffers == Buffers::Large {
            to.push_str("proxy_buffer_size 64k; proxy_buffers 16 64k; proxy_busy_buffers_size 128k;\n");
        }
        if self.temp_files {
            to.push_str("proxy_buffers 2 8k; proxy_buffer_size 8k; proxy_busy_buffers_size 8k;\n");
        }
        if self.cache {
            let key = if self.never_cached { "$request_id" } else { "$request_uri" };
            let _ = writeln!(to, "proxy_cache lab; proxy_cache_valid 200 1m; proxy_cache_key {key};");
        }
        if self.gzip {
            to.push_str("gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any; gzip_http_version 1.0;\n");
        }
    }
}
