//! What stands in the way of requests besides routes and authorization. All of it is Envoy's.

use serde::Serialize;

use super::listener::Target;
use super::origin::Origin;
use super::rule::RuleId;

/// Something that requests for a target pass through.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Filter {
    /// The rule that it came from. If that is placed in Envoy, all requests for the target are.
    pub rule: RuleId,
    /// Whose requests.
    pub target: Target,
    /// What it is.
    pub kind: FilterKind,
    /// Where it was written.
    pub origin: Origin,
}

/// What a filter does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilterKind {
    /// JSON Web Tokens are checked.
    Jwt,
    /// An external service is asked for permission.
    ExtAuthz,
    /// An external service processes requests.
    ExtProc,
    /// Requests are counted here.
    LocalRateLimit,
    /// An external service counts requests.
    GlobalRateLimit,
    /// Lua code.
    Lua,
    /// WebAssembly code.
    Wasm,
    /// gRPC is translated.
    Grpc,
    /// Bodies are compressed.
    Compression,
    /// Mutual TLS is required of clients.
    MutualTls,
    /// Anything else; the findings of the rule name it.
    Other,
}
