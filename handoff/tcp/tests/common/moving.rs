//! Moves a connection of a host to another socket of the same host, as a handoff does: blocked, frozen, encoded,
//! released, decoded, thawed, let through, finished.

use std::net::TcpStream;

use underdeck_handoff_steer::{Flow, Options, Steer};
use underdeck_handoff_tcp::{Snapshot, freeze, thaw};

use super::{Cable, Host, stream};

/// A cable whose server can be moved.
pub struct Mover {
    pub cable: Cable,
    pub steer: Steer,
    /// The client's own, to make it deaf.
    pub ears: Steer,
}

impl Mover {
    pub fn new() -> Mover {
        Mover::with(Cable::new())
    }

    pub fn with(cable: Cable) -> Mover {
        let options = Options { capacity: 16, ..Options::default() };
        let attach = |host: &Host| host.on(|| Steer::attach(&["eth0"], &options).expect("root can attach"));
        let (steer, ears) = (attach(&cable.server), attach(&cable.client));
        Mover { cable, steer, ears }
    }

    /// An end's name for its connection.
    pub fn flow(&self, end: &TcpStream) -> Flow {
        Flow { local: end.local_addr().expect("connected"), peer: end.peer_addr().expect("connected") }
    }

    /// From now on the client hears nothing of the server, but the server hears it.
    pub fn deafen(&self, client: &TcpStream) {
        let flow = self.flow(client);
        // A block spares packets that have a source rule, even if it changes nothing.
        self.ears.rewrite_source(&flow, flow.local).expect("there is room");
        self.ears.block(&flow).expect("there is room");
    }

    /// The client hears again.
    pub fn hear(&self, client: &TcpStream) {
        assert!(self.ears.remove(&self.flow(client)).expect("the map works"), "it was deaf");
    }

    /// From now on the server hears nothing of the client.
    pub fn block(&self, server: &TcpStream) {
        self.steer.block(&self.flow(server)).expect("there is room");
    }

    /// Takes the server's end into another socket.
    pub fn go(&self, server: TcpStream) -> (TcpStream, Snapshot) {
        let flow = self.flow(&server);
        self.steer.block(&flow).expect("there is room");
        let frozen = freeze(server.into(), b"").expect("it can be frozen");
        let snapshot = Snapshot::decode(&frozen.snapshot().encode()).expect("it was just encoded");
        assert_eq!(&snapshot, frozen.snapshot(), "nothing is lost in the encoding");
        frozen.release();
        let thawing = self.cable.server.on(|| thaw(&snapshot, snapshot.local())).expect("it can be thawed");
        self.steer.remove(&flow).expect("the map works");
        let fd = self.cable.server.on(|| thawing.finish()).expect("it can be finished");
        (stream(fd), snapshot)
    }
}
