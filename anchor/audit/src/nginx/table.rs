//! What is known of directives and modules.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Directives that leave bodies alone.
static HARMLESS: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let lines = include_str!("../../tables/nginx.txt").lines().filter(|l| !l.starts_with('#'));
    lines.flat_map(str::split_whitespace).collect()
});

/// Directives whose meaning depends on their arguments or place: the rules look at them.
pub(super) const LOOKED_AT: &[&str] = &[
    "auth_jwt_key_request",
    "auth_oidc",
    "charset",
    "client_body_in_file_only",
    "dav_methods",
    "listen",
    "load_module",
    "lua_need_request_body",
    "mirror",
    "perl",
    "perl_set",
    "proxy_pass",
    "slice",
    "ssl_ocsp",
    "ssl_stapling",
    "tunnel_pass",
    "xslt_stylesheet",
];

/// Dynamic modules whose directives the audit knows, by the name of their file without `.so`.
const MODULES: &[&str] = &[
    "ndk_http_module",
    "ngx_http_auth_jwt_module",
    "ngx_http_auth_pam_module",
    "ngx_http_auth_spnego_module",
    "ngx_http_brotli_filter_module",
    "ngx_http_brotli_static_module",
    "ngx_http_cache_purge_module",
    "ngx_http_dav_ext_module",
    "ngx_http_dav_module",
    "ngx_http_echo_module",
    "ngx_http_fancyindex_module",
    "ngx_http_geoip2_module",
    "ngx_http_geoip_module",
    "ngx_http_headers_more_filter_module",
    "ngx_http_image_filter_module",
    "ngx_http_js_module",
    "ngx_http_keyval_module",
    "ngx_http_lua_module",
    "ngx_http_memc_module",
    "ngx_http_modsecurity_module",
    "ngx_http_naxsi_module",
    "ngx_http_perl_module",
    "ngx_http_set_misc_module",
    "ngx_http_srcache_filter_module",
    "ngx_http_subs_filter_module",
    "ngx_http_sub_filter_module",
    "ngx_http_uploadprogress_module",
    "ngx_http_upstream_fair_module",
    "ngx_http_vhost_traffic_status_module",
    "ngx_http_xslt_filter_module",
    "ngx_http_zstd_filter_module",
    "ngx_http_zstd_static_module",
    "ngx_mail_module",
    "ngx_nchan_module",
    "ngx_otel_module",
    "ngx_http_acme_module",
    "ngx_rtmp_module",
    "ngx_stream_geoip2_module",
    "ngx_stream_geoip_module",
    "ngx_stream_js_module",
    "ngx_stream_keyval_module",
    "ngx_stream_module",
];

/// Blocks whose contents are data, not directives.
const DATA_BLOCKS: &[&str] = &[
    "charset_map",
    "geo",
    "geoip2",
    "map",
    "match",
    "num_map",
    "oidc_provider",
    "otel_exporter",
    "split_clients",
    "types",
];

pub(super) fn is_known(name: &str) -> bool {
    HARMLESS.contains(name)
        || LOOKED_AT.contains(&name)
        || DATA_BLOCKS.contains(&name)
        || super::rules::is_looked_at(name)
}

pub(super) fn is_data_block(name: &str) -> bool {
    DATA_BLOCKS.contains(&name)
}

/// Whether the file of a dynamic module is of one that the audit knows (`ngx_http_geoip_module.so`,
/// `ngx_http_geoip_module-debug.so`).
pub(super) fn is_known_module(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = file.strip_suffix(".so").unwrap_or(file);
    MODULES.contains(&name.strip_suffix("-debug").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_directive_is_both_harmless_and_looked_at() {
        for name in HARMLESS.iter() {
            assert!(!LOOKED_AT.contains(name) && !super::super::rules::is_looked_at(name), "{name} stands in both");
        }
    }

    #[test]
    fn the_table_is_read() {
        assert!(HARMLESS.len() > 800);
        assert!(is_known("proxy_buffering") && is_known("quic_gso") && is_known("more_set_headers"));
        assert!(!is_known("proxy_bufferring"));
    }
}
