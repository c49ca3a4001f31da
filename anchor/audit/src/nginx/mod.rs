//! nginx: from a file to a report.
//!
//! `lex` and `tree` read, `scope` finds the value in effect, `rules` judges one location, and this file walks from
//! the http block to each location.

mod lex;
mod listen;
mod rules;
mod scope;
mod table;
mod tree;
mod upstream;

use self::listen::Listeners;
use self::rules::{FOREIGN_HANDLERS, Http, hit};
use self::scope::Scope;
use self::tree::Directive;
use crate::Options;
use crate::address::Address;
use crate::error::AuditError;
use crate::findings::{Collector, Hit, Reach, RouteParts};
use crate::kind::ProxyKind;
use crate::report::Report;
use crate::sources::File;

/// Checks an nginx configuration, or the output of `nginx -T`.
pub(crate) fn audit(file: &File, options: &Options) -> Result<Report, AuditError> {
    let tree = tree::parse(file)?;
    let mut walk = Walk { collector: Collector::new(options) };
    if let Some(text) = &options.inline {
        let inline = File { path: "-g".into(), text: text.clone() };
        walk.main(&tree::parse(&inline)?.directives);
    }
    walk.main(&tree.directives);
    Ok(walk.collector.finish(ProxyKind::Nginx, tree.files))
}

struct Walk {
    collector: Collector,
}

/// What all locations of one server share.
struct Server<'a> {
    name: String,
    directives: &'a [Directive],
    listeners: Vec<Address>,
    listener_hits: Vec<Hit>,
    upstreams: &'a [&'a Directive],
    http: &'a Http<'a>,
}

impl Walk {
    fn main(&mut self, directives: &[Directive]) {
        for directive in directives {
            match directive.name.as_str() {
                "http" => self.http(directive),
                "stream" => self.stream(directive),
                "mail" => self.beside(hit("UDN301", directive), "mail"),
                "events" => directive.children().iter().for_each(|d| self.unless_known(d, "events")),
                "load_module" if !table::is_known_module(directive.arg(0)) => {
                    self.beside(hit("UDN001", directive), "the whole program");
                }
                _ => self.unless_known(directive, "the whole program"),
            }
        }
    }

    fn unless_known(&mut self, directive: &Directive, scope: &str) {
        if let Some(hit) = rules::by_name(directive) {
            self.beside(hit, scope);
        }
    }

    /// Something outside of all routes that is meant for the whole program.
    fn beside(&mut self, hit: Hit, scope: &str) {
        self.collector.beside_routes(&hit.reaching(Reach::Everything), scope, &[], &[]);
    }

    fn http(&mut self, block: &Directive) {
        let children = block.children();
        let named = |name: &'static str| children.iter().filter(move |d| d.name == name);
        let http = Http {
            has_charset_map: named("charset_map").next().is_some(),
            log_formats: named("log_format").collect(),
            matches: named("match").collect(),
        };
        let upstreams: Vec<_> = named("upstream").collect();
        for upstream in &upstreams {
            let scope = format!("upstream {}", upstream.arg(0));
            upstream.children().iter().for_each(|d| self.unless_known(d, &scope));
        }
        let listeners = Listeners::of_servers(named("server"));
        let around = Scope::root(children);
        for block in named("server") {
            let addresses = listen::of_server(block);
            let server = Server {
                name: server_name(block, &addresses),
                directives: block.children(),
                listener_hits: listeners.hits(block),
                listeners: addresses,
                upstreams: &upstreams,
                http: &http,
            };
            self.server(block, &around.inside(block.children()), &server);
        }
    }

    fn server(&mut self, block: &Directive, scope: &Scope<'_>, server: &Server<'_>) {
        self.ocsp(scope, server);
        let outside = rules::hits_in(scope, false, server.http);
        if !outside.is_empty() {
            self.collector.route(server.route(server.name.clone(), block, Vec::new()), outside);
        }
        self.nested(scope, server, &server.name, None);
    }

    /// Locations, and the blocks that nginx treats like one: `if` and `limit_except`. Those keep the handler of the
    /// location that they stand in.
    fn nested(&mut self, scope: &Scope<'_>, server: &Server<'_>, name: &str, handler: Option<&Directive>) {
        for kind in ["location", "if", "limit_except"] {
            for block in scope.own(kind) {
                let inner = scope.inside(block.children());
                let inherited = if kind == "location" { None } else { handler };
                let handler = handler_of(block).or(inherited);
                let name = format!("{name} {}", block.display());
                self.location(block, &inner, server, &name, handler);
                self.nested(&inner, server, &name, handler);
            }
        }
    }

    fn location(
        &mut self,
        block: &Directive,
        scope: &Scope<'_>,
        server: &Server<'_>,
        name: &str,
        handler: Option<&Directive>,
    ) {
        let proxied = handler.filter(|h| matches!(h.name.as_str(), "proxy_pass" | "tunnel_pass"));
        let mut hits = rules::hits_in(scope, proxied.is_some(), server.http);
        if handler.is_none() && hits.is_empty() {
            return;
        }
        let mut upstreams = Vec::new();
        if let Some(handler) = handler {
            upstreams = upstream::addresses(handler.arg(0), server.upstreams);
            hits.extend(server.listener_hits.iter().cloned());
        }
        if let Some(pass) = proxied.filter(|h| h.name == "proxy_pass") {
            hits.extend(rules::proxy_hits(scope, pass, server.directives));
        }
        hits.extend(handler.filter(|h| FOREIGN_HANDLERS.contains(&h.name.as_str())).map(|h| hit("UDN115", h)));
        self.collector.route(server.route(name.to_owned(), block, upstreams), hits);
    }

    /// nginx's own OCSP client reads answers from responders, on port 80 unless one is named.
    fn ocsp(&mut self, scope: &Scope<'_>, server: &Server<'_>) {
        let asks = [
            ("ssl_stapling", "ssl_stapling_responder", scope.get("ssl_stapling_file").is_some()),
            ("ssl_ocsp", "ssl_ocsp_responder", false),
        ];
        for (switch, responder, from_file) in asks {
            let Some(directive) = scope.get_unless_off(switch).filter(|_| !from_file) else { continue };
            let responder = scope.get(responder).map(|d| upstream::addresses(d.arg(0), &[]));
            let from = responder.unwrap_or_else(|| vec![Address::Port(80)]);
            self.collector.beside_routes(&hit("UDN121", directive), &server.name, &[], &from);
        }
    }

    /// A stream server forwards bytes as they are, which the engine may do as well; only what changes them matters.
    fn stream(&mut self, block: &Directive) {
        let children = block.children();
        let upstreams: Vec<_> = children.iter().filter(|d| d.name == "upstream").collect();
        let listeners = Listeners::of_servers(children.iter().filter(|d| d.name == "server"));
        let around = Scope::root(children);
        for server in children.iter().filter(|d| d.name == "server") {
            let scope = around.inside(server.children());
            let addresses = listen::of_server(server);
            let mut hits: Vec<_> = scope.every().into_iter().filter_map(rules::by_name).collect();
            hits.extend(listeners.hits(server));
            hits.extend(scope.get_unless_off("proxy_protocol").map(|d| hit("UDN120", d)));
            hits.extend(scope.get_unless_off("proxy_ssl").map(|d| hit("UDN203", d)));
            let pass = scope.get("proxy_pass");
            let upstreams = pass.map(|p| upstream::addresses(p.arg(0), &upstreams)).unwrap_or_default();
            let name = format!("stream server {}", join(&addresses));
            let parts = RouteParts { scope: name, at: server.at.clone(), listeners: addresses, upstreams };
            self.collector.route(parts, hits);
        }
    }
}

impl Server<'_> {
    fn route(&self, scope: String, block: &Directive, upstreams: Vec<Address>) -> RouteParts {
        RouteParts { scope, at: block.at.clone(), listeners: self.listeners.clone(), upstreams }
    }
}

fn handler_of(block: &Directive) -> Option<&Directive> {
    let is_handler = |d: &&Directive| {
        matches!(d.name.as_str(), "proxy_pass" | "tunnel_pass") || FOREIGN_HANDLERS.contains(&d.name.as_str())
    };
    block.children().iter().find(is_handler)
}

fn server_name(block: &Directive, addresses: &[Address]) -> String {
    let name = block.children().iter().find(|d| d.name == "server_name").map_or("", |d| d.arg(0));
    match name {
        "" | "_" => format!("server {}", join(addresses)),
        name => format!("server {name}"),
    }
}

fn join(addresses: &[Address]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
