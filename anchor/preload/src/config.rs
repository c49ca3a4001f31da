//! Settings, read from the environment before the program's own code runs (nginx overwrites its environment later).

use core::net::IpAddr;
use core::sync::atomic::AtomicBool;
use std::ffi::CString;
use std::sync::OnceLock;

use underdeck_stats::Role;

/// What the environment says. Sizes in bytes.
pub(crate) struct Config {
    /// `UNDERDECK_PROTOCOL`: a shipped program's name, or the path of an object file.
    pub(crate) protocol: String,
    /// `UNDERDECK_MIN_BODY`: shorter spans of payload are copied.
    pub(crate) min_body: u64,
    /// `UNDERDECK_MAX_ANCHORED`: most that one message may hold in the kernel.
    pub(crate) max_anchored: u64,
    /// `UNDERDECK_MAX_ANCHORED_TOTAL`: most that the process may hold.
    pub(crate) max_anchored_total: u64,
    /// `UNDERDECK_READ_AHEAD`: most that one splice takes from a socket when a call asks for less; 0: what it asks for.
    pub(crate) read_ahead: u64,
    /// `UNDERDECK_GRACE_SECONDS`: how long payload is kept whose message was received to its end (a request: and answered) and
    /// that no connection has begun to send.
    pub(crate) grace_s: u64,
    /// `UNDERDECK_LEAVE_OUT`.
    pub(crate) leave_out: Vec<Rule>,
    /// Somebody has looked at the application's configuration, even if there was nothing to leave out.
    pub(crate) is_checked: bool,
    /// Files whose presence switches the engine off while it runs.
    pub(crate) off_files: Vec<CString>,
    /// The process did something that the engine cannot follow.
    pub(crate) retired: AtomicBool,
}

/// Connections whose payload is not to be anchored on receive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) role: Role,
    pub(crate) peer: Peer,
}

/// Which address a rule means: the local one of accepted connections, the peer's of connected ones.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Any,
    Inet { address: Option<IpAddr>, port: Option<u16> },
    Unix(Vec<u8>),
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Payload shorter than this may cost more to anchor than to copy (`underdeck bench anchor`: with 64 KiB every proxy's median
/// was below plain, with 128 KiB none for certain).
const MIN_BODY: u64 = 128 << 10;
/// HAProxy asks for 16 KiB at a time, nginx for 8: several of these, and half of a pipe as it is made.
const READ_AHEAD: u64 = 128 << 10;
/// Below this a placeholder would not fit.
const MIN_BODY_LEAST: u64 = 64;

/// The settings; read at the first call.
pub(crate) fn get() -> &'static Config {
    CONFIG.get_or_init(|| Config::from(|name| std::env::var(name).ok()))
}

/// Whether the environment switches the engine off.
pub(crate) fn is_off() -> bool {
    std::env::var("UNDERDECK").is_ok_and(|value| says_off(&value))
}

/// `underdeck run` understands the same words.
fn says_off(value: &str) -> bool {
    ["off", "0", "no", "false"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

impl Config {
    fn from(variable: impl Fn(&str) -> Option<String>) -> Self {
        let size = |name: &str, default: u64| match variable(name) {
            None => default,
            Some(text) => parse_size(&text).unwrap_or_else(|| {
                eprintln!("underdeck: {name}={text} is not a size such as 65536, 64k or 3m; using {default}");
                default
            }),
        };
        let mut off_files = vec![c"/run/underdeck/off".to_owned()];
        off_files.extend(variable("XDG_RUNTIME_DIR").and_then(|dir| CString::new(format!("{dir}/underdeck/off")).ok()));
        Self {
            protocol: variable("UNDERDECK_PROTOCOL").unwrap_or_else(|| "http1".into()),
            min_body: size("UNDERDECK_MIN_BODY", MIN_BODY).max(MIN_BODY_LEAST),
            max_anchored: size("UNDERDECK_MAX_ANCHORED", 3 << 20),
            max_anchored_total: size("UNDERDECK_MAX_ANCHORED_TOTAL", 1 << 30),
            read_ahead: size("UNDERDECK_READ_AHEAD", READ_AHEAD),
            grace_s: size("UNDERDECK_GRACE_SECONDS", 5),
            leave_out: variable("UNDERDECK_LEAVE_OUT").map(|text| parse_rules(&text)).unwrap_or_default(),
            is_checked: variable("UNDERDECK_LEAVE_OUT").is_some(),
            off_files,
            retired: AtomicBool::new(false),
        }
    }
}

/// A number of bytes with an optional suffix k, m or g (powers of 1024).
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, shift) = match text.bytes().last()?.to_ascii_lowercase() {
        b'k' => (&text[..text.len() - 1], 10),
        b'm' => (&text[..text.len() - 1], 20),
        b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// `rx-server:ADDRESS:PORT` and `rx-client:ADDRESS:PORT`, separated by commas; `*` for any. A rule that cannot be read
/// leaves everything out: it was meant to make something safe.
fn parse_rules(text: &str) -> Vec<Rule> {
    let rules = text.split(',').map(str::trim).filter(|rule| !rule.is_empty());
    rules
        .flat_map(|rule| {
            parse_rule(rule).map_or_else(
                || {
                    eprintln!("underdeck: UNDERDECK_LEAVE_OUT: cannot read `{rule}`; nothing is anchored");
                    Role::ALL.map(|role| Rule { role, peer: Peer::Any }).into()
                },
                |rule| vec![rule],
            )
        })
        .collect()
}

fn parse_rule(rule: &str) -> Option<Rule> {
    let (role, peer) = rule.split_once(':')?;
    let role = match role {
        "rx-server" => Role::Accepted,
        "rx-client" => Role::Connected,
        _ => return None,
    };
    if peer == "*" {
        return Some(Rule { role, peer: Peer::Any });
    }
    if let Some(path) = peer.strip_prefix("unix:") {
        return Some(Rule { role, peer: Peer::Unix(path.as_bytes().into()) });
    }
    let (address, port) = peer.rsplit_once(':')?;
    let address = match address.trim_start_matches('[').trim_end_matches(']') {
        "*" => None,
        address => Some(address.parse::<IpAddr>().ok()?),
    };
    let port = match port {
        "*" => None,
        port => Some(port.parse().ok()?),
    };
    Some(Rule { role, peer: Peer::Inet { address, port } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(parse_size("65536"), Some(65_536));
        assert_eq!(parse_size("64k"), Some(65_536));
        assert_eq!(parse_size(" 3M"), Some(3 << 20));
        assert_eq!(parse_size("1g"), Some(1 << 30));
        for wrong in ["", "k", "-1", "1.5m", "99999999999999999999", "99999999999g", "12q"] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn off_has_several_words() {
        for off in ["off", "OFF", "Off", "0", "no", "False"] {
            assert!(says_off(off), "{off}");
        }
        for on in ["", "on", "1", "yes", "offline"] {
            assert!(!says_off(on), "{on}");
        }
    }

    #[test]
    fn rules_name_a_role_and_an_address() {
        let inet = |address: Option<&str>, port| Peer::Inet { address: address.and_then(|a| a.parse().ok()), port };
        let rules = parse_rules(
            "rx-server:*:8443, rx-client:10.0.0.5:8080,rx-client:[::1]:*,rx-client:*,rx-client:unix:/run/a",
        );
        let expected = [
            (Role::Accepted, inet(None, Some(8443))),
            (Role::Connected, inet(Some("10.0.0.5"), Some(8080))),
            (Role::Connected, inet(Some("::1"), None)),
            (Role::Connected, Peer::Any),
            (Role::Connected, Peer::Unix(b"/run/a".to_vec())),
        ];
        assert_eq!(rules, expected.map(|(role, peer)| Rule { role, peer }));
    }

    #[test]
    fn a_rule_that_cannot_be_read_leaves_everything_out() {
        for wrong in ["rx-serv:*", "rx-client:host:80", "rx-client:1.2.3.4:http", "nonsense"] {
            let rules = parse_rules(wrong);
            assert_eq!(rules, Role::ALL.map(|role| Rule { role, peer: Peer::Any }), "{wrong}");
        }
    }
}
