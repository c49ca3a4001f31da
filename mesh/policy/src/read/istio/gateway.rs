//! Gateway of Istio: each server is one rule.

use crate::form::{Reason, RuleKind};
use crate::read::fields::Fields;
use crate::read::set::{Document, Gateway, Server, Set};
use crate::read::yaml::Node;

pub(in crate::read) fn gateway(set: &mut Set, document: &Document<'_>) {
    let mut shared = document.notes();
    let mut spec = document.spec(&mut shared);
    let labels = spec.take("selector").map(|node| shared.labels(node, "selector")).unwrap_or_default();
    let list = spec.take("servers").map(|node| shared.list(node, "servers")).unwrap_or_default();
    spec.finish(&mut shared);
    let mut servers = Vec::new();
    for (index, node) in list.iter().enumerate() {
        let mut notes = document.notes_with(&shared.findings);
        let mut fields = Fields::of(node, &mut notes, "servers");
        fields.pass_over(&["name", "defaultEndpoint"]);
        fields.envoy("bind", Reason::UnknownField, &mut notes);
        let hosts = fields.take("hosts").map(|node| notes.texts(node, "hosts")).unwrap_or_default();
        let (mut number, mut protocol) = (None, "");
        if let Some(node) = fields.take("port") {
            let mut port = Fields::of(node, &mut notes, "port");
            port.pass_over(&["name", "targetPort"]);
            number = port.take("number").and_then(|node| notes.integer(node, "number"));
            protocol = port.take("protocol").map_or("", Node::text);
            port.finish(&mut notes);
        }
        // With `tls` on a clear-text port, requests are redirected and not routed.
        let clear = protocol.eq_ignore_ascii_case("HTTP") && node.get("tls").is_none();
        match protocol.to_ascii_uppercase().as_str() {
            "HTTP" => fields.envoy("tls", Reason::TlsDownstream, &mut notes),
            "HTTPS" | "TLS" => {
                notes.add(Reason::TlsDownstream, node, protocol);
                fields.pass_over(&["tls"]);
            }
            "HTTP2" | "GRPC" => notes.add(Reason::Http2, node, protocol),
            _ => notes.add(Reason::Tcp, node, protocol),
        }
        fields.finish(&mut notes);
        set.rule(RuleKind::Listener, format!("{} servers[{index}]", document.title()), document.at(node), notes);
        // `NAMESPACE/host` restricts who may attach, not what is matched.
        let host = |host: &String| host.rsplit('/').next().unwrap_or(host).to_ascii_lowercase();
        let hosts = hosts.iter().map(host).collect();
        servers.push(Server { name: String::new(), port: number.unwrap_or(0), clear, hosts });
    }
    set.gateways.push(Gateway {
        name: format!("{}/{}", document.namespace, document.name),
        namespace: document.namespace.clone(),
        labels,
        servers,
        origin: document.at(document.node),
    });
}
