//! Where a request goes.

use super::tree::Directive;
use crate::address::Address;

/// The addresses that the argument of a `*_pass` directive can mean.
pub(super) fn addresses(target: &str, upstreams: &[&Directive]) -> Vec<Address> {
    let (default_port, rest) = match target.split_once("://") {
        Some((scheme, rest)) => (if scheme.ends_with('s') { 443 } else { 80 }, rest),
        None => (80, target),
    };
    if let Some(path) = rest.strip_prefix("unix:") {
        return vec![Address::unix(path.split(':').next().unwrap_or(path))];
    }
    // A variable right behind the host may be the path (it then begins with a slash) or more of the host.
    let mut authority = rest.split(['/', '?']).next().unwrap_or(rest);
    for path in ["$request_uri", "$uri", "$document_uri"] {
        authority = authority.strip_suffix(path).unwrap_or(authority);
    }
    let (host, port) = host_and_port(authority, default_port);
    if host.contains('$') || authority.contains('$') && port.is_none() {
        let literal = port.filter(|_| authority.rsplit(':').next().is_some_and(|p| p.parse::<u16>().is_ok()));
        return vec![literal.map_or(Address::Every, Address::Port)];
    }
    let Some(port) = port else { return vec![Address::Every] };
    match upstreams.iter().find(|u| u.arg(0) == authority) {
        Some(upstream) => servers(upstream),
        None => Address::of_host(host, port),
    }
}

/// The servers of an `upstream` block. Where code or an API chooses the server, every address is possible.
fn servers(upstream: &Directive) -> Vec<Address> {
    let mut found = Vec::new();
    for directive in upstream.children() {
        match directive.name.as_str() {
            "server" => found.extend(server(directive)),
            "state" => found.push(Address::Every),
            name if name.contains("_by_lua") => found.push(Address::Every),
            _ => {}
        }
    }
    found
}

fn server(directive: &Directive) -> Vec<Address> {
    if directive.args.iter().any(|a| a.text.starts_with("service=")) {
        return vec![Address::Every];
    }
    let target = directive.arg(0);
    if let Some(path) = target.strip_prefix("unix:") {
        return vec![Address::unix(path)];
    }
    // In an upstream block the default is 80, also for proxy_pass https.
    let (host, port) = host_and_port(target, 80);
    port.map_or_else(|| vec![Address::Every], |port| Address::of_host(host, port))
}

/// Splits `host`, `host:port`, `[v6]` and `[v6]:port`; no port, if it is not a number.
pub(super) fn host_and_port(authority: &str, default_port: u16) -> (&str, Option<u16>) {
    let colon = authority.rfind(':').filter(|&colon| authority.rfind(']').is_none_or(|bracket| bracket < colon));
    match colon {
        Some(colon) => (&authority[..colon], authority[colon + 1..].parse().ok()),
        None => (authority, Some(default_port)),
    }
}

/// Whether an error_page leads to a location that sends the body of the request upstream once more.
pub(super) fn error_page_proxies(error_page: &Directive, server: &[Directive]) -> bool {
    let target = error_page.args.last().map_or("", |w| w.text.split('?').next().unwrap_or(""));
    let locations: Vec<_> = server.iter().filter(|d| d.name == "location").collect();
    if target.starts_with('@') {
        return locations.iter().any(|l| l.arg(0) == target && proxies(l));
    }
    if !target.starts_with('/') {
        // A redirect to another site, or a variable.
        return target.starts_with('$') && locations.iter().any(|l| proxies(l));
    }
    if let Some(exact) = locations.iter().find(|l| l.arg(0) == "=" && l.arg(1) == target) {
        return proxies(exact);
    }
    let is_regex = |l: &&&Directive| matches!(l.arg(0), "~" | "~*");
    let prefix = |l: &Directive| l.args.last().map_or_else(String::new, |w| w.text.clone());
    let longest = locations
        .iter()
        .filter(|l| !is_regex(l) && l.arg(0) != "=" && target.starts_with(&prefix(l)))
        .max_by_key(|l| prefix(l).len());
    longest.is_some_and(|l| proxies(l)) || locations.iter().filter(is_regex).any(|l| proxies(l))
}

/// Whether a location sends bodies of requests on.
fn proxies(location: &Directive) -> bool {
    if location.children().iter().any(|d| d.name == "proxy_pass_request_body" && d.arg(0) == "off") {
        return false;
    }
    location.children().iter().any(|d| d.name.ends_with("_pass") || (d.block.is_some() && proxies(d)))
}
