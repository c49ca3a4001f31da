//! VirtualService: each entry of `http`, `tcp` and `tls` is one rule.

use super::full_host;
use super::http_action::{self, Headers};
use super::http_match;
use crate::form::{
    Action, Forward, HeaderEdits, Origin, PerMillion, Reason, RequestMatch, Route, RuleKind, WeightedTarget,
};
use crate::read::fields::{Fields, Notes};
use crate::read::set::{Document, GatedRoute, HostRoutes, Reference, Set};
use crate::read::yaml::Node;

pub(in crate::read) fn virtual_service(set: &mut Set, document: &Document<'_>) {
    let mut shared = document.notes();
    let mut spec = document.spec(&mut shared);
    spec.pass_over(&["exportTo"]);
    let hosts = spec.take("hosts").map(|node| shared.texts(node, "hosts")).unwrap_or_default();
    let gateways = spec.take("gateways").map(|node| shared.texts(node, "gateways"));
    let gateways = gateways.filter(|names| !names.is_empty()).unwrap_or_else(|| vec!["mesh".into()]);
    let http = spec.take("http").map(|node| shared.list(node, "http")).unwrap_or_default();
    let other: Vec<_> = ["tcp", "tls"].into_iter().filter_map(|name| Some((name, spec.take(name)?))).collect();
    spec.finish(&mut shared);
    let mut routes = Vec::new();
    for (index, node) in http.iter().enumerate() {
        // What is wrong with the document is wrong with each of its rules.
        let notes = document.notes_with(&shared.findings);
        let mut reader = RouteReader { document, gateways: &gateways, notes };
        let made = reader.route(node, set.next_rule());
        let notes = reader.notes;
        set.rule(RuleKind::Route, format!("{} http[{index}]", document.title()), document.at(node), notes);
        routes.extend(made);
    }
    for (name, list) in other {
        for (index, node) in list.items().iter().enumerate() {
            let mut notes = document.notes();
            notes.add(if name == "tls" { Reason::TlsDownstream } else { Reason::Tcp }, node, name);
            set.rule(RuleKind::Route, format!("{} {name}[{index}]", document.title()), document.at(node), notes);
        }
    }
    if !routes.is_empty() {
        set.routes.push(HostRoutes {
            name: document.name.clone(),
            namespace: document.namespace.clone(),
            hosts: hosts.iter().map(|host| full_host(host, &document.namespace)).collect(),
            routes,
            by_precedence: false,
            origin: document.at(document.node),
        });
    }
}

struct RouteReader<'a> {
    document: &'a Document<'a>,
    gateways: &'a [String],
    notes: Notes,
}

impl RouteReader<'_> {
    /// One entry of `http`: as many routes as it has matches.
    fn route(&mut self, node: &Node, rule: crate::form::RuleId) -> Vec<GatedRoute> {
        let mut fields = Fields::of(node, &mut self.notes, "http");
        let name = fields.take("name").map_or("", Node::text).to_owned();
        let matches = self.matches(&mut fields, node);
        let headers =
            fields.take("headers").map(|node| http_action::headers(node, &mut self.notes)).unwrap_or_default();
        let fault = fields.take("fault").map(|node| http_action::fault(node, &mut self.notes));
        let cors = fields.take("corsPolicy").map(|node| http_action::cors(node, &mut self.notes));
        let (action, targets, extra) = self.action(&mut fields, &headers);
        fields.envoy("delegate", Reason::Delegate, &mut self.notes);
        fields.finish(&mut self.notes);
        let merged = |first: &HeaderEdits, then: &HeaderEdits| HeaderEdits {
            remove: first.remove.iter().chain(&then.remove).cloned().collect(),
            add: first.add.iter().chain(&then.add).cloned().collect(),
        };
        let route = |(matching, gateways, origin): (RequestMatch, Option<Vec<String>>, Origin)| GatedRoute {
            route: Route {
                rule: Some(rule),
                name: name.clone(),
                matching,
                fault: fault.clone(),
                action: action.clone(),
                request_headers: merged(&headers.request, &extra.request),
                response_headers: merged(&headers.response, &extra.response),
                cors: cors.clone(),
                origin,
            },
            gateways: self.gateways_of(gateways),
            targets: targets.clone(),
        };
        matches.into_iter().map(route).collect()
    }

    fn matches(&mut self, fields: &mut Fields<'_>, node: &Node) -> Vec<(RequestMatch, Option<Vec<String>>, Origin)> {
        let list = fields.take("match").map(|node| self.notes.list(node, "match")).unwrap_or_default();
        let mut matches = Vec::new();
        for item in list {
            let (matching, gateways) = http_match::read(item, &mut self.notes);
            matches.push((matching, gateways, self.document.at(item)));
        }
        if matches.is_empty() {
            matches.push((RequestMatch::default(), None, self.document.at(node)));
        }
        matches
    }

    /// `mesh`, or `NAMESPACE/NAME`.
    fn gateways_of(&self, own: Option<Vec<String>>) -> Vec<String> {
        let names = own.filter(|names| !names.is_empty()).unwrap_or_else(|| self.gateways.to_vec());
        let full = |name: &String| {
            let mut parts = name.splitn(2, '.');
            match (name.as_str(), name.contains('/'), parts.next(), parts.next()) {
                ("mesh", ..) | (_, true, ..) => name.clone(),
                // The old way to name one of another namespace.
                (_, _, Some(name), Some(rest)) => format!("{}/{name}", rest.split('.').next().unwrap_or(rest)),
                _ => format!("{}/{name}", self.document.namespace),
            }
        };
        names.iter().map(full).collect()
    }

    fn action(&mut self, fields: &mut Fields<'_>, headers: &Headers) -> (Action, Vec<Reference>, Headers) {
        let (route, redirect) = (fields.take("route"), fields.take("redirect"));
        let direct = fields.take("directResponse");
        let mut references = Vec::new();
        let (forward, extra) = self.forward(fields, route, headers, &mut references);
        if let Some(node) = redirect {
            return (Action::Redirect(http_action::redirect(node, &mut self.notes)), Vec::new(), Headers::default());
        }
        if let Some(node) = direct {
            let direct = http_action::direct_response(node, &mut self.notes);
            return (Action::Direct(direct), Vec::new(), Headers::default());
        }
        if forward.targets.is_empty() {
            if fields.take("delegate").is_none() {
                self.notes.missing(fields.node(), "route");
            }
            return (Action::Envoy, Vec::new(), Headers::default());
        }
        (Action::Forward(Box::new(forward)), references, extra)
    }

    /// Timeouts, retries and mirrors stand beside `route`.
    fn forward(
        &mut self,
        fields: &mut Fields<'_>,
        route: Option<&Node>,
        headers: &Headers,
        references: &mut Vec<Reference>,
    ) -> (Forward, Headers) {
        let mut forward = Forward::default();
        if let Some(node) = fields.take("rewrite") {
            (forward.path, forward.authority) = http_action::rewrite(node, &mut self.notes);
        }
        if let Some(node) = fields.take("timeout") {
            forward.timeout = self.notes.duration(node, "timeout");
            if forward.timeout.is_some_and(|timeout| !timeout.is_zero()) {
                self.notes.add(Reason::Timeout, node, "timeout");
            }
        }
        forward.retry = fields.take("retries").and_then(|node| http_action::retry(node, &mut self.notes));
        self.mirrors(fields, &mut forward, references);
        let extra = self.targets(route, &mut forward, references);
        if let Some(authority) = headers.authority.clone().or_else(|| extra.authority.clone()) {
            forward.authority = Some(crate::form::AuthorityRewrite::Literal(authority));
        }
        (forward, extra)
    }

    fn mirrors(&mut self, fields: &mut Fields<'_>, forward: &mut Forward, references: &mut Vec<Reference>) {
        fields.pass_over(&["mirrorPercent", "mirrorPercentage", "mirror_percent"]);
        for name in ["mirror", "mirrors"] {
            let Some(node) = fields.take(name) else { continue };
            self.notes.add(Reason::Mirror, node, name);
            let one = std::slice::from_ref(node);
            for node in if name == "mirror" { one } else { node.items() } {
                let destination = node.get("destination").unwrap_or(node);
                if let Some(reference) = self.destination(destination) {
                    let (mirror, reference) = http_action::mirror(reference, PerMillion::ALL);
                    forward.mirrors.push(mirror);
                    references.push(reference);
                }
            }
        }
    }

    /// The weighted destinations. The edits of a single one are the route's, as Istio does it.
    fn targets(&mut self, route: Option<&Node>, forward: &mut Forward, references: &mut Vec<Reference>) -> Headers {
        let items = route.map(|node| self.notes.list(node, "route")).unwrap_or_default();
        let mut only = Headers::default();
        for node in items {
            let mut fields = Fields::of(node, &mut self.notes, "route");
            let weight = fields.take("weight").and_then(|node| self.notes.integer::<u32>(node, "weight"));
            let edits =
                fields.take("headers").map(|node| http_action::headers(node, &mut self.notes)).unwrap_or_default();
            let destination = fields.take("destination");
            fields.finish(&mut self.notes);
            let Some(reference) = destination.and_then(|node| self.destination(node)) else {
                if destination.is_none() {
                    self.notes.missing(node, "destination");
                }
                continue;
            };
            let mut target = WeightedTarget {
                cluster: reference.cluster(),
                weight: weight.unwrap_or(0),
                request_headers: edits.request.clone(),
                response_headers: edits.response.clone(),
            };
            if items.len() == 1 {
                target = WeightedTarget { weight: 1, ..target };
                (target.request_headers, target.response_headers) = <_>::default();
                only = edits;
            } else if edits.authority.is_some() {
                self.notes.add(Reason::AuthorityDynamic, node, "an authority for one of several destinations");
            }
            references.push(reference);
            forward.targets.push(target);
        }
        if let (Some(node), 0) = (route, forward.targets.iter().map(|target| u64::from(target.weight)).sum::<u64>()) {
            self.notes.add(Reason::InvalidValue, node, "the weights add up to nothing");
        }
        only
    }

    fn destination(&mut self, node: &Node) -> Option<Reference> {
        let mut fields = Fields::of(node, &mut self.notes, "destination");
        let host = fields.take("host").and_then(|node| self.notes.text(node, "host"));
        let subset = fields.take("subset").and_then(|node| self.notes.text(node, "subset"));
        let mut port = None;
        if let Some(node) = fields.take("port") {
            let mut inner = Fields::of(node, &mut self.notes, "port");
            port = inner.take("number").and_then(|node| self.notes.integer(node, "port"));
            inner.finish(&mut self.notes);
        }
        fields.finish(&mut self.notes);
        let Some(host) = host else {
            self.notes.missing(node, "host");
            return None;
        };
        Some(Reference { host: full_host(&host, &self.document.namespace), port, subset })
    }
}
