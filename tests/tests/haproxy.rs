//! HAProxy: the matrix, with and without its own splicing, one and two threads. With `option splice-auto` alone it splices
//! only now and then.

use underdeck_lab::proxy::{Haproxy, Spec};
use underdeck_tests::cases;
use underdeck_tests::matrix::run;
use underdeck_tests::payload::{BESIDE_OWN_SPLICING, BOTH_WAYS, RETIRED};

#[test]
fn whole_matrix() {
    run("haproxy", &Spec::Haproxy(Haproxy::default()), &cases::all(), BOTH_WAYS);
}

#[test]
fn huge_bodies() {
    run("haproxy, 64 MiB", &Spec::Haproxy(Haproxy::default()), &cases::huge(), BOTH_WAYS);
}

#[test]
fn two_threads() {
    let spec = Spec::Haproxy(Haproxy { threads: 2, ..Haproxy::default() });
    run("haproxy, 2 threads", &spec, &cases::selected(), BOTH_WAYS);
}

#[test]
fn own_splicing() {
    let spec = Spec::Haproxy(Haproxy { splice: true, splice_always: true, ..Haproxy::default() });
    run("haproxy, own splicing", &spec, &[cases::selected(), cases::slow_clients()].concat(), BESIDE_OWN_SPLICING);
}

#[test]
fn own_splicing_two_threads() {
    let spec = Spec::Haproxy(Haproxy { splice: true, splice_always: true, threads: 2, ..Haproxy::default() });
    run("haproxy, own splicing, 2 threads", &spec, &cases::selected(), BESIDE_OWN_SPLICING);
}

#[test]
fn large_buffers() {
    let spec = Spec::Haproxy(Haproxy { bufsize: Some(131_072), ..Haproxy::default() });
    run("haproxy, bufsize 128k", &spec, &cases::selected(), BOTH_WAYS);
}

#[test]
fn connection_per_request() {
    let spec = Spec::Haproxy(Haproxy { keepalive: false, ..Haproxy::default() });
    run("haproxy, http-server-close", &spec, &cases::selected(), BOTH_WAYS);
}

#[test]
fn tls_to_the_client() {
    let spec = Spec::Haproxy(Haproxy { tls: true, ..Haproxy::default() });
    run("haproxy, HTTPS to the client", &spec, &cases::bodies(cases::FEW_SIZES), RETIRED);
}
