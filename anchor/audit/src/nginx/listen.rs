//! The addresses that servers listen on.

use std::collections::HashMap;

use super::rules::hit;
use super::tree::Directive;
use super::upstream::host_and_port;
use crate::address::Address;
use crate::findings::Hit;

/// What is particular about one listening socket. It holds for all servers on the socket, whoever says it.
#[derive(Default, Clone)]
pub(super) struct Listener {
    pub(super) hits: Vec<Hit>,
    tls: bool,
    http2: Option<Hit>,
}

/// All listening sockets of an http or stream block.
#[derive(Default)]
pub(super) struct Listeners {
    /// QUIC and TCP sockets of one address are two.
    by_address: HashMap<(Address, bool), Listener>,
}

impl Listeners {
    pub(super) fn of_servers<'a>(servers: impl Iterator<Item = &'a Directive>) -> Self {
        let mut all = Self::default();
        for server in servers {
            let old_tls = server.children().iter().any(|d| d.name == "ssl" && d.arg(0) == "on");
            let http2 = server.children().iter().find(|d| d.name == "http2" && d.arg(0) == "on");
            for directive in server.children().iter().filter(|d| d.name == "listen") {
                for address in addresses(directive) {
                    all.by_address.entry((address, is_quic(directive))).or_default().add(directive, old_tls, http2);
                }
            }
        }
        all
    }

    /// What was found on a server's sockets.
    pub(super) fn hits(&self, server: &Directive) -> Vec<Hit> {
        let mut hits = Vec::new();
        let listens = server.children().iter().filter(|d| d.name == "listen");
        let sockets = listens.flat_map(|l| addresses(l).into_iter().map(|a| (a, is_quic(l))));
        for listener in sockets.filter_map(|socket| self.by_address.get(&socket)) {
            hits.extend(listener.hits.iter().cloned());
            hits.extend(listener.http2.iter().filter(|_| !listener.tls).cloned());
        }
        hits
    }
}

impl Listener {
    fn add(&mut self, listen: &Directive, old_tls: bool, http2: Option<&Directive>) {
        let has = |word: &str| listen.args.iter().skip(1).any(|a| a.text == word);
        if is_quic(listen) {
            self.tls = true;
            self.hits.push(hit("UDN119", listen));
        } else if has("ssl") || old_tls {
            self.tls = true;
            self.hits.push(hit("UDN202", listen));
        }
        if has("proxy_protocol") {
            self.hits.push(hit("UDN120", listen));
        }
        if has("http2") || http2.is_some() {
            self.http2.get_or_insert_with(|| hit("UDN118", http2.unwrap_or(listen)));
        }
    }
}

fn is_quic(listen: &Directive) -> bool {
    listen.args.iter().skip(1).any(|a| a.text == "quic")
}

/// The addresses of one server; without any `listen`, port 80, or 8000 for an ordinary user.
pub(super) fn of_server(server: &Directive) -> Vec<Address> {
    let listens: Vec<_> = server.children().iter().filter(|d| d.name == "listen").collect();
    if listens.is_empty() {
        return vec![Address::Port(80), Address::Port(8000)];
    }
    listens.into_iter().flat_map(addresses).collect()
}

fn addresses(listen: &Directive) -> Vec<Address> {
    let target = listen.arg(0);
    if let Some(path) = target.strip_prefix("unix:") {
        return vec![Address::unix(path)];
    }
    if let Ok(port) = target.parse() {
        return vec![Address::Port(port)];
    }
    let (host, ports) = match target.rsplit_once(':') {
        Some((host, ports)) if !ports.contains(']') => (host, ports),
        _ if target.chars().all(|c| c.is_ascii_digit() || c == '-') => ("*", target),
        _ => (target, "80"),
    };
    let of_port = |port| if host == "*" { vec![Address::Port(port)] } else { Address::of_host(host, port) };
    if let Some((first, last)) = ports.split_once('-') {
        return match (first.parse::<u16>(), last.parse::<u16>()) {
            (Ok(first), Ok(last)) => Address::of_ports(first, last, of_port),
            _ => vec![Address::Every],
        };
    }
    host_and_port(target, 80).1.or_else(|| ports.parse().ok()).map_or_else(|| vec![Address::Every], of_port)
}
