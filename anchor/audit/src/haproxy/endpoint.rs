//! `bind` and `server` lines.

use super::lex::Line;
use super::rules::hit;
use crate::address::Address;
use crate::findings::Hit;

/// The addresses of a `bind` line, and what its parameters do.
pub(super) fn bind(line: &Line) -> (Vec<Address>, Vec<Hit>) {
    let targets = line.word(1);
    let addresses = targets.split(',').flat_map(addresses).collect();
    let mut hits = Vec::new();
    let quic = targets.split(',').any(|t| t.starts_with("quic"));
    let tls = line.has("ssl");
    if quic {
        hits.push(hit("UDH112", line));
    } else if tls {
        hits.push(hit("UDH201", line));
    } else if line.value_of("proto") == Some("h2") {
        hits.push(hit("UDH109", line));
    }
    if line.has("accept-proxy") || line.has("accept-netscaler-cip") {
        hits.push(hit("UDH111", line));
    }
    if targets.split(',').any(|t| t.starts_with("rhttp")) {
        hits.push(hit("UDH109", line));
    }
    (addresses, hits)
}

/// Whether a `bind` or `server` line asks for OCSP updates.
pub(super) fn updates_ocsp(line: &Line) -> bool {
    line.value_of("ocsp-update") == Some("on")
}

/// The addresses of a `server` or `server-template` line, and what its parameters do, with those of `default-server`.
pub(super) fn server(line: &Line, defaults: &[&Line]) -> (Vec<Address>, Vec<Hit>) {
    let target = if line.word(0) == "server-template" { line.word(3) } else { line.word(2) };
    let chain = || defaults.iter().copied().chain([line]);
    // The last of `ssl` and `no-ssl` counts; a conditional `no-ssl` does not.
    let on = |word: &str| {
        let no = format!("no-{word}");
        chain().fold(false, |on, l| if l.has(word) { true } else { on && (l.conditional || !l.has(&no)) })
    };
    let last = |name: &str| chain().filter_map(|l| l.value_of(name)).next_back();
    let mut hits = Vec::new();
    let tls = on("ssl");
    if tls {
        hits.extend([hit("UDH116", line), hit("UDH202", line)]);
    } else if last("proto") == Some("h2") || target.starts_with("rhttp") || last("ws") == Some("h2") {
        hits.push(hit("UDH109", line));
    }
    if last("proto") == Some("fcgi") {
        hits.push(hit("UDH110", line));
    }
    if ["send-proxy", "send-proxy-v2", "send-proxy-v2-ssl", "send-proxy-v2-ssl-cn"].into_iter().any(on) {
        hits.push(hit("UDH111", line));
    }
    let mut upstreams = addresses(target);
    if let Some(proxy) = last("socks4") {
        // The connection goes to the SOCKS proxy, and begins with its protocol.
        hits.push(hit("UDH111", line));
        upstreams.extend(addresses(proxy));
    }
    (upstreams, hits)
}

/// What one address of the configuration can mean.
fn addresses(target: &str) -> Vec<Address> {
    if target.starts_with('/') {
        return vec![Address::unix(target)];
    }
    if let Some((family, rest)) = target.split_once('@') {
        return match family {
            "unix" if rest.starts_with('/') => vec![Address::unix(rest)],
            _ if family.starts_with("ipv4") || family.starts_with("ipv6") => ip(rest),
            _ if ["tcp", "quic", "mptcp"].iter().any(|f| family.starts_with(f)) => ip(rest),
            _ => vec![Address::Every],
        };
    }
    ip(target)
}

/// `host:port`, `:port`, `*:port`, `host:first-last`; no port, an offset or a variable may be any port.
fn ip(target: &str) -> Vec<Address> {
    let Some((host, ports)) = target.rsplit_once(':') else { return vec![Address::Every] };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let of_port = |port: u16| match host {
        "" | "*" => vec![Address::Port(port)],
        host if host.contains('$') => vec![Address::Port(port)],
        host => Address::of_host(host, port),
    };
    let range = ports.split_once('-').and_then(|(a, b)| Some((a.parse::<u16>().ok()?, b.parse::<u16>().ok()?)));
    match (ports.parse::<u16>(), range) {
        (Ok(0), _) => vec![Address::Every],
        (Ok(port), _) if !ports.starts_with('+') => of_port(port),
        (_, Some((first, last))) => Address::of_ports(first, last, of_port),
        _ => vec![Address::Every],
    }
}
