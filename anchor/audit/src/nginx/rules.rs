//! Which directives touch payload, and when.

use super::scope::Scope;
use super::tree::Directive;
use super::{table, upstream};
use crate::findings::{Hit, Reach};

/// When a directive's presence is a finding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    /// Wherever it stands and is not `off` or `0`.
    Always,
    /// Only where responses of an HTTP/1 upstream server pass.
    Proxied,
}

/// Directives that switch something on that touches payload; `off` and `0` switch it off.
const SWITCHES: &[(&str, &str, On)] = &[
    ("sub_filter", "UDN101", On::Proxied),
    ("subs_filter", "UDN101", On::Proxied),
    ("replace_filter", "UDN101", On::Proxied),
    ("ssi", "UDN102", On::Proxied),
    ("xslt_stylesheet", "UDN104", On::Proxied),
    ("image_filter", "UDN105", On::Proxied),
    ("gunzip", "UDN106", On::Proxied),
    ("brotli", "UDN107", On::Proxied),
    ("zstd", "UDN107", On::Proxied),
    ("modsecurity", "UDN111", On::Always),
    ("ModSecurityEnabled", "UDN111", On::Always),
    ("SecRulesEnabled", "UDN111", On::Always),
    ("app_protect_enable", "UDN111", On::Always),
    ("proxy_force_ranges", "UDN112", On::Proxied),
    ("slice", "UDN112", On::Proxied),
    ("srcache_fetch", "UDN122", On::Always),
    ("srcache_store", "UDN122", On::Always),
    ("auth_jwt_key_request", "UDN122", On::Always),
    ("auth_oidc", "UDN122", On::Always),
    ("pagespeed", "UDN122", On::Always),
    ("gzip", "UDN201", On::Proxied),
    ("proxy_cache", "UDN204", On::Proxied),
    ("proxy_store", "UDN205", On::Proxied),
    ("client_body_in_file_only", "UDN207", On::Always),
];

/// Handlers that pass bodies on in another protocol than HTTP/1.
pub(super) const FOREIGN_HANDLERS: &[&str] =
    &["fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass", "memc_pass"];

/// Modules that handle bodies by themselves, by the beginning of their directives.
const BODY_MODULES: &[&str] = &[
    "echo",
    "srcache_",
    "memc_",
    "nchan_",
    "push_",
    "upload_pass",
    "upload_store",
    "rtmp",
    "redis2_",
    "BasicRule",
    "CheckRule",
    "app_protect_",
    "pagespeed",
    "ModSecurity",
    "SecRules",
    "DeniedUrl",
    "LearningMode",
];

/// Whether a rule looks at the directive, by whatever means.
pub(super) fn is_looked_at(name: &str) -> bool {
    SWITCHES.iter().any(|(switch, ..)| *switch == name)
        || FOREIGN_HANDLERS.contains(&name)
        || code_rule(name).is_some()
        || BODY_MODULES.iter().any(|module| name.starts_with(module))
}

/// Everything found in one location. `proxied`: an HTTP/1 upstream's responses pass it.
pub(super) fn hits_in(scope: &Scope<'_>, proxied: bool, http: &Http<'_>) -> Vec<Hit> {
    let mut hits = Vec::new();
    for &(name, code, on) in SWITCHES {
        if on == On::Proxied && !proxied {
            continue;
        }
        let directive = scope.get(name).filter(|d| !matches!(d.arg(0), "off" | "0"));
        hits.extend(directive.map(|d| hit(code, d)));
    }
    if proxied && http.has_charset_map {
        hits.extend(scope.get_unless_off("charset").map(|d| hit("UDN103", d)));
    }
    let uploads = scope.get_unless_off("dav_methods").filter(|d| d.args.iter().any(|a| a.text == "PUT"));
    hits.extend(uploads.map(|d| hit("UDN207", d)));
    let mirrors = scope.get_unless_off("mirror");
    let mirrors_bodies = scope.get("mirror_request_body").is_none_or(|d| d.arg(0) != "off");
    hits.extend(mirrors.filter(|_| mirrors_bodies).map(|d| hit("UDN113", d)));
    let checks = scope.all("health_check").into_iter().filter(|check| http.reads_bodies(check));
    hits.extend(checks.map(|d| hit("UDN122", d)));
    hits.extend(request_body_in_log(scope, http));
    for directive in scope.every() {
        hits.extend(by_name(directive));
    }
    hits
}

/// What a directive means wherever it stands: unknown ones, code, and those that read `$request_body`.
pub(super) fn by_name(directive: &Directive) -> Option<Hit> {
    let name = directive.name.as_str();
    if let Some(code) = code_rule(name) {
        return Some(hit(code, directive).reaching(Reach::AnyUpstream));
    }
    if BODY_MODULES.iter().any(|module| name.starts_with(module)) && directive.arg(0) != "off" {
        return Some(hit("UDN122", directive));
    }
    if !table::is_known(name) {
        return Some(hit("UDN002", directive));
    }
    (name != "log_format" && reads_request_body(directive)).then(|| hit("UDN114", directive))
}

/// Handlers that run code of the user.
fn code_rule(name: &str) -> Option<&'static str> {
    const HARMLESS_LUA: &[&str] = &["init_by_lua", "init_by_lua_block", "init_by_lua_file"];
    const NJS: &[&str] = &[
        "js_access",
        "js_body_filter",
        "js_content",
        "js_filter",
        "js_header_filter",
        "js_periodic",
        "js_preread",
        "js_set",
    ];
    let lua = ["_by_lua", "_by_lua_block", "_by_lua_file"].iter().any(|end| name.ends_with(end));
    if (lua && !HARMLESS_LUA.contains(&name)) || name == "lua_need_request_body" {
        Some("UDN108")
    } else if NJS.contains(&name) {
        Some("UDN109")
    } else {
        matches!(name, "perl" | "perl_set").then_some("UDN110")
    }
}

fn request_body_in_log(scope: &Scope<'_>, http: &Http<'_>) -> Vec<Hit> {
    let logs = scope.all("access_log");
    let format_of = |log: &Directive| if log.arg(1).is_empty() { "combined".to_owned() } else { log.arg(1).to_owned() };
    let reads = |format: &Directive| logs.iter().any(|log| log.arg(0) != "off" && format_of(log) == format.arg(0));
    http.log_formats.iter().copied().filter(|f| reads_request_body(f) && reads(f)).map(|f| hit("UDN114", f)).collect()
}

/// Whether an argument, or for a map one of its values, has the variable `$request_body`.
fn reads_request_body(directive: &Directive) -> bool {
    let here = directive.args.iter().any(|arg| {
        arg.text.contains("${request_body}")
            || arg
                .text
                .split("$request_body")
                .skip(1)
                .any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    });
    here || (table::is_data_block(&directive.name) && directive.children().iter().any(reads_request_body))
}

/// What proxy_pass does with bodies of requests, and with TLS and slow clients.
pub(super) fn proxy_hits(scope: &Scope<'_>, pass: &Directive, server: &[Directive]) -> Vec<Hit> {
    let mut hits = Vec::new();
    if pass.arg(0).starts_with("https:") {
        hits.push(hit("UDN203", pass));
    }
    if scope.get("proxy_http_version").is_some_and(|d| d.arg(0).starts_with(['2', '3'])) {
        hits.push(hit("UDN115", pass));
    }
    let is_off = |name| scope.get(name).is_some_and(|d| d.arg(0) == "off");
    let no_files = scope.get("proxy_max_temp_file_size").is_some_and(|d| d.arg(0) == "0");
    if !is_off("proxy_buffering") && !no_files {
        hits.push(hit("UDN206", pass));
    }
    if is_off("proxy_pass_request_body") || scope.get("proxy_set_body").is_some() {
        return hits;
    }
    // Without HTTP/1.1 to the upstream server, nginx buffers chunked requests whatever the switch says.
    let http11 = scope.get("proxy_http_version").is_some_and(|d| d.arg(0) == "1.1");
    let buffered = !(is_off("proxy_request_buffering") && http11);
    let tried_once = scope.get("proxy_next_upstream").is_some_and(|d| d.args.iter().any(|a| a.text == "off"));
    if buffered && !tried_once {
        hits.push(hit("UDN116", pass));
    } else if !is_off("proxy_request_buffering") {
        hits.push(hit("UDN208", pass));
    }
    let again = scope.all("error_page").into_iter().find(|e| upstream::error_page_proxies(e, server));
    hits.extend(again.map(|e| hit("UDN117", e)));
    hits
}

/// What all locations of the http block share.
pub(super) struct Http<'a> {
    pub(super) has_charset_map: bool,
    pub(super) log_formats: Vec<&'a Directive>,
    /// The `match` blocks of health checks.
    pub(super) matches: Vec<&'a Directive>,
}

impl Http<'_> {
    /// Whether a health check looks for text in bodies.
    fn reads_bodies(&self, health_check: &Directive) -> bool {
        let named = |m: &&&Directive| health_check.args.iter().any(|a| a.text.strip_prefix("match=") == Some(m.arg(0)));
        self.matches.iter().filter(named).any(|m| m.children().iter().any(|d| d.name == "body"))
    }
}

pub(super) fn hit(code: &'static str, directive: &Directive) -> Hit {
    Hit::new(code, &directive.at, directive.display())
}
