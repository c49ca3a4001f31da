//! Gateway: each listener is one rule.

use crate::form::{Reason, RuleKind};
use crate::read::fields::Fields;
use crate::read::set::{Document, Gateway, Server, Set};
use crate::read::yaml::Node;

pub(in crate::read) fn gateway(set: &mut Set, document: &Document<'_>) {
    let mut shared = document.notes();
    let mut spec = document.spec(&mut shared);
    spec.pass_over(&["gatewayClassName", "addresses", "infrastructure", "allowedListeners", "defaultScope"]);
    spec.envoy("backendTLS", Reason::TlsUpstream, &mut shared);
    spec.envoy("tls", Reason::TlsDownstream, &mut shared);
    let list = spec.take("listeners").map(|node| shared.list(node, "listeners")).unwrap_or_default();
    spec.finish(&mut shared);
    let mut servers = Vec::new();
    for (index, node) in list.iter().enumerate() {
        let mut notes = document.notes_with(&shared.findings);
        let mut fields = Fields::of(node, &mut notes, "listeners");
        // Who may attach is decided before there is any traffic.
        fields.pass_over(&["allowedRoutes"]);
        let name = fields.take("name").map_or("", Node::text).to_owned();
        let port = fields.take("port").and_then(|node| notes.integer(node, "port"));
        let host = fields.take("hostname").and_then(|node| notes.text(node, "hostname"));
        let protocol = fields.take("protocol").map_or("", Node::text);
        match protocol {
            "HTTP" => fields.envoy("tls", Reason::TlsDownstream, &mut notes),
            "HTTPS" | "TLS" => {
                notes.add(Reason::TlsDownstream, node, protocol);
                fields.pass_over(&["tls"]);
            }
            other => notes.add(Reason::Tcp, node, other),
        }
        fields.finish(&mut notes);
        set.rule(RuleKind::Listener, format!("{} listeners[{index}]", document.title()), document.at(node), notes);
        let hosts = vec![host.map_or("*".to_owned(), |host| host.to_ascii_lowercase())];
        servers.push(Server { name, port: port.unwrap_or(0), clear: protocol == "HTTP", hosts });
    }
    set.gateways.push(Gateway {
        name: format!("{}/{}", document.namespace, document.name),
        namespace: document.namespace.clone(),
        // What the controller labels the pods with, whoever it is.
        labels: [("gateway.networking.k8s.io/gateway-name".to_owned(), document.name.clone())].into(),
        servers,
        origin: document.at(document.node),
    });
}
