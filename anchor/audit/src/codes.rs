//! The stable codes of findings.

use crate::report::{Direction, Outcome};

mod envoy;
mod haproxy;
mod nginx;

/// One kind of finding. A code never changes its meaning and is never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// `UDN` for nginx, `UDH` for HAProxy, `UDE` for Envoy, and three digits.
    pub id: &'static str,
    /// A few words.
    pub title: &'static str,
    /// What happens to the payload.
    pub outcome: Outcome,
    /// Which payload.
    pub direction: Direction,
    /// Nothing looks at the payload, but it is copied all the same: not worth a warning.
    pub note: bool,
    /// About TLS: the outcome is `LeftOut` where the engine cannot see the calls of the TLS library.
    pub tls: bool,
    /// What the directive does to the payload.
    pub message: &'static str,
    /// What to do about it.
    pub advice: &'static str,
    /// Title, message and advice as one text.
    pub explanation: &'static str,
}

macro_rules! codes {
    ($($id:literal $outcome:ident $direction:ident $($flag:ident)? : $title:literal, $message:literal, $advice:literal;)*) => {
        &[$($crate::codes::Code {
            id: $id,
            title: $title,
            outcome: $crate::report::Outcome::$outcome,
            direction: $crate::report::Direction::$direction,
            note: codes!(@note $($flag)?),
            tls: codes!(@tls $($flag)?),
            message: $message,
            advice: $advice,
            explanation: concat!($title, "\n\n", $message, "\n\n", $advice),
        }),*]
    };
    (@note note) => { true };
    (@note $($flag:ident)?) => { false };
    (@tls tls) => { true };
    (@tls $($flag:ident)?) => { false };
}
use codes;

const LENGTH: usize = nginx::CODES.len() + haproxy::CODES.len() + envoy::CODES.len();

/// All codes, in the order of the documentation.
pub const CODES: &[Code] = &{
    let mut all = [nginx::CODES[0]; LENGTH];
    let parts = [nginx::CODES, haproxy::CODES, envoy::CODES];
    let (mut part, mut next) = (0, 0);
    while part < parts.len() {
        let mut i = 0;
        while i < parts[part].len() {
            all[next] = parts[part][i];
            next += 1;
            i += 1;
        }
        part += 1;
    }
    all
};

/// What a code means and what to do about it; `None`: there is no such code.
pub fn explain(code: &str) -> Option<&'static str> {
    CODES.iter().find(|c| c.id.eq_ignore_ascii_case(code)).map(|c| c.explanation)
}

/// The code of a rule of ours; a test walks all rules, so an unknown one cannot ship.
pub(crate) fn find(id: &str) -> &'static Code {
    CODES.iter().find(|c| c.id == id).unwrap_or(&CODES[0])
}
