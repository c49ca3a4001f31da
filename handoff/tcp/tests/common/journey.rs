//! A connection goes from a balancer to a backend and back.

use std::net::{SocketAddr, TcpStream};

use underdeck_handoff_steer::{Attachment, Flow, Options, Steer, Target};
use underdeck_handoff_tcp::{Snapshot, freeze, thaw};

use super::{Host, Site, stream};

/// The steering of both.
pub struct Steers {
    pub balancer: Steer,
    pub backend: Steer,
}

/// At their only interface.
pub fn attach(site: &Site, attachment: Attachment) -> Steers {
    let options = Options { attachment, capacity: 16, ..Options::default() };
    let on = |host: &Host| host.on(|| Steer::attach(&["eth0"], &options).expect("root can attach"));
    Steers { balancer: on(&site.balancer), backend: on(&site.backend) }
}

/// The outbound transfer. Returns the connection at the backend, and the backend's name for it.
pub fn out(site: &Site, steers: &Steers, server: TcpStream, at: SocketAddr) -> (TcpStream, Flow) {
    let flow = Flow { local: server.local_addr().unwrap(), peer: server.peer_addr().unwrap() };
    steers.balancer.block(&flow).unwrap();
    let frozen = freeze(server.into(), b"").unwrap();
    let snapshot = Snapshot::decode(&frozen.snapshot().encode()).unwrap();
    let mut thawing = site.backend.on(|| thaw(&snapshot, at).unwrap());
    let there = Flow { local: at, peer: flow.peer };
    steers.backend.rewrite_source(&there, flow.local).unwrap();
    steers.backend.block(&there).unwrap();
    thawing.half_close().unwrap();
    let target = site.balancer.on(|| Target::resolve(at).unwrap());
    steers.balancer.redirect(&flow, &target).unwrap();
    frozen.release();
    steers.backend.remove_ingress(&there).unwrap().expect("it was blocked");
    (stream(site.backend.on(|| thawing.finish()).unwrap()), there)
}

/// The inbound transfer.
pub fn back(site: &Site, steers: &Steers, server: TcpStream, there: &Flow, local: SocketAddr) -> TcpStream {
    steers.backend.block(there).unwrap();
    let frozen = freeze(server.into(), b"").unwrap();
    let snapshot = Snapshot::decode(&frozen.snapshot().encode()).unwrap();
    let mut thawing = site.balancer.on(|| thaw(&snapshot, local).unwrap());
    thawing.half_close().unwrap();
    let flow = Flow { local, peer: there.peer };
    steers.balancer.remove_ingress(&flow).unwrap().expect("it was redirected");
    let server = stream(site.balancer.on(|| thawing.finish()).unwrap());
    steers.backend.remove_source(there).unwrap().expect("it was rewritten");
    frozen.release();
    assert!(steers.backend.remove(there).unwrap());
    server
}
