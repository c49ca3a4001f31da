//! HAProxy: the matrix, with and without its own splicing, one and two threads. With `option splice-auto` alone it splices
//! only now and then.

use underdeck_lab::backend::Backend;
use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::Upload;
use underdeck_lab::proxy::{Haproxy, Mode, Proxy, Spec};
use underdeck_lab::twin::{Exchange, Side, Step, judge, observe};
use underdeck_tests::cases;
use underdeck_tests::matrix::{engine, run};
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

#[test]
fn tls_to_the_backend() {
    for mode in [Mode::Plain].into_iter().chain(engine().map(Mode::Underdeck)) {
        let backend = Backend::start().expect("a backend");
        let with_tls = Haproxy { tls: true, ..Haproxy::default() };
        let before = Proxy::start(&Spec::Haproxy(with_tls), &Mode::Plain, backend.addr()).expect("started");
        let inner = before.front().expect("a front");
        let spec = Spec::Haproxy(Haproxy { upstream_tls: true, ..Haproxy::default() });
        let proxy = Proxy::start(&spec, &mode, inner.addr).expect("started");
        let front = proxy.front().expect("a front");
        let side = Side { proxy: None, front: &front, backend: &backend };
        let upload = |id: String| {
            let answer = Behaviour::body(300_000, Delimit::Length);
            Exchange::new(id, vec![Step::post(Upload::Length(4 << 20), answer)])
        };
        // Before the first TLS handshake nobody knows where a body will go: these may fail, and must not be wrong.
        std::thread::scope(|scope| {
            for i in 0..4 {
                let exchange = upload(format!("first-{i}")).faulty();
                scope.spawn(move || {
                    let it = observe(&exchange, side).expect("observed");
                    assert_eq!(judge(&exchange, &it), Vec::<String>::new(), "{}", exchange.name);
                });
            }
        });
        for i in 0..4 {
            let exchange = upload(format!("later-{i}"));
            let it = observe(&exchange, side).expect("observed");
            assert_eq!(judge(&exchange, &it), Vec::<String>::new(), "{mode:?}");
        }
        for i in 0..4 {
            let seen = backend.seen(&upload(format!("first-{i}")).id(0));
            assert!(seen.iter().all(|it| it.upload.first_wrong.is_none()), "{mode:?}: {seen:?}");
        }
        proxy.stop().expect("nothing is left");
        before.stop().expect("nothing is left");
    }
}
