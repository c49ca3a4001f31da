//! Who may do what.

use std::net::IpAddr;

use serde::Serialize;

use super::listener::Target;
use super::matching::{HeaderMatch, StringMatch};
use super::origin::Origin;
use super::rule::{Reason, RuleId};

/// One authorization policy.
///
/// Of all policies of a target: CUSTOM ones are asked first, then a DENY that holds means 403; then, if there are
/// ALLOW policies, one of them must hold, else 403. The body is `RBAC: access denied`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Authorization {
    /// `NAMESPACE/NAME`, or the name of the filter.
    pub name: String,
    /// Whose.
    pub target: Target,
    /// What it does where a rule holds.
    pub action: AuthorizationAction,
    /// It holds when one of them does. Empty: it never holds (an ALLOW policy without rules denies all).
    pub rules: Vec<AuthorizationRule>,
    /// Where it was written.
    pub origin: Origin,
}

/// What an authorization policy does where it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthorizationAction {
    /// Lets in.
    Allow,
    /// Keeps out.
    Deny,
    /// Marks for the log.
    Audit,
    /// Asks this external provider.
    Custom(String),
}

/// One rule of an authorization policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuthorizationRule {
    /// The rule that it came from. If one rule of a target is placed in Envoy, all requests for the target are.
    pub rule: RuleId,
    /// When it holds.
    pub condition: Condition,
    /// Where it was written.
    pub origin: Origin,
}

/// A condition over a request and its sender.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// All of them; an empty list holds.
    All(Vec<Condition>),
    /// At least one of them; an empty list does not hold.
    Any(Vec<Condition>),
    /// Not this one.
    Not(Box<Condition>),
    /// One attribute.
    Is(Attribute),
}

/// One attribute of a request or its sender.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attribute {
    /// The path without the query, as normalised.
    Path(StringMatch),
    /// A header; `:method` and `:authority` too.
    Header(HeaderMatch),
    /// The port that the connection was made to, in this range (the end is not in it).
    DestinationPort {
        /// First.
        start: u16,
        /// One past the last.
        end: u32,
    },
    /// The address that the connection was made to.
    DestinationIp(IpBlock),
    /// The address that the connection comes from.
    SourceIp(IpBlock),
    /// The address of the client: that of the connection, unless `x-forwarded-for` is trusted.
    RemoteIp(IpBlock),
    /// The identity of the sender as in its certificate without `spiffe://`: `cluster.local/ns/NS/sa/NAME`. A sender
    /// without an identity matches nothing.
    SourceIdentity(StringMatch),
    /// The namespace in the identity of the sender.
    SourceNamespace(StringMatch),
    /// Something that only Envoy knows.
    Unknown {
        /// Why.
        reason: Reason,
        /// As written.
        text: String,
    },
}

/// A block of IP addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct IpBlock {
    /// Any address of it.
    pub address: IpAddr,
    /// How many bits count: up to 32 or 128.
    pub prefix_len: u8,
}

impl IpBlock {
    /// Whether an address is in it. IPv4 and IPv6 never mix.
    pub fn contains(&self, address: IpAddr) -> bool {
        let len = u32::from(self.prefix_len);
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= len.min(32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= len.min(128),
            _ => false,
        }
    }
}
