//! Which virtual host an authority belongs to.

use crate::form::{HostPort, Listener, VirtualHost};

/// The authority after the listener's treatment of ports, as it is matched and forwarded.
pub(super) fn strip<'a>(authority: &'a str, listener: &Listener, port: u16) -> &'a str {
    match (listener.options.host_port, split_port(authority)) {
        (HostPort::StripAny, Some((host, _))) => host,
        (HostPort::StripMatching, Some((host, own))) if own.parse() == Ok(port) => host,
        _ => authority,
    }
}

/// Host and port; None if there is no port. Brackets of IPv6 stay.
pub(super) fn split_port(authority: &str) -> Option<(&str, &str)> {
    let at = authority.rfind(':')?;
    // `[::1]` ends with a bracket, `::1` is no authority with a port.
    if authority[at..].contains(']') || (!authority.starts_with('[') && authority[..at].contains(':')) {
        return None;
    }
    let port = &authority[at + 1..];
    port.bytes().all(|b| b.is_ascii_digit()).then_some((&authority[..at], port))
}

/// The virtual host: by name, by the longest `*.suffix`, by the longest `prefix.*`, else `*`.
pub(super) fn find<'a>(listener: &'a Listener, authority: &str) -> Option<&'a VirtualHost> {
    let mut host = authority.to_ascii_lowercase();
    if listener.options.host_port == HostPort::Ignore
        && let Some((name, _)) = split_port(&host)
    {
        host = name.to_owned();
    }
    let domains = || {
        let hosts = listener.virtual_hosts.iter();
        hosts.flat_map(|virtual_host| virtual_host.domains.iter().map(move |domain| (domain.as_str(), virtual_host)))
    };
    let exact = domains().find(|(domain, _)| *domain == host);
    let longest = |matches: &dyn Fn(&str) -> bool| {
        domains()
            .filter(|(domain, _)| *domain != "*" && domain.len() <= host.len() && matches(domain))
            .max_by_key(|(d, _)| d.len())
    };
    let suffix = || longest(&|domain| domain.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix)));
    let prefix = || longest(&|domain| domain.strip_suffix('*').is_some_and(|prefix| host.starts_with(prefix)));
    let any = || domains().find(|(domain, _)| *domain == "*");
    exact.or_else(suffix).or_else(prefix).or_else(any).map(|(_, virtual_host)| virtual_host)
}
