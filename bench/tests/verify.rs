//! The demo's verification pass notices what a damaging relay does.

use underdeck_bench::measure::Body;
use underdeck_bench::scenario::Backend;
use underdeck_bench::verify::verify;
use underdeck_lab::client::Front;
use underdeck_lab::corrupt::{Damage, relay};
use underdeck_lab::files::Files;

const SIZE: u64 = 50_000;

#[test]
fn mismatches_are_counted_from_real_comparisons() {
    let files = Files::start(&[SIZE], &[]).expect("a backend");
    let through = |damage, backend| {
        let front = Front::from(relay(files.addr(), damage).expect("a relay"));
        verify(&front, files.folder(), Body { size: SIZE, backend }, 4, 3).expect("verified")
    };
    for backend in Backend::BOTH {
        let right = through(Damage::None, backend);
        assert_eq!((right.responses, right.mismatches), (12, 0), "{backend:?}");
    }
    // Once per connection: in the last byte of the first response's body or near it.
    assert_eq!(through(Damage::Flip(SIZE), Backend::Write).mismatches, 4);
    assert!(through(Damage::Repeat(20_000), Backend::Sendfile).mismatches >= 4);
    files.stop().expect("stopped");
}
