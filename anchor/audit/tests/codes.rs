//! For every code: a configuration that has it, and for most one next to it that has not.

use std::collections::BTreeSet;

use underdeck_audit::{CODES, Options, ProxyKind, check_text, explain};

/// Code, what stands in a location, what is next to it without being a finding.
const NGINX_LOCATION: &[(&str, &str, &str)] = &[
    ("UDN002", "frobnicate on;", "more_set_headers 'A: b';"),
    ("UDN101", "sub_filter a b;", "sub_filter_once off;"),
    ("UDN101", "subs_filter a b;", "subs_filter_types text/css;"),
    ("UDN102", "ssi on;", "ssi off;"),
    ("UDN104", "xslt_stylesheet /a.xslt;", "xslt_param a b;"),
    ("UDN105", "image_filter resize 10 10;", "image_filter off;"),
    ("UDN106", "gunzip on;", "gunzip off;"),
    ("UDN107", "brotli on;", "brotli off; brotli_comp_level 4;"),
    ("UDN107", "zstd on;", "zstd_static on;"),
    ("UDN108", "body_filter_by_lua_block { ngx.arg[1] = '}' }", "lua_code_cache on;"),
    ("UDN109", "js_content main.handle;", "js_import main.js;"),
    ("UDN110", "perl hello::handler;", ""),
    ("UDN111", "modsecurity on;", "modsecurity off;"),
    ("UDN112", "proxy_force_ranges on;", "proxy_force_ranges off;"),
    ("UDN112", "slice 1m;", "slice 0;"),
    ("UDN113", "mirror /copy;", "mirror /copy; mirror_request_body off;"),
    ("UDN113", "mirror /copy;", "mirror off;"),
    ("UDN114", "proxy_set_header X-Body $request_body;", "proxy_set_header X-File $request_body_file;"),
    ("UDN114", "add_header X-Body \"${request_body}\";", ""),
    ("UDN116", "", "proxy_request_buffering off; proxy_http_version 1.1;"),
    ("UDN116", "proxy_request_buffering off;", "proxy_next_upstream off;"),
    ("UDN116", "", "proxy_pass_request_body off;"),
    ("UDN116", "", "proxy_set_body x;"),
    ("UDN117", "error_page 502 @again;", "error_page 502 @static;"),
    ("UDN117", "error_page 502 /again;", "error_page 502 /static.html;"),
    ("UDN122", "srcache_store PUT /cache;", ""),
    ("UDN122", "echo_read_request_body;", ""),
    ("UDN201", "gzip on;", "gzip off; gzip_static on;"),
    ("UDN204", "proxy_cache zone;", "proxy_cache off;"),
    ("UDN205", "proxy_store on;", "proxy_store off;"),
    ("UDN206", "", "proxy_max_temp_file_size 0;"),
    ("UDN206", "", "proxy_buffering off;"),
    ("UDN207", "client_body_in_file_only clean;", "client_body_in_file_only off;"),
    ("UDN207", "dav_methods PUT;", "dav_methods DELETE;"),
    ("UDN208", "proxy_next_upstream off;", ""),
];

const NGINX: &[(&str, &str)] = &[
    ("UDN001", "load_module modules/ngx_http_secret_module.so; events {}"),
    ("UDN002", "frobnicate on;"),
    ("UDN103", "http { charset_map a b { C0 D1; } server { location / { charset b; proxy_pass http://a; } } }"),
    ("UDN114", "http { map $request_body $x { default 1; } server { location / { proxy_pass http://a; } } }"),
    ("UDN114", "http { map $uri $x { default $request_body; } server { location / { proxy_pass http://a; } } }"),
    ("UDN115", "http { server { location / { fastcgi_pass 127.0.0.1:9000; } } }"),
    ("UDN115", "http { server { location / { proxy_http_version 2; proxy_pass http://a; } } }"),
    ("UDN118", "http { server { listen 80 http2; location / { proxy_pass http://a; } } }"),
    ("UDN118", "http { server { listen 80; http2 on; location / { proxy_pass http://a; } } }"),
    ("UDN119", "http { server { listen 443 quic; location / { proxy_pass http://a; } } }"),
    ("UDN120", "http { server { listen 80 proxy_protocol; location / { proxy_pass http://a; } } }"),
    ("UDN120", "stream { server { listen 1; proxy_pass a:1; proxy_protocol on; } }"),
    ("UDN121", "http { server { ssl_stapling on; } }"),
    ("UDN122", "http { match m { body ~ ok; } server { location / { health_check match=m; proxy_pass http://a; } } }"),
    ("UDN202", "http { server { listen 443 ssl; location / { proxy_pass http://a; } } }"),
    ("UDN202", "http { server { listen 443; ssl on; location / { proxy_pass http://a; } } }"),
    ("UDN203", "http { server { location / { proxy_pass https://a; } } }"),
    ("UDN203", "stream { server { listen 1; proxy_pass a:1; proxy_ssl on; } }"),
    ("UDN109", "stream { server { listen 1; proxy_pass a:1; js_filter a; } }"),
    ("UDN108", "http { upstream u { balancer_by_lua_block { x() } } }"),
    ("UDN301", "mail { server { listen 25; protocol smtp; } }"),
];

/// Code, lines of a frontend, lines of its backend.
const HAPROXY: &[(&str, &str, &str)] = &[
    ("UDH002", "frobnicate", ""),
    ("UDH002", "option frobnicate", ""),
    ("UDH002", "http-request frobnicate", ""),
    ("UDH001", "http-request lua.act", ""),
    ("UDH001", "http-request use-service lua.svc", ""),
    ("UDH003", "filter vendor-thing", ""),
    ("UDH101", "option http-buffer-request", ""),
    ("UDH101", "", "http-request wait-for-body time 1s"),
    ("UDH102", "http-request deny if { req.body_param(a) b }", ""),
    ("UDH102", "log-format %[req.body,base64]", ""),
    ("UDH102", "tcp-request content capture payload(0,10) len 10", ""),
    ("UDH103", "http-response wait-for-body time 1s", ""),
    ("UDH103", "", "http-response deny if { res.body -m sub x }"),
    ("UDH104", "compression algo gzip", ""),
    ("UDH105", "compression algo-req gzip", ""),
    ("UDH105", "compression direction both", ""),
    ("UDH106", "filter spoe engine e config /e.conf", ""),
    ("UDH106", "filter trace", ""),
    ("UDH107", "", "http-response cache-store c"),
    ("UDH108", "", "retry-on 503"),
    ("UDH109", "bind :81 proto h2", ""),
    ("UDH109", "", "server h 10.0.0.1:80 proto h2"),
    ("UDH110", "", "use-fcgi-app php"),
    ("UDH110", "", "server h 10.0.0.1:80 proto fcgi"),
    ("UDH111", "bind :81 accept-proxy", ""),
    ("UDH111", "", "server h 10.0.0.1:80 send-proxy"),
    ("UDH111", "", "server h 10.0.0.1:80 socks4 10.0.0.2:1080"),
    ("UDH112", "bind quic4@:443 ssl crt /c alpn h3", ""),
    ("UDH113", "", "http-check expect string ok"),
    ("UDH114", "bind :443 ssl crt /c ocsp-update on", ""),
    ("UDH115", "no option http-use-htx", ""),
    ("UDH201", "bind :443 ssl crt /c", ""),
    ("UDH116", "", "server s 10.0.0.1:443 ssl verify none"),
    ("UDH202", "", "server s 10.0.0.1:443 ssl verify none"),
    ("UDH301", "mode log", ""),
];

/// Lines that look alike and are harmless.
const HAPROXY_HARMLESS: &[(&str, &str)] = &[
    ("compression type text/html", "compression algo identity"),
    ("acl a path_beg /payload /req.body", "http-request set-path /req.body"),
    ("http-request cache-use c", "filter bwlim-out limit default-limit 1m default-period 1s"),
    ("no option http-buffer-request", "retry-on none"),
    ("bind :82", "retry-on conn-failure"),
    ("http-request set-var(txn.size) req.body_size", "http-check expect status 200"),
    ("http-request use-service prometheus-exporter if { path /metrics }", "default-server no-ssl no-send-proxy"),
];

const HAPROXY_GLOBAL: &[(&str, &str)] =
    &[("UDH001", "lua-load /a.lua"), ("UDH002", "module-load x"), ("UDH114", "tune.ssl.ocsp-update.mode on")];

/// Code, members of the listener's chain, of the route, of the manager, of the cluster. All in YAML's flow style.
const ENVOY: &[(&str, [&str; 4])] = &[
    ("UDE001", ["", "", "rds: { route_config_name: r }", ""]),
    ("UDE002", ["", "", "http_filters: [{ name: envoy.filters.http.secret }]", ""]),
    ("UDE002", ["transport_socket: { name: secret }", "", "", ""]),
    ("UDE101", ["", "", "http_filters: [{ name: envoy.filters.http.buffer }]", ""]),
    (
        "UDE101",
        [
            "",
            "",
            "http_filters: [{ name: envoy.filters.http.ext_proc, typed_config: { processing_mode: { request_body_mode: STREAMED } } }]",
            "",
        ],
    ),
    (
        "UDE102",
        [
            "",
            "",
            "http_filters: [{ name: l, typed_config: { '@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua } }]",
            "",
        ],
    ),
    ("UDE103", ["", "", "http_filters: [{ name: envoy.filters.http.compressor }]", ""]),
    (
        "UDE104",
        [
            "",
            "",
            "http_filters: [{ name: envoy.filters.http.ext_authz, typed_config: { with_request_body: { max_request_bytes: 10 } } }]",
            "",
        ],
    ),
    ("UDE105", ["", "", "http_filters: [{ name: envoy.filters.http.grpc_json_transcoder }]", ""]),
    ("UDE106", ["", "", "http_filters: [{ name: envoy.filters.http.cache }]", ""]),
    ("UDE107", ["", "", "http_filters: [{ name: envoy.filters.http.tap }]", ""]),
    ("UDE107", ["", "", "", "transport_socket: { name: envoy.transport_sockets.tap }"]),
    ("UDE108", ["", "request_mirror_policies: [{ cluster: c }]", "", ""]),
    ("UDE109", ["", "retry_policy: { retry_on: 5xx }", "", ""]),
    ("UDE109", ["", "hedge_policy: { hedge_on_per_try_timeout: true }", "", ""]),
    ("UDE110", ["", "internal_redirect_policy: {}", "", ""]),
    ("UDE111", ["transport_socket: { name: envoy.transport_sockets.tls }", "", "", ""]),
    ("UDE112", ["", "", "", "transport_socket: { name: envoy.transport_sockets.tls }"]),
    ("UDE113", ["", "", "codec_type: HTTP2", ""]),
    (
        "UDE114",
        [
            "",
            "",
            "",
            "typed_extension_protocol_options: { o: { explicit_http_config: { http2_protocol_options: {} } } }",
        ],
    ),
    ("UDE115", ["use_proxy_proto: true", "", "", ""]),
    ("UDE116", ["", "", "", "health_checks: [{ http_health_check: { path: /, receive: [{ text: 6f6b }] } }]"]),
    (
        "UDE117",
        [
            "",
            "",
            "http_filters: [{ name: envoy.filters.http.jwt_authn, typed_config: { providers: { p: { remote_jwks: { http_uri: { uri: http://k, cluster: c } } } } } }]",
            "",
        ],
    ),
    (
        "UDE118",
        [
            "filters: [{ name: envoy.filters.network.tcp_proxy, typed_config: { cluster: c, tunneling_config: { hostname: h } } }]",
            "",
            "",
            "",
        ],
    ),
    ("UDE301", ["filters: [{ name: envoy.filters.network.redis_proxy }]", "", "", ""]),
];

/// Members that are harmless.
const ENVOY_HARMLESS: &[[&str; 4]] = &[
    ["", "retry_policy: { num_retries: 3 }", "codec_type: AUTO", "http_protocol_options: {}"],
    ["transport_socket: { name: envoy.transport_sockets.raw_buffer }", "", "codec_type: HTTP1", ""],
    ["", "", "http_filters: [{ name: envoy.filters.http.buffer, disabled: true }]", ""],
    ["", "", "http_filters: [{ name: envoy.filters.http.ext_authz }, { name: envoy.filters.http.ext_proc }]", ""],
    ["", "", "", "typed_extension_protocol_options: { o: { explicit_http_config: { http_protocol_options: {} } } }"],
];

fn codes_of(kind: ProxyKind, text: &str) -> BTreeSet<&'static str> {
    let report = check_text(text, "test".as_ref(), &Options::of_kind(kind)).unwrap_or_else(|e| panic!("{e}\n{text}"));
    report.findings.iter().map(|f| f.code).collect()
}

fn location(inside: &str) -> String {
    format!(
        "events {{}}\nhttp {{ server {{ listen 80; location / {{ {inside} proxy_pass http://a; }}
         location @again {{ proxy_pass http://b; }} location @static {{ root /x; }}
         location /again {{ proxy_pass http://b; }} location = /static.html {{ root /x; }} }} }}"
    )
}

fn haproxy(front: &str, back: &str) -> String {
    let mode = if front.starts_with("mode") { "" } else { "mode http\n" };
    format!(
        "frontend f\n{mode}bind :80\n{front}\ndefault_backend b\nbackend b\nmode http\nserver a 10.0.0.9:80\n{back}\n"
    )
}

fn envoy([chain, route, manager, cluster]: &[&str; 4]) -> String {
    let member = |text: &str| if text.is_empty() { String::new() } else { format!(", {text}") };
    let routes = format!(
        "route_config: {{ virtual_hosts: [{{ name: v, routes: [{{ match: {{ prefix: / }}, route: {{ cluster: c{} }} }}] }}] }}",
        member(route)
    );
    let routes = if manager.starts_with("rds") { String::from("stat_prefix: x") } else { routes };
    let filters = format!(
        "filters: [{{ name: envoy.filters.network.http_connection_manager, typed_config: {{ {routes}{} }} }}]",
        member(manager)
    );
    let chain = if chain.starts_with("filters") { (*chain).to_owned() } else { format!("{filters}{}", member(chain)) };
    format!(
        "static_resources: {{ listeners: [{{ name: l, address: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}, \
         filter_chains: [{{ {chain} }}] }}], clusters: [{{ name: c{} }}] }}",
        member(cluster)
    )
}

#[test]
fn every_code_is_found_where_it_should_be_and_not_next_to_it() {
    let mut met = BTreeSet::new();
    let mut expect = |kind, code: &'static str, text: &str| {
        assert!(codes_of(kind, text).contains(code), "{code} is not found in:\n{text}");
        met.insert(code);
    };
    for (code, inside, _) in NGINX_LOCATION {
        expect(ProxyKind::Nginx, code, &location(inside));
    }
    for (code, text) in NGINX {
        expect(ProxyKind::Nginx, code, text);
    }
    for (code, front, back) in HAPROXY {
        expect(ProxyKind::Haproxy, code, &haproxy(front, back));
    }
    for (code, line) in HAPROXY_GLOBAL {
        expect(ProxyKind::Haproxy, code, &format!("global\n{line}\n"));
    }
    for (code, members) in ENVOY {
        expect(ProxyKind::Envoy, code, &envoy(members));
    }
    let all: BTreeSet<_> = CODES.iter().map(|c| c.id).collect();
    assert_eq!(met, all, "every code has a test");
}

#[test]
fn what_stands_next_to_it_is_harmless() {
    for (code, _, beside) in NGINX_LOCATION.iter().filter(|(_, _, beside)| !beside.is_empty()) {
        let report = check_text(&location(beside), "test".as_ref(), &Options::of_kind(ProxyKind::Nginx)).unwrap();
        let here = report.findings.iter().filter(|f| f.scope == "server *:80 location /");
        let found: BTreeSet<_> = here.map(|f| f.code).collect();
        assert!(!found.contains(code) && !found.contains("UDN002"), "{found:?} in {beside}");
    }
    for (front, back) in HAPROXY_HARMLESS {
        assert_eq!(codes_of(ProxyKind::Haproxy, &haproxy(front, back)), BTreeSet::new(), "{front} / {back}");
    }
    for members in ENVOY_HARMLESS {
        assert_eq!(codes_of(ProxyKind::Envoy, &envoy(members)), BTreeSet::new(), "{members:?}");
    }
}

#[test]
fn filters_of_responses_do_not_matter_where_nothing_is_proxied() {
    let text = "http { gzip on; ssi on; server { listen 443 ssl; location / { sub_filter a b; root /srv; } } }";
    assert_eq!(codes_of(ProxyKind::Nginx, text), BTreeSet::new());
}

#[test]
fn codes_are_unique_and_explained() {
    let ids: BTreeSet<_> = CODES.iter().map(|c| c.id).collect();
    assert_eq!(ids.len(), CODES.len());
    for code in CODES {
        let text = explain(code.id).unwrap();
        assert!(text.contains(code.message) && text.contains(code.advice), "{}", code.id);
    }
    assert_eq!(explain("UDN999"), None);
}

#[test]
fn the_documentation_lists_every_code() {
    let docs = include_str!("../../../docs/check.md");
    let listed: Vec<_> = docs.lines().filter_map(|l| l.strip_prefix("| `UD")).map(|l| &l[..4]).collect();
    let codes: Vec<_> = CODES.iter().map(|c| &c.id[2..]).collect();
    assert_eq!(listed, codes);
    for code in CODES {
        let outcome = code.outcome.words();
        let row = format!("| `{}` | {} | {outcome} |", code.id, code.title);
        assert!(docs.contains(&row), "docs/check.md has no row that begins with\n{row}");
    }
}
