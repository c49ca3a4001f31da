//! Rules, as people count them, and where they are enforced.

use std::fmt;

use serde::Serialize;

use super::origin::Origin;

/// Index of a rule in [`super::Policy::rules`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RuleId(pub u32);

/// One rule of a document: see `docs/mesh-check.md` for what counts as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// What kind of rule.
    pub kind: RuleKind,
    /// For people: `VirtualService default/reviews http[0]`.
    pub name: String,
    /// Where it begins.
    pub origin: Origin,
    /// What in it only Envoy enforces; empty: the kernel can enforce all of it.
    pub findings: Vec<Finding>,
    /// Why its requests go to Envoy in this set of policies whatever is in it: what other rules say of the service
    /// that it leads to, of its listener or of its workload. The places are those of the other rules.
    pub inherited: Vec<Finding>,
}

impl Rule {
    /// Where its requests are handled: in the kernel only if nothing in it and around it needs Envoy. Compiler and data
    /// plane go by this.
    pub fn placement(&self) -> Placement {
        if self.inherited.is_empty() { self.own_placement() } else { Placement::Envoy }
    }

    /// Where all of it can be enforced, by what is in it. `mesh check` counts by this, so that a rule that needs Envoy
    /// counts once, and not again with each rule that leads to it.
    pub fn own_placement(&self) -> Placement {
        if self.findings.is_empty() { Placement::Kernel } else { Placement::Envoy }
    }
}

/// Where a rule is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// All of it, by the data plane in the kernel.
    Kernel,
    /// All of it, by Envoy.
    Envoy,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Envoy => "envoy",
        })
    }
}

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleKind {
    /// A route.
    Route,
    /// Traffic to a service: traffic policies, subsets, clusters, service entries.
    Destination,
    /// A rule of an authorization policy.
    Authorization,
    /// Authentication of peers or requests.
    Authentication,
    /// A gateway's listener.
    Listener,
    /// A filter or a patch of Envoy's configuration.
    Filter,
    /// A policy of a kind that is not read.
    Other,
}

/// Why a rule is Envoy's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The stable code.
    pub reason: Reason,
    /// The place of the field that makes it so.
    pub origin: Origin,
    /// The field, as written: `timeout`.
    pub what: String,
}

macro_rules! reasons {
    ($($variant:ident $code:literal $text:literal;)*) => {
        /// Why a rule is Envoy's. A code never changes its meaning and is never used again for another.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $text] $variant,)*
        }

        impl Reason {
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
    UnknownField "unknown-field" "A field that is not known: its meaning is Envoy's to decide.";
    InvalidValue "invalid-value" "A value that the field does not take: the document is refused.";
    UnknownKind "unknown-kind" "A policy of a kind that is not read.";
    MatchQuery "match-query" "The query of the request is matched.";
    MatchSourceLabels "match-source-labels" "Labels of the sender are matched, which are not known.";
    MatchRegex "match-regex" "A regular expression that is invalid, too large or not regular for the kernel.";
    MatchOther "match-other" "Something else of the request is matched (gRPC, TLS, runtime, metadata).";
    FramingHeader "framing-header" "A header that belongs to the framing of messages or to the connection is edited.";
    HeaderFormat "header-format" "The value of a header is computed by Envoy (`%...%`).";
    RegexRewrite "rewrite-regex" "A path is rewritten by a regular expression.";
    AuthorityDynamic "rewrite-authority" "The authority is computed from the endpoint or a header.";
    RedirectRewrite "redirect-rewrite" "The path of a redirect is computed by a regular expression.";
    Timeout "timeout" "Requests have a time limit.";
    Retry "retry" "Failed requests are sent again.";
    Mirror "mirror" "Requests are copied to another cluster.";
    Cors "cors" "Cross-origin requests are answered.";
    FaultDelay "fault-delay" "Requests are delayed.";
    RateLimitLocal "rate-limit-local" "Requests are limited by a counter in the proxy.";
    RateLimitGlobal "rate-limit-global" "Requests are limited by an external service.";
    OutlierDetection "outlier-detection" "Endpoints that fail are left out for a while.";
    PoolLimits "pool-limits" "Connections or requests to a service are limited.";
    HealthCheck "health-check" "Endpoints are checked actively.";
    LoadBalancing "load-balancing" "A load-balancing policy other than round robin, random and least request, or an option of these.";
    Locality "locality" "Endpoints are chosen by locality or priority.";
    Jwt "jwt" "JSON Web Tokens are checked or their claims matched.";
    ExtAuthz "ext-authz" "An external service is asked for permission.";
    Lua "lua" "Lua code runs.";
    Wasm "wasm" "WebAssembly code runs.";
    MutualTls "mtls" "Mutual TLS is required.";
    TlsDownstream "tls-downstream" "Clients speak TLS.";
    TlsUpstream "tls-upstream" "TLS to the service.";
    Http2 "http2" "HTTP/2 or gRPC.";
    Tcp "tcp" "Not HTTP: bytes are forwarded.";
    Upgrade "upgrade" "Connections change their protocol (WebSocket, CONNECT).";
    Dynamic "dynamic" "Configuration comes from a management server at run time.";
    EnvoyFilter "envoy-filter" "A patch of Envoy's configuration, or a filter of Envoy.";
    Audit "audit" "Requests are marked for an audit log.";
    Delegate "delegate" "Routes stand in another document that was not given.";
    Cluster "cluster" "It leads to a service with a policy that needs Envoy.";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}
