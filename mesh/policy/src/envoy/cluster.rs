//! Clusters.

use serde_json::{Value, json};

use super::Server;
use crate::form::{Cluster, Discovery, LoadBalancing, UpstreamProtocol};

const OPTIONS: &str = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const TLS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";

pub(super) fn cluster(cluster: &Cluster, known: Option<&[Server]>) -> Value {
    let endpoint = |address: &str, port, weight| json!({"endpoint": {"address": socket(address, port)}, "load_balancing_weight": weight});
    let of_policy =
        cluster.endpoints.iter().map(|of| endpoint(&of.address, of.port.or(cluster.port).unwrap_or(80), of.weight));
    let of_agent =
        known.into_iter().flatten().map(|of| endpoint(&of.address.ip().to_string(), of.address.port(), of.weight));
    let list: Vec<_> = if known.is_some() { of_agent.collect() } else { of_policy.collect() };
    let is_dns = known.is_none() && cluster.discovery == Discovery::Dns;
    let balancing = match &cluster.balancing {
        LoadBalancing::RoundRobin => "ROUND_ROBIN",
        LoadBalancing::LeastRequest { .. } => "LEAST_REQUEST",
        LoadBalancing::Random => "RANDOM",
        LoadBalancing::Hash(_) => "RING_HASH",
        LoadBalancing::Passthrough => "ROUND_ROBIN",
    };
    let mut out = json!({
        "name": cluster.name, "type": if is_dns { "STRICT_DNS" } else { "STATIC" }, "connect_timeout": "5s",
        "lb_policy": balancing,
        "load_assignment": {"cluster_name": cluster.name, "endpoints": [{"lb_endpoints": list}]},
    });
    match cluster.protocol {
        UpstreamProtocol::Http2 => {
            let options = json!({"@type": OPTIONS, "explicit_http_config": {"http2_protocol_options": {}}});
            out["typed_extension_protocol_options"] =
                json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options});
        }
        UpstreamProtocol::Tls => {
            out["transport_socket"] = json!({
                "name": "envoy.transport_sockets.tls", "typed_config": {"@type": TLS, "sni": cluster.host},
            });
        }
        UpstreamProtocol::Http1 | UpstreamProtocol::Tcp => {}
    }
    add_outlier(&mut out, cluster);
    add_limits(&mut out, cluster);
    out
}

fn add_outlier(out: &mut Value, cluster: &Cluster) {
    let Some(outlier) = &cluster.outlier else { return };
    let mut detection = json!({});
    if let Some(errors) = outlier.consecutive_errors {
        detection["consecutive_5xx"] = json!(errors);
    }
    if let Some(interval) = outlier.interval {
        detection["interval"] = duration(interval);
    }
    if let Some(time) = outlier.base_ejection_time {
        detection["base_ejection_time"] = duration(time);
    }
    if let Some(percent) = outlier.max_ejection_percent {
        detection["max_ejection_percent"] = json!(percent);
    }
    out["outlier_detection"] = detection;
}

fn add_limits(out: &mut Value, cluster: &Cluster) {
    let Some(limits) = &cluster.limits else { return };
    let mut threshold = json!({});
    let parts = [
        ("max_connections", limits.connections),
        ("max_pending_requests", limits.pending_requests),
        ("max_requests", limits.requests),
        ("max_retries", limits.retries),
    ];
    for (name, value) in parts {
        if let Some(value) = value {
            threshold[name] = json!(value);
        }
    }
    out["circuit_breakers"] = json!({"thresholds": [threshold]});
    if let Some(timeout) = limits.connect_timeout {
        out["connect_timeout"] = duration(timeout);
    }
}

/// A cluster that leads to a listener inside this Envoy.
pub(super) fn guard(name: &str) -> Value {
    let address = json!({"envoy_internal_address": {"server_listener_name": name}});
    json!({
        "name": name, "type": "STATIC", "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]},
    })
}

pub(super) fn socket(address: &str, port: u16) -> Value {
    json!({"socket_address": {"address": address, "port_value": port}})
}

/// As protobuf writes it in JSON.
pub(super) fn duration(duration: std::time::Duration) -> Value {
    json!(format!("{}.{:09}s", duration.as_secs(), duration.subsec_nanos()))
}
