//! A balancer that a test plays, step by step.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use underdeck_handoff_control::keys::Role;
use underdeck_handoff_control::message::{Body, Done, Message};
use underdeck_handoff_control::tls::{Channel, Identity};
use underdeck_handoff_steer::{Flow, Options, Steer, Target};
use underdeck_handoff_tcp::{Frozen, freeze};

use super::{Client, PATIENCE, Site};

/// Steering and control connections, without a server.
pub struct Balancer<'a> {
    site: &'a Site,
    pub steer: Steer,
    identity: Identity,
    listener: TcpListener,
}

impl<'a> Balancer<'a> {
    pub fn new(site: &'a Site) -> Balancer<'a> {
        Balancer::with(site, &Options::default())
    }

    pub fn with(site: &'a Site, options: &Options) -> Balancer<'a> {
        let identity = site.identity(Role::Balancer, "balancer");
        let (steer, listener) = site.balancer.on(|| {
            let steer = Steer::attach(&["eth0"], options).expect("root can attach");
            (steer, TcpListener::bind("10.0.0.2:80").expect("the port is free"))
        });
        Balancer { site, steer, identity, listener }
    }

    /// A client, and its connection here.
    pub fn client(&self) -> (Client, TcpStream) {
        let client = self.site.connect();
        (client, self.accept())
    }

    /// The connection of a client that has connected.
    pub fn accept(&self) -> TcpStream {
        let (server, _) = self.listener.accept().expect("the client has connected");
        server.set_read_timeout(Some(PATIENCE)).expect("a socket");
        server
    }

    /// To backend 0.
    pub fn control(&self) -> Channel {
        self.try_control().expect("the backend answers")
    }

    pub fn try_control(&self) -> io::Result<Channel> {
        self.site.balancer.on(|| self.identity.connect(self.site.address(3, 7000), PATIENCE))
    }

    pub fn freeze(&self, server: TcpStream, read: &[u8]) -> (Frozen, Flow) {
        let flow = Flow { local: server.local_addr().expect("live"), peer: server.peer_addr().expect("live") };
        self.steer.block(&flow).expect("there is room");
        (freeze(server.into(), read).expect("it can be frozen"), flow)
    }

    pub fn redirect(&self, flow: &Flow, ready: &Body) {
        let Body::ServerReady { local, .. } = ready else { panic!("{ready:?}") };
        let target = self.site.balancer.on(|| Target::resolve(*local)).expect("there is a route");
        self.steer.redirect(flow, &target).expect("there is room");
    }

    /// The whole way out.
    pub fn hand_out(&self, channel: &mut Channel, transfer: u64, server: TcpStream, read: &[u8]) -> Flow {
        let (frozen, flow) = self.freeze(server, read);
        let ready = ask(channel, transfer, Body::BeginOffload(frozen.snapshot().encode()));
        self.redirect(&flow, &ready);
        assert_eq!(ask(channel, transfer, Body::LbReady), Body::Taken);
        frozen.release();
        flow
    }

    /// Listens for backends. What they say goes to the receiver; `answer` is what they hear, if anything.
    pub fn listen(&self, answer: impl Fn(&Body) -> Option<Body> + Clone + Send + 'static) -> Receiver<(u64, Body)> {
        let identity = self.identity.clone();
        let listener = self.site.balancer.on(|| TcpListener::bind("10.0.0.2:7000").expect("the port is free"));
        let (sender, receiver) = channel();
        self.site.balancer.spawn(move || {
            for stream in listener.incoming() {
                let (identity, sender, answer) = (identity.clone(), sender.clone(), answer.clone());
                let stream = stream.expect("a peer");
                std::thread::spawn(move || -> io::Result<()> {
                    let mut channel = identity.accept(stream, PATIENCE)?;
                    loop {
                        let message = channel.wait(PATIENCE)?;
                        let transfer = message.transfer;
                        let body = answer(&message.body);
                        // Nobody reads it after the test.
                        let _ = sender.send((transfer, message.body));
                        if let Some(body) = body {
                            channel.send(&Message { transfer, body })?;
                        }
                    }
                });
            }
        });
        receiver
    }
}

/// Says something and waits for the answer.
pub fn ask(channel: &mut Channel, transfer: u64, body: Body) -> Body {
    channel.send(&Message { transfer, body }).expect("the peer listens");
    let answer = channel.receive().expect("the peer answers");
    assert_eq!(answer.transfer, transfer);
    answer.body
}

/// A SERVER_DONE that ends or brings back.
pub fn done(body: &Body) -> &Done {
    match body {
        Body::ServerDone(done) => done,
        other => panic!("{other:?}"),
    }
}
