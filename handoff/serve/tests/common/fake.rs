//! A backend that a test plays: it goes wrong where the test says.

use std::io;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};

use underdeck_handoff_control::keys::Role;
use underdeck_handoff_control::message::{Body, Message, Refusal};
use underdeck_handoff_control::tls::Channel;

use super::{PATIENCE, Site};

/// Where it goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// BEGIN_OFFLOAD is refused.
    Refuses(Refusal),
    /// BEGIN_OFFLOAD is not answered.
    SilentAtBegin,
    /// The connection breaks after BEGIN_OFFLOAD.
    DiesAtBegin,
    /// SERVER_READY names an address that no route leads to.
    ReadyNowhere,
    /// The answer is for another transfer.
    AnswersAnother,
    /// The connection breaks after SERVER_READY; the abort is answered so.
    DiesAtReady(Option<Answer>),
    /// LB_READY is not answered; the abort is answered so.
    SilentAtLbReady(Option<Answer>),
    /// LB_READY is refused.
    RefusesLbReady,
}

/// To an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    NotTaken,
    Unknown,
}

/// Starts it as backend 0. What it is told goes to the receiver.
pub fn backend(site: &Site, fault: Fault) -> Receiver<Body> {
    let identity = site.identity(Role::Backend, "b0");
    let listener = site.backends[0].on(|| TcpListener::bind("10.0.0.3:7000").expect("the port is free"));
    let (sender, receiver) = channel();
    site.backends[0].spawn(move || {
        for stream in listener.incoming() {
            let (identity, sender) = (identity.clone(), sender.clone());
            let stream = stream.expect("a peer");
            std::thread::spawn(move || -> io::Result<()> {
                let mut channel = identity.accept(stream, PATIENCE)?;
                while talk(&mut channel, fault, &sender)? {}
                Ok(())
            });
        }
    });
    receiver
}

/// False if the connection shall end.
fn talk(channel: &mut Channel, fault: Fault, heard: &Sender<Body>) -> io::Result<bool> {
    let message = channel.wait(PATIENCE)?;
    let transfer = message.transfer;
    if let Body::Ping(_) = message.body {
        channel.send(&Message { transfer: 77, body: Body::Pong(0) })?;
        return Ok(true);
    }
    let mut say = |body| channel.send(&Message { transfer, body }).map(|()| true);
    let ready = |ip: [u8; 4]| Body::ServerReady { local: (ip, 80).into(), thaw_ns: 0, rule_ns: 0 };
    let kept = [10, 0, 0, 3];
    // Nobody reads it after the test.
    let _ = heard.send(message.body.clone());
    match (message.body, fault) {
        (Body::BeginOffload(_), Fault::Refuses(refusal)) => say(Body::Refused(refusal)),
        (Body::BeginOffload(_), Fault::SilentAtBegin) => Ok(true),
        (Body::BeginOffload(_), Fault::DiesAtBegin) => Ok(false),
        (Body::BeginOffload(_), Fault::ReadyNowhere) => say(ready([203, 0, 113, 1])),
        (Body::BeginOffload(_), Fault::AnswersAnother) => {
            channel.send(&Message { transfer: transfer + 1, body: ready(kept) }).map(|()| true)
        }
        (Body::BeginOffload(_), Fault::DiesAtReady(_)) => say(ready(kept)).map(|_| false),
        (Body::BeginOffload(_), _) => say(ready(kept)),
        (Body::LbReady, Fault::RefusesLbReady) => say(Body::Refused(Refusal::Snapshot)),
        (Body::LbReady, _) => Ok(true),
        (Body::Abort(_), Fault::DiesAtReady(Some(answer)) | Fault::SilentAtLbReady(Some(answer))) => {
            say(Body::Refused(match answer {
                Answer::NotTaken => Refusal::NotTaken,
                Answer::Unknown => Refusal::Transfer,
            }))
        }
        _ => Ok(true),
    }
}
