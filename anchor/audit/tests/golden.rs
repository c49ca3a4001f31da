//! Whole configurations and the reports about them. The fixtures are checked by the proxies themselves in `real.rs`.

use std::path::Path;

use underdeck_audit::{check, text};

/// The report about a fixture, with names of files relative to the fixtures.
fn report(fixture: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let kind = fixture.split('/').next().and_then(|kind| kind.parse().ok());
    let report = check(&directory.join(fixture), kind).unwrap();
    text(&report, false).replace(&format!("{}/", directory.display()), "")
}

macro_rules! golden {
    ($($name:ident $fixture:literal;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(report($fixture));
        })*
    };
}

golden! {
    nginx_plain "nginx/plain.conf";
    nginx_uploads "nginx/uploads.conf";
    nginx_inherit "nginx/inherit.conf";
    nginx_rewriting "nginx/rewriting.conf";
    nginx_files "nginx/files.conf";
    nginx_foreign "nginx/foreign.conf";
    nginx_includes "nginx/includes.conf";
    nginx_stream "nginx/stream.conf";
    nginx_tls "nginx/tls.conf";
    nginx_dump "nginx/dump.conf";
    haproxy_plain "haproxy/plain.cfg";
    haproxy_bodies "haproxy/bodies.cfg";
    haproxy_endpoints "haproxy/endpoints.cfg";
    haproxy_caches "haproxy/caches.cfg";
    haproxy_tcp "haproxy/tcp.cfg";
    haproxy_conditions "haproxy/conditions.cfg";
    envoy_plain "envoy/plain.yaml";
    envoy_filters "envoy/filters.yaml";
    envoy_tls "envoy/tls.json";
    envoy_dynamic "envoy/dynamic.yaml";
}
