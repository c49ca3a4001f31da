//! What follows what in a transfer, without sockets or clocks: events go in, the next action comes out.
//!
//! # Never two owners
//!
//! A connection changes hands with one message: TAKEN on the way out, END_OFFLOAD on the way back. Until it has come, the
//! side that gives keeps its frozen socket. If it is overdue, nobody can tell from the silence whether the other side has
//! the connection, so the giving side asks with an abort over a new control connection. The other side answers from what
//! it has done, and after `NotTaken` it will not take this transfer (or this generation of it) any more, however late its
//! message comes. Without a clear answer the giving side ends the connection with a reset: a client that is told is
//! better off than one that hears two servers, or none.

use std::net::SocketAddr;

use crate::message::{Body, Refusal};

/// What happened in a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer said this.
    Said(Body),
    /// Our own last action succeeded.
    Done,
    /// Our own last action failed.
    Failed,
    /// The step took too long.
    TimedOut,
    /// The control connection broke.
    PeerLost,
}

/// How a connection leaves the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// BEGIN_OFFLOAD is being said.
    Begun,
    /// SERVER_READY came, the redirection is being put in place.
    Redirecting,
    /// LB_READY is said, TAKEN is awaited.
    Confirming,
    /// TAKEN is overdue, the abort is said.
    Doubtful,
    /// The backend owns the connection.
    Away,
    /// The balancer has it back.
    RolledBack,
    /// It is lost.
    Ended,
}

/// What the balancer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboundAction {
    /// Redirect the client's packets there.
    Redirect(SocketAddr),
    /// Say LB_READY and wait for the answer.
    Confirm,
    /// Ask over a new control connection whether the backend has it.
    Ask,
    /// Give the frozen socket up.
    Release,
    /// Remove the rules and resume the frozen socket.
    Resume,
    /// Remove the rules, give the frozen socket up, and reset the client's connection.
    End,
}

impl Outbound {
    /// The next action. What goes wrong before LB_READY is said resumes the connection: without it no backend starts.
    pub fn on(&mut self, event: &Event) -> OutboundAction {
        let (next, action) = match (*self, event) {
            (Outbound::Begun, Event::Said(Body::ServerReady { local, .. })) => {
                (Outbound::Redirecting, OutboundAction::Redirect(*local))
            }
            (Outbound::Redirecting, Event::Done) => (Outbound::Confirming, OutboundAction::Confirm),
            (Outbound::Confirming | Outbound::Doubtful, Event::Said(Body::Taken)) | (Outbound::Away, _) => {
                (Outbound::Away, OutboundAction::Release)
            }
            (Outbound::Confirming, Event::Said(Body::Refused(_)))
            | (Outbound::Doubtful, Event::Said(Body::Refused(Refusal::NotTaken)))
            | (Outbound::Begun | Outbound::Redirecting | Outbound::RolledBack, _) => {
                (Outbound::RolledBack, OutboundAction::Resume)
            }
            (Outbound::Confirming, _) => (Outbound::Doubtful, OutboundAction::Ask),
            (Outbound::Doubtful | Outbound::Ended, _) => (Outbound::Ended, OutboundAction::End),
        };
        *self = next;
        action
    }
}

/// How a connection comes back from a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbound {
    /// A control connection is being looked for: nothing is said yet.
    Reaching,
    /// SERVER_DONE is said, END_OFFLOAD is awaited.
    Offered,
    /// END_OFFLOAD is overdue, the abort is said.
    Doubtful,
    /// The balancer has it.
    Gone,
    /// The backend serves it further.
    Kept,
    /// It is lost.
    Ended,
}

/// What the backend does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboundAction {
    /// Say SERVER_DONE and wait for the answer.
    Offer,
    /// Ask over a new control connection whether the balancer has it.
    Ask,
    /// Remove the source rule, give the frozen socket up, and remove the block.
    Release,
    /// Remove the block and resume the frozen socket.
    Resume,
    /// Reset the client's connection and remove the rules.
    End,
}

impl Inbound {
    /// The next action. A balancer that does not know the transfer has given the connection up: it ends.
    pub fn on(&mut self, event: &Event) -> InboundAction {
        let (next, action) = match (*self, event) {
            (Inbound::Reaching, Event::Done) => (Inbound::Offered, InboundAction::Offer),
            (Inbound::Offered | Inbound::Doubtful, Event::Said(Body::EndOffload)) | (Inbound::Gone, _) => {
                (Inbound::Gone, InboundAction::Release)
            }
            (Inbound::Offered | Inbound::Doubtful, Event::Said(Body::Refused(Refusal::Transfer)))
            | (Inbound::Ended, _) => (Inbound::Ended, InboundAction::End),
            (Inbound::Offered, Event::Said(Body::Refused(_)))
            | (Inbound::Doubtful, Event::Said(Body::Refused(Refusal::NotTaken)))
            | (Inbound::Reaching | Inbound::Kept, _) => (Inbound::Kept, InboundAction::Resume),
            (Inbound::Offered, _) => (Inbound::Doubtful, InboundAction::Ask),
            (Inbound::Doubtful, _) => (Inbound::Ended, InboundAction::End),
        };
        *self = next;
        action
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Event {
        let local = "192.0.2.3:80".parse().unwrap();
        Event::Said(Body::ServerReady { local, thaw_ns: 0, rule_ns: 0 })
    }

    fn refused(refusal: Refusal) -> Event {
        Event::Said(Body::Refused(refusal))
    }

    const SILENCE: [Event; 3] = [Event::Failed, Event::TimedOut, Event::PeerLost];

    #[test]
    fn a_connection_goes_away() {
        let mut out = Outbound::Begun;
        assert_eq!(out.on(&ready()), OutboundAction::Redirect("192.0.2.3:80".parse().unwrap()));
        assert_eq!(out.on(&Event::Done), OutboundAction::Confirm);
        assert_eq!(out.on(&Event::Said(Body::Taken)), OutboundAction::Release);
        assert_eq!(out, Outbound::Away);
    }

    #[test]
    fn whatever_goes_wrong_before_lb_ready_brings_it_back() {
        let said = [refused(Refusal::Full), Event::Said(Body::EndOffload), Event::Said(Body::Taken)];
        for state in [Outbound::Begun, Outbound::Redirecting] {
            for event in said.iter().chain(&SILENCE) {
                let mut out = state;
                assert_eq!(out.on(event), OutboundAction::Resume, "{state:?} {event:?}");
                assert_eq!(out, Outbound::RolledBack);
            }
        }
    }

    #[test]
    fn silence_after_lb_ready_is_asked_about() {
        for event in &SILENCE {
            let mut out = Outbound::Confirming;
            assert_eq!(out.on(event), OutboundAction::Ask, "{event:?}");
            for (answer, action) in [
                (Event::Said(Body::Taken), OutboundAction::Release),
                (refused(Refusal::NotTaken), OutboundAction::Resume),
                (refused(Refusal::Transfer), OutboundAction::End),
                (Event::TimedOut, OutboundAction::End),
                (Event::PeerLost, OutboundAction::End),
            ] {
                let mut doubtful = out;
                assert_eq!(doubtful.on(&answer), action, "{answer:?}");
            }
        }
        assert_eq!(Outbound::Confirming.on(&refused(Refusal::Snapshot)), OutboundAction::Resume);
    }

    #[test]
    fn a_connection_comes_back_unless_the_balancer_says_no() {
        let mut back = Inbound::Reaching;
        assert_eq!(back.on(&Event::Done), InboundAction::Offer);
        assert_eq!(back.on(&Event::Said(Body::EndOffload)), InboundAction::Release);
        assert_eq!(Inbound::Offered.on(&refused(Refusal::Snapshot)), InboundAction::Resume);
        assert_eq!(Inbound::Offered.on(&refused(Refusal::Transfer)), InboundAction::End);
        for event in &SILENCE {
            assert_eq!(Inbound::Reaching.on(event), InboundAction::Resume, "nothing was said: {event:?}");
        }
    }

    #[test]
    fn silence_after_server_done_is_asked_about() {
        for event in &SILENCE {
            let mut back = Inbound::Offered;
            assert_eq!(back.on(event), InboundAction::Ask, "{event:?}");
            for (answer, action) in [
                (Event::Said(Body::EndOffload), InboundAction::Release),
                (refused(Refusal::NotTaken), InboundAction::Resume),
                (refused(Refusal::Transfer), InboundAction::End),
                (Event::TimedOut, InboundAction::End),
                (Event::PeerLost, InboundAction::End),
            ] {
                let mut doubtful = back;
                assert_eq!(doubtful.on(&answer), action, "{answer:?}");
            }
        }
    }
}
