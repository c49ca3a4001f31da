//! Both directions full: each side has written until nothing more went in, and has read nothing. In this state a
//! restored connection stalls for ever if a window, a buffer or a timestamp is a little off.

mod common;

use common::content;
use common::load::{drain, fill, ping};
use common::moving::Mover;

/// How often the connection is moved: 1 000 times with `UNDERDECK_TEST_FULL=1000`.
fn times() -> u64 {
    std::env::var("UNDERDECK_TEST_FULL").map_or(60, |times| times.parse().expect("UNDERDECK_TEST_FULL is a number"))
}

/// Most bytes that a side writes.
const MOST: usize = 16 << 20;

#[test]
fn both_directions_full_never_stalls() {
    let mover = Mover::new();
    let (up, down) = (content(MOST, 1), content(MOST, 2));
    for round in 0..times() {
        let v6 = round % 2 == 1;
        let (client, server) = mover.cable.connect(v6);
        let (sent_up, sent_down) = fill(&client, &server, &up, &down);
        let (server, snapshot) = mover.go(server);
        assert!(!snapshot.unread().is_empty() && !snapshot.unsent().is_empty(), "{snapshot:?}");
        drain(&client, &server, &up[..sent_up], &down[..sent_down]);
        // And it is as good as new.
        ping(&client, &server);
    }
}
