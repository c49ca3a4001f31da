//! What must have become of payload in a proxy under the engine. A library that copies everything delivers the right bytes
//! too: only its counters tell that it did nothing.

use underdeck_lab::engine::{Reason, Role, RoleSnapshot, Snapshot};

/// One thing that the counters must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Must {
    /// This share of the payload at least, in percent, never left the kernel; with the library's own smallest body, where most
    /// bodies of the tests are too short, some of it.
    Forward(Role, u64),
    /// Payload was anchored, whatever became of it.
    Anchor(Role),
    /// None was.
    AnchorNothing(Role),
    /// Anchored payload had to be put back for this reason.
    Materialise(Role, Reason),
    /// Payload was copied for this reason.
    CopyFor(Role, Reason),
}

use Must::{Anchor, AnchorNothing, CopyFor, Forward, Materialise};
use Role::{Accepted, Connected};

/// Bodies of responses go from socket to socket.
pub const RESPONSES: &[Must] = &[Forward(Connected, 50)];
/// And those of requests.
pub const BOTH_WAYS: &[Must] = &[Forward(Connected, 50), Forward(Accepted, 50)];
/// HAProxy splices by itself what its reads have not taken.
pub const BESIDE_OWN_SPLICING: &[Must] =
    &[Forward(Connected, 10), Forward(Accepted, 10), CopyFor(Connected, Reason::CallFlags)];
/// Larger bodies of requests go to files first, as nginx has it by default. Whether they are copied later on because that was
/// learnt depends on how many smaller ones, which leave from memory, were forwarded in between.
pub const UPLOADS_TO_FILES: &[Must] = &[Forward(Connected, 50), Materialise(Accepted, Reason::ExitFile)];
/// Bodies of requests all go to files first and leave by `sendfile`, so that none is seen to leave: they are copied.
pub const ALL_UPLOADS_TO_FILES: &[Must] =
    &[Forward(Connected, 50), AnchorNothing(Accepted), CopyFor(Accepted, Reason::RouteUnproven)];
/// A client that is slower than the backend makes nginx spool, and that is learnt: how much is forwarded before, depends on
/// the client.
pub const LARGER_THAN_BUFFERS: &[Must] =
    &[Forward(Connected, 1), Materialise(Accepted, Reason::ExitFile), CopyFor(Accepted, Reason::RouteLearnt)];
/// Some responses are spooled to files, some are not.
pub const SPOOLED: &[Must] = &[Forward(Connected, 30), Materialise(Connected, Reason::ExitFile)];
/// Responses all go to the cache's files.
pub const CACHED: &[Must] = &[Materialise(Connected, Reason::ExitFile), CopyFor(Connected, Reason::RouteLearnt)];
/// Responses all go through zlib.
pub const COMPRESSED: &[Must] = &[Materialise(Connected, Reason::ExitDeflate), CopyFor(Connected, Reason::RouteLearnt)];
/// Responses all go through OpenSSL; what clients send is not readable.
pub const ENCRYPTED: &[Must] =
    &[AnchorNothing(Accepted), Materialise(Connected, Reason::ExitTls), CopyFor(Connected, Reason::RouteLearnt)];
/// The program gives OpenSSL a transport of its own: the engine retires from the process when it sees that.
pub const RETIRED: &[Must] =
    &[AnchorNothing(Accepted), AnchorNothing(Connected), CopyFor(Connected, Reason::SwitchedOff)];

impl Must {
    /// What is wrong; None if the counters show it. `tiny`: the smallest body is as small as the library allows.
    pub fn fault(self, counters: &Snapshot, tiny: bool) -> Option<String> {
        let holds = match self {
            Forward(role, percent) => forwarded(counters.role(role), if tiny { percent } else { 0 }),
            Anchor(role) => counters.role(role).bytes_anchored > 0,
            AnchorNothing(role) => counters.role(role).bytes_anchored == 0,
            Materialise(role, why) => counters.role(role).materialised_by_reason[why as usize] > 0,
            CopyFor(role, why) => counters.role(role).copied_by_reason[why as usize] > 0,
        };
        (!holds).then(|| format!("the counters do not show {self:?}: {}", tell(counters)))
    }
}

fn forwarded(role: &RoleSnapshot, percent: u64) -> bool {
    role.bytes_forwarded > 0 && role.bytes_forwarded * 100 >= (role.bytes_anchored + role.bytes_copied) * percent
}

/// Payload by role and, where it was not forwarded, by reason.
pub fn tell(counters: &Snapshot) -> String {
    let one = |role: Role| {
        let it = counters.role(role);
        let by = |slots: &[u64]| {
            let counted = Reason::ALL.iter().filter(|why| slots[**why as usize] > 0);
            counted.map(|why| format!(" {} {}", why.name(), slots[*why as usize])).collect::<String>()
        };
        let (copied, materialised) = (by(&it.copied_by_reason), by(&it.materialised_by_reason));
        let (name, anchored, forwarded) = (role.name(), it.bytes_anchored, it.bytes_forwarded);
        format!(
            "{name}: {anchored} bytes anchored, {forwarded} forwarded, materialised:{materialised}, copied:{copied}"
        )
    };
    Role::ALL.map(one).join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_copies_everything_satisfies_none_of_them() {
        let mut idle = Snapshot::default();
        for role in &mut idle.roles {
            role.bytes_copied = 1 << 20;
            role.copied_by_reason[Reason::BelowMinBody as usize] = 1 << 20;
        }
        let all = [
            RESPONSES,
            BOTH_WAYS,
            BESIDE_OWN_SPLICING,
            UPLOADS_TO_FILES,
            ALL_UPLOADS_TO_FILES,
            LARGER_THAN_BUFFERS,
            SPOOLED,
            CACHED,
            COMPRESSED,
            ENCRYPTED,
            RETIRED,
        ];
        for musts in all {
            for tiny in [false, true] {
                assert!(musts.iter().any(|must| must.fault(&idle, tiny).is_some()), "{musts:?}");
            }
        }
    }

    #[test]
    fn a_share_is_wanted_where_small_bodies_are_anchored_only() {
        let mut counters = Snapshot::default();
        let role = &mut counters.roles[Connected as usize];
        (role.bytes_anchored, role.bytes_forwarded, role.bytes_copied) = (50, 49, 50);
        assert!(Forward(Connected, 50).fault(&counters, true).is_some());
        assert!(Forward(Connected, 50).fault(&counters, false).is_none());
        assert!(Forward(Connected, 49).fault(&counters, true).is_none());
        assert!(Forward(Accepted, 0).fault(&counters, true).is_some(), "nothing is no share");
    }
}
