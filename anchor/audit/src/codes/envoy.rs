//! Codes of findings in Envoy bootstraps.

use super::{Code, codes};

pub(super) const CODES: &[Code] = codes! {
    // 0xx: what cannot be judged.
    "UDE001" Refused Both: "configuration from elsewhere",
        "Listeners, routes, clusters or extensions come from a management server or file at run time, so the audit \
         cannot see them.",
        "Use a static bootstrap, or take the responsibility with --force.";
    "UDE002" LeftOut Both: "unknown extension",
        "The filter or extension is not known to leave bodies alone.",
        "Keep it to the listeners that need it.";
    // 1xx: something reads or changes payload where the engine cannot see it.
    "UDE101" LeftOut Both: "filter reads bodies",
        "An HTTP filter buffers, reads or changes bodies.",
        "Disable the filter on routes that need no inspection, or give large bodies a listener of their own.";
    "UDE102" LeftOut Both: "code in the path",
        "Lua, WebAssembly, Go or other code may read bodies.",
        "The code cannot be judged from outside. Give large bodies a listener of their own.";
    "UDE103" LeftOut Both: "compression",
        "The filter compresses or decompresses bodies; Envoy carries its own compressors.",
        "Give large bodies a listener of their own.";
    "UDE104" LeftOut Requests: "authorisation with the body",
        "ext_authz sends the bodies of requests to the authorisation service.",
        "Remove with_request_body.";
    "UDE105" LeftOut Both: "gRPC translation",
        "The filter translates bodies between gRPC and another form.",
        "Nothing to do: this listener is copied as always.";
    "UDE106" LeftOut Both: "cache",
        "The cache filter copies bodies.",
        "Give cached content a listener of its own.";
    "UDE107" LeftOut Both: "tap",
        "A tap records the traffic.",
        "Remove the tap.";
    "UDE108" LeftOut Requests: "mirrored requests",
        "The bodies of requests are sent twice: to the cluster and to the mirror.",
        "Remove request_mirror_policies.";
    "UDE109" LeftOut Requests: "request kept for another try",
        "A retry or hedge policy keeps the body of a request, to send it again.",
        "Remove retry_policy and hedge_policy from routes with large uploads.";
    "UDE110" LeftOut Requests: "internal redirect",
        "The body of a request may be sent again after an internal redirect.",
        "Remove internal_redirect_policy.";
    "UDE111" LeftOut Both: "TLS to clients",
        "Envoy carries its own TLS library, so the engine cannot see payload being encrypted.",
        "Terminate TLS in front of Envoy where copying matters more than TLS on this hop.";
    "UDE112" LeftOut Both: "TLS to the upstream server",
        "Envoy carries its own TLS library, so the engine cannot see payload being encrypted.",
        "Use a cluster without transport_socket on trusted networks.";
    "UDE113" LeftOut Both: "HTTP/2 or HTTP/3 to clients",
        "The listener frames bodies: codec_type is HTTP2 or HTTP3.",
        "Set `codec_type: HTTP1`, or leave it out.";
    "UDE114" LeftOut Both: "HTTP/2 or HTTP/3 to the upstream server",
        "Bodies leave framed and not as HTTP/1.",
        "Use explicit_http_config with http_protocol_options, or leave the protocol out.";
    "UDE115" LeftOut Both: "PROXY protocol",
        "Connections begin with a PROXY header and not with HTTP/1, so the engine leaves them alone.",
        "Use addresses in headers on HTTP hops instead.";
    "UDE116" LeftOut Responses: "health check reads responses",
        "A health check compares the responses of the cluster with expected text.",
        "Check by status.";
    "UDE117" LeftOut Responses: "answers that Envoy itself reads",
        "Envoy itself asks this cluster over HTTP (keys, tokens, authorisation, code) and reads the answers.",
        "Give that service a cluster and port of its own: only its answers are copied.";
    "UDE118" LeftOut Both: "CONNECT tunnel",
        "tcp_proxy wraps connections into HTTP CONNECT or POST by tunneling_config.",
        "Nothing to do: this listener is copied as always.";
    // 3xx: left alone.
    "UDE301" Passed Both note: "not HTTP",
        "The listener forwards bytes that are not HTTP/1; the engine leaves its connections alone.",
        "Nothing to do.";
};
