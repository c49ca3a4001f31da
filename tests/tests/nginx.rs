//! nginx: the matrix for every configuration that changes the path of the data.

use underdeck_lab::proxy::{Nginx, Spec};
use underdeck_lab::tools::Tool;
use underdeck_tests::cases;
use underdeck_tests::matrix::run;
use underdeck_tests::payload::{
    BOTH_WAYS, CACHED, COMPRESSED, ENCRYPTED, LARGER_THAN_BUFFERS, SPOOLED, UPLOADS_TO_FILES,
};

#[test]
fn default_buffers_whole_matrix() {
    run("nginx 1.22, default buffers", &Spec::Nginx(Nginx::default()), &cases::all(), UPLOADS_TO_FILES);
}

#[test]
fn large_buffers_whole_matrix() {
    run("nginx 1.22, 16x64k buffers", &Spec::Nginx(Nginx::large()), &cases::all(), UPLOADS_TO_FILES);
}

#[test]
fn huge_bodies() {
    // Nothing goes to files: what does is copied before long.
    let server = "proxy_max_temp_file_size 0;".to_owned();
    let spec = Spec::Nginx(Nginx { request_buffering: false, server, ..Nginx::large() });
    run("nginx 1.22, 64 MiB", &spec, &cases::huge(), BOTH_WAYS);
}

#[test]
fn huge_bodies_in_files() {
    // Smaller uploads are sent from memory: they show that the listener's uploads leave as they came.
    let spec = Spec::Nginx(Nginx { server: "client_body_buffer_size 1m;".to_owned(), ..Nginx::large() });
    let exchanges = [cases::uploads(&[200_000]), cases::huge()].concat();
    run("nginx 1.22, 64 MiB, temp files", &spec, &exchanges, LARGER_THAN_BUFFERS);
}

#[test]
fn newer_nginx() {
    let spec = Spec::Nginx(Nginx { tool: Tool::NginxStable, ..Nginx::large() });
    run(
        "nginx 1.28, 16x64k buffers",
        &spec,
        &[cases::selected(), cases::tunnels(), cases::slow_clients()].concat(),
        UPLOADS_TO_FILES,
    );
}

#[test]
fn newer_nginx_default_buffers() {
    let spec = Spec::Nginx(Nginx { tool: Tool::NginxStable, ..Nginx::default() });
    run("nginx 1.28, default buffers", &spec, &cases::selected(), UPLOADS_TO_FILES);
}

#[test]
fn unbuffered() {
    let spec = Spec::Nginx(Nginx { buffering: false, request_buffering: false, ..Nginx::default() });
    run("nginx, proxy_buffering off", &spec, &[cases::selected(), cases::slow_clients()].concat(), BOTH_WAYS);
}

#[test]
fn unbuffered_large() {
    let spec = Spec::Nginx(Nginx { buffering: false, request_buffering: false, ..Nginx::large() });
    run("nginx, proxy_buffering off, 64k", &spec, &cases::selected(), BOTH_WAYS);
}

#[test]
fn temp_files() {
    let spec = Spec::Nginx(Nginx { temp_files: true, ..Nginx::default() });
    run("nginx, temp files", &spec, &[cases::slow_clients(), cases::bodies(cases::FEW_SIZES)].concat(), SPOOLED);
}

#[test]
fn cache() {
    let spec = Spec::Nginx(Nginx { cache: true, ..Nginx::large() });
    run("nginx, proxy_cache", &spec, &cases::repeated(cases::selected()), CACHED);
}

#[test]
fn gzip() {
    let spec = Spec::Nginx(Nginx { gzip: true, ..Nginx::large() });
    let exchanges = [cases::bodies(cases::FEW_SIZES), cases::connections(cases::FEW_SIZES), cases::framings()].concat();
    run("nginx, gzip", &spec, &cases::with_field(exchanges, "Accept-Encoding", "gzip"), COMPRESSED);
}

#[test]
fn tls_to_the_client() {
    let spec = Spec::Nginx(Nginx { tls: true, ..Nginx::large() });
    run("nginx, HTTPS to the client", &spec, &[cases::selected(), cases::slow_clients()].concat(), ENCRYPTED);
}

#[test]
fn tls_to_the_client_newer_nginx() {
    let spec = Spec::Nginx(Nginx { tls: true, tool: Tool::NginxStable, ..Nginx::default() });
    run("nginx 1.28, HTTPS to the client", &spec, &cases::bodies(cases::FEW_SIZES), ENCRYPTED);
}

#[test]
fn http10_upstream_without_keepalive() {
    let spec = Spec::Nginx(Nginx { keepalive: false, upstream_version: "1.0", ..Nginx::large() });
    run("nginx, HTTP/1.0 to the backend", &spec, &cases::selected(), UPLOADS_TO_FILES);
}
