//! Envoy: the matrix, one and two workers.

use underdeck_lab::proxy::{Envoy, Spec};
use underdeck_tests::cases;
use underdeck_tests::matrix::run;

#[test]
fn whole_matrix() {
    run("envoy", &Spec::Envoy(Envoy { workers: 1, ..Envoy::default() }), &cases::all());
}

#[test]
fn two_workers() {
    let exchanges = [cases::selected(), cases::huge()].concat();
    run("envoy, 2 workers", &Spec::Envoy(Envoy { workers: 2, ..Envoy::default() }), &exchanges);
}
