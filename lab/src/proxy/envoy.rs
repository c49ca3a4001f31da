//! Envoy as a reverse proxy.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::{worker_user, write};
use crate::LabError;
use crate::tls::Certificate;
use crate::tools::Tool;

const HCM: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const FILE_LOG: &str = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog";
const UPSTREAM: &str = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const TLS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
const UPSTREAM_TLS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const FORMAT: &str = "%REQ(:PATH?:AUTHORITY)% %RESPONSE_CODE% %DOWNSTREAM_WIRE_BYTES_SENT% %BYTES_SENT% \
                      %DOWNSTREAM_WIRE_BYTES_RECEIVED% %UPSTREAM_WIRE_BYTES_RECEIVED% %UPSTREAM_WIRE_BYTES_SENT% \
                      %RESPONSE_FLAGS%\n";

/// Envoy, configured.
#[derive(Clone, Debug)]
pub struct Envoy {
    /// `--concurrency`.
    pub workers: usize,
    /// Runs as the user that the workers of the others are, whom limits bind.
    pub unprivileged: bool,
    /// HTTPS to the client, by the TLS library inside of Envoy.
    pub tls: bool,
    /// HTTP/2 to the client: by ALPN with `tls`, else to one that begins with it (`codec_type: AUTO`).
    pub http2: bool,
    /// HTTP/2 to the backend, without TLS.
    pub upstream_http2: bool,
    /// TLS to the backend, whose certificate is not looked at.
    pub upstream_tls: bool,
    /// Requests with the field `secure` go there, by TLS.
    pub secure: Option<SocketAddr>,
}

impl Default for Envoy {
    fn default() -> Self {
        Self {
            workers: 1,
            unprivileged: false,
            tls: false,
            http2: false,
            upstream_http2: false,
            upstream_tls: false,
            secure: None,
        }
    }
}

impl Envoy {
    pub(super) fn command(
        &self,
        dir: &Path,
        listen: SocketAddr,
        backend: SocketAddr,
        certificate: Option<&Certificate>,
        log: bool,
    ) -> Result<Command, LabError> {
        let at =
            |addr: SocketAddr| json!({"socket_address": {"address": addr.ip().to_string(), "port_value": addr.port()}});
        let access_log = json!({"name": "file", "typed_config": {
            "@type": FILE_LOG, "path": dir.join("access.log"),
            "log_format": {"text_format_source": {"inline_string": FORMAT}},
        }});
        let access_logs = if log { vec![access_log] } else { Vec::new() };
        let mut routes = vec![
            json!({"match": {"connect_matcher": {}}, "route": {"cluster": "backend", "timeout": "0s"}}),
            json!({"match": {"prefix": "/"}, "route": {"cluster": "backend", "timeout": "0s"}}),
        ];
        if self.secure.is_some() {
            let those = json!({"prefix": "/", "headers": [{"name": "secure", "present_match": true}]});
            routes.insert(0, json!({"match": those, "route": {"cluster": "secure", "timeout": "0s"}}));
        }
        let manager = json!({
            "@type": HCM, "stat_prefix": "lab", "codec_type": if self.http2 { "AUTO" } else { "HTTP1" },
            "generate_request_id": false,
            "http_protocol_options": {
                "accept_http_10": true, "default_host_for_http_10": "lab.test", "enable_trailers": true,
            },
            "upgrade_configs": [{"upgrade_type": "websocket"}, {"upgrade_type": "CONNECT"}],
            "access_log": access_logs,
            "route_config": {"virtual_hosts": [{"name": "lab", "domains": ["*"], "routes": routes}]},
            "http_filters": [{"name": "router", "typed_config": {"@type": ROUTER, "suppress_envoy_headers": true}}],
        });
        let mut chain = json!({"filters": [{"name": "manager", "typed_config": manager}]});
        if let Some(certificate) = certificate {
            let pair = json!({
                "certificate_chain": {"filename": certificate.cert}, "private_key": {"filename": certificate.key},
            });
            let alpn: &[&str] = if self.http2 { &["h2", "http/1.1"] } else { &["http/1.1"] };
            let context = json!({"alpn_protocols": alpn, "tls_certificates": [pair]});
            chain["transport_socket"] =
                json!({"name": "tls", "typed_config": {"@type": TLS, "common_tls_context": context}});
        }
        let upstream = match self.upstream_http2 {
            true => json!({"http2_protocol_options": {}}),
            false => json!({"http_protocol_options": {"enable_trailers": true}}),
        };
        let upstream = json!({"explicit_http_config": upstream, "@type": UPSTREAM});
        let cluster = |name: &str, addr: SocketAddr, tls: bool| {
            let endpoints = json!([{"lb_endpoints": [{"endpoint": {"address": at(addr)}}]}]);
            let mut cluster = json!({
                "name": name, "type": "STATIC", "connect_timeout": "5s",
                "load_assignment": {"cluster_name": name, "endpoints": endpoints},
                "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": upstream},
            });
            if tls {
                cluster["transport_socket"] = json!({"name": "tls", "typed_config": {"@type": UPSTREAM_TLS}});
            }
            cluster
        };
        let mut clusters = vec![cluster("backend", backend, self.upstream_tls)];
        clusters.extend(self.secure.map(|addr| cluster("secure", addr, true)));
        let config = json!({"static_resources": {
            "listeners": [{"name": "lab", "address": at(listen), "filter_chains": [chain]}],
            "clusters": clusters,
        }});
        // JSON is YAML.
        let config = write(dir, "envoy.yaml", &config.to_string())?;
        let mut command = self.program()?;
        command.arg("-c").arg(config).arg("--log-path").arg(dir.join("error.log"));
        command.args(["--concurrency", &self.workers.to_string()]);
        command.args(["--disable-hot-restart", "--file-flush-interval-msec", "5", "--log-level", "warning"]);
        command.args(["--drain-time-s", "1", "--parent-shutdown-time-s", "2"]);
        Ok(command)
    }

    fn program(&self) -> Result<Command, LabError> {
        let envoy = Tool::Envoy.path()?;
        let Some(user) = worker_user().filter(|_| self.unprivileged) else { return Ok(Command::new(envoy)) };
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        // The program and the library may lie, and its directory does, where only root comes to.
        command.args(["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"]).arg(envoy);
        Ok(command)
    }
}
