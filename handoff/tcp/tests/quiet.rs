//! A connection on which nothing is under way: frozen, encoded, thawed, and used.

mod common;

use std::io::{Read, Write};

use common::{Cable, stream};
use underdeck_handoff_tcp::{Snapshot, TcpState, freeze, thaw};

#[test]
fn an_idle_connection_goes_on_in_another_socket() {
    for v6 in [false, true] {
        let cable = Cable::new();
        let (mut client, server) = cable.connect(v6);
        let frozen = freeze(server.into(), b"blob").expect("it can be frozen");
        assert_eq!(frozen.snapshot().state(), TcpState::Established);
        let bytes = frozen.snapshot().encode();
        frozen.release();

        let snapshot = Snapshot::decode(&bytes).expect("it was just encoded");
        assert_eq!(snapshot.blob(), b"blob");
        assert_eq!(snapshot.peer(), client.local_addr().unwrap());
        let fd = cable.server.on(|| thaw(&snapshot, snapshot.local()).unwrap().finish().unwrap());
        let mut server = stream(fd);

        client.write_all(b"ping").unwrap();
        let mut four = [0; 4];
        server.read_exact(&mut four).unwrap();
        assert_eq!(&four, b"ping");
        server.write_all(b"pong").unwrap();
        client.read_exact(&mut four).unwrap();
        assert_eq!(&four, b"pong");
        drop(server);
        assert_eq!(client.read(&mut four).unwrap(), 0, "an ordinary close");
    }
}

#[test]
fn a_frozen_connection_that_is_resumed_goes_on() {
    let cable = Cable::new();
    let (mut client, server) = cable.connect(false);
    let mut server = stream(freeze(server.into(), b"").unwrap().resume().unwrap());
    client.write_all(b"ping").unwrap();
    let mut four = [0; 4];
    server.read_exact(&mut four).unwrap();
    assert_eq!(&four, b"ping");
}
