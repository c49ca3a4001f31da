//! What follows what in a transfer, without sockets or clocks: events go in, the next action comes out.

use std::net::SocketAddr;

use crate::message::Body;

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
    /// LB_READY is being said.
    Confirming,
    /// The backend owns the connection.
    Away,
    /// The balancer has it back.
    RolledBack,
}

/// What the balancer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboundAction {
    /// Redirect the client's packets there.
    Redirect(SocketAddr),
    /// Say LB_READY.
    Confirm,
    /// Give the frozen socket up.
    Release,
    /// Remove the rules and resume the frozen socket.
    Resume,
}

impl Outbound {
    /// The next action. Everything unexpected before the connection is away resumes it.
    pub fn on(&mut self, event: &Event) -> OutboundAction {
        let (next, action) = match (*self, event) {
            (Outbound::Begun, Event::Said(Body::ServerReady { local, .. })) => {
                (Outbound::Redirecting, OutboundAction::Redirect(*local))
            }
            (Outbound::Redirecting, Event::Done) => (Outbound::Confirming, OutboundAction::Confirm),
            (Outbound::Confirming, Event::Done) | (Outbound::Away, _) => (Outbound::Away, OutboundAction::Release),
            _ => (Outbound::RolledBack, OutboundAction::Resume),
        };
        *self = next;
        action
    }
}

/// How a connection comes back from a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbound {
    /// SERVER_DONE is being said.
    Offered,
    /// The balancer may have it: the answer is awaited.
    Awaiting,
    /// The balancer has it, or it has ended.
    Gone,
    /// The backend serves it further.
    Kept,
}

/// What the backend does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboundAction {
    /// Wait for END_OFFLOAD.
    Await,
    /// Remove the source rule, give the frozen socket up, and remove the block.
    Release,
    /// Remove the block and resume the frozen socket.
    Resume,
}

impl Inbound {
    /// The next action. When the answer is lost nobody can know whether the balancer has the connection; two owners
    /// would be worse than none, so the backend lets go without a word.
    pub fn on(&mut self, event: &Event) -> InboundAction {
        let (next, action) = match (*self, event) {
            (Inbound::Offered, Event::Done) => (Inbound::Awaiting, InboundAction::Await),
            (Inbound::Awaiting, Event::Said(Body::Refused(_))) => (Inbound::Kept, InboundAction::Resume),
            (Inbound::Awaiting | Inbound::Gone, _) => (Inbound::Gone, InboundAction::Release),
            _ => (Inbound::Kept, InboundAction::Resume),
        };
        *self = next;
        action
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Refusal;

    fn ready() -> Event {
        let local = "192.0.2.3:80".parse().unwrap();
        Event::Said(Body::ServerReady { local, thaw_ns: 0, rule_ns: 0 })
    }

    #[test]
    fn a_connection_goes_away() {
        let mut out = Outbound::Begun;
        assert_eq!(out.on(&ready()), OutboundAction::Redirect("192.0.2.3:80".parse().unwrap()));
        assert_eq!(out.on(&Event::Done), OutboundAction::Confirm);
        assert_eq!(out.on(&Event::Done), OutboundAction::Release);
        assert_eq!(out, Outbound::Away);
    }

    #[test]
    fn whatever_goes_wrong_before_it_is_away_brings_it_back() {
        let wrong = [
            Event::Said(Body::Refused(Refusal::Full)),
            Event::Said(Body::EndOffload),
            Event::Failed,
            Event::TimedOut,
            Event::PeerLost,
        ];
        for state in [Outbound::Begun, Outbound::Redirecting, Outbound::Confirming] {
            for event in &wrong {
                let mut out = state;
                assert_eq!(out.on(event), OutboundAction::Resume, "{state:?} {event:?}");
                assert_eq!(out, Outbound::RolledBack);
            }
        }
    }

    #[test]
    fn a_connection_comes_back_unless_the_balancer_says_no() {
        let mut back = Inbound::Offered;
        assert_eq!(back.on(&Event::Done), InboundAction::Await);
        assert_eq!(back.on(&Event::Said(Body::EndOffload)), InboundAction::Release);
        let mut refused = Inbound::Awaiting;
        assert_eq!(refused.on(&Event::Said(Body::Refused(Refusal::Snapshot))), InboundAction::Resume);
        let mut unsent = Inbound::Offered;
        assert_eq!(unsent.on(&Event::PeerLost), InboundAction::Resume);
        for event in [Event::TimedOut, Event::PeerLost] {
            assert_eq!(Inbound::Awaiting.on(&event), InboundAction::Release, "{event:?}");
        }
    }
}
