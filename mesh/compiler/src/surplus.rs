//! What is placed in the kernel and yet left to Envoy, because one program has an end.

use std::fmt;

use serde::Serialize;
use underdeck_mesh_policy::form::Origin;

/// A rule, or a part of one, that this program leaves to Envoy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Surplus {
    /// Where it is written.
    pub origin: Origin,
    /// Why.
    pub reason: SurplusReason,
}

macro_rules! reasons {
    ($($variant:ident $code:literal $text:literal;)*) => {
        /// Why something is left to Envoy. A code never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum SurplusReason {
            $(#[doc = $text] $variant,)*
        }

        impl SurplusReason {
            /// All of them, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The stable code.
            pub fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// What it means.
            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    TooManyRoutes "too-many-routes" "The listener has more routes than one program holds; those of the last virtual hosts are left.";
    TooManyDomains "too-many-domains" "The listener has more domains than one program holds; all its requests are left.";
    TooManyNames "too-many-header-names" "The policies mention more header names than one program looks for.";
    TooManyClusters "too-many-clusters" "The routes lead to more clusters than one program knows.";
    TooManyWorkloads "too-many-workloads" "More workloads have authorization policies than one program holds.";
    TooManyExpressions "too-many-expressions" "The tables of all regular expressions together are too large.";
    EnvoysHeader "header-of-envoy" "A header is matched or edited whose meaning is Envoy's own.";
    UnknownSender "unknown-sender" "It depends on an identity of the sender, and the sender has none.";
    NotWritten "not-written" "The compiler has no code for this action.";
    Cluster "cluster" "It leads to a service with a policy that needs Envoy.";
}

impl fmt::Display for SurplusReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl Serialize for SurplusReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}
