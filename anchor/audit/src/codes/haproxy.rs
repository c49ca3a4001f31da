//! Codes of findings in HAProxy configurations.

use super::{Code, codes};

pub(super) const CODES: &[Code] = codes! {
    // 0xx: what cannot be judged.
    "UDH001" LeftOut Both: "Lua code",
        "A Lua script is loaded; it may read any body and open connections of its own.",
        "Remove lua-load if the script is not needed; nothing is anchored while it is loaded.";
    "UDH002" LeftOut Both: "unknown keyword",
        "The keyword is not known to the audit; it may read or change bodies where it applies.",
        "Check the spelling; if HAProxy accepts it, keep it to the proxies that need it.";
    "UDH003" LeftOut Both: "unknown filter",
        "The filter is not known to the audit; it may read or change bodies.",
        "Keep the filter to the proxies that need it.";
    // 1xx: something reads or changes payload where the engine cannot see it.
    "UDH101" LeftOut Requests: "request body awaited",
        "HAProxy waits for the body of the request and keeps it in its buffer for rules to read.",
        "Remove `option http-buffer-request` and `wait-for-body`, or keep them to the proxies that need them.";
    "UDH102" LeftOut Requests: "request body read",
        "A rule reads the body of the request.",
        "Keep rules with req.body, req.payload and the like to the proxies that need them.";
    "UDH103" LeftOut Responses: "response body read",
        "A rule reads, or waits for, the body of the response.",
        "Keep rules with res.body, res.payload and the like to the proxies that need them.";
    "UDH104" LeftOut Responses: "compression of responses",
        "HAProxy compresses responses with a compressor that the engine cannot see.",
        "Keep `compression` to the proxies that serve text, apart from those with large bodies.";
    "UDH105" LeftOut Requests: "compression of requests",
        "HAProxy compresses the bodies of requests with a compressor that the engine cannot see.",
        "Remove `compression direction request`.";
    "UDH106" LeftOut Both: "filter that sees bodies",
        "The filter (SPOE, trace, tracing) stands in the path of bodies.",
        "Keep the filter to the proxies that need it.";
    "UDH107" LeftOut Responses: "cache",
        "Responses are copied to the cache in shared memory.",
        "Keep cache rules to backends with small objects.";
    "UDH108" LeftOut Requests: "request kept for another try",
        "HAProxy may send a request again after it was sent, and keeps it in its buffer for that.",
        "Remove `retry-on` (other than none and conn-failure) or add `http-request disable-l7-retry`.";
    "UDH109" LeftOut Both: "HTTP/2 without TLS",
        "The connection speaks HTTP/2 in clear text; bodies are framed, not sent as HTTP/1.",
        "Use HTTP/1.1: remove `proto h2`.";
    "UDH110" LeftOut Both: "server does not speak HTTP/1",
        "Bodies leave in the records of another protocol (FastCGI).",
        "Nothing to do: this backend is copied as always.";
    "UDH111" LeftOut Both: "PROXY protocol or SOCKS",
        "Connections begin with a PROXY or SOCKS header and not with HTTP/1, so the engine leaves them alone.",
        "Use addresses in headers (option forwardfor) on HTTP hops instead.";
    "UDH112" LeftOut Both: "QUIC",
        "QUIC encrypts bodies packet by packet inside HAProxy, where the engine cannot see it.",
        "Give large downloads a frontend of their own without `bind quic`.";
    "UDH113" LeftOut Responses: "health check reads responses",
        "A health check looks for text in the responses of the servers.",
        "Check by status: `http-check expect status 200`.";
    "UDH114" LeftOut Responses: "OCSP",
        "HAProxy itself fetches OCSP answers over HTTP and reads them.",
        "Switch ocsp-update off; other responses from port 80 are copied meanwhile.";
    "UDH115" LeftOut Both: "HTX switched off",
        "`no option http-use-htx` selects the old HTTP code, which the engine has not been tested with.",
        "Remove the line.";
    "UDH116" LeftOut Requests: "upload to a server with TLS",
        "HAProxy does TLS with a transport of its own, which the engine cannot follow: an upload that was anchored \
         before the first handshake could not be sent.",
        "Use plain HTTP/1.1 to servers on trusted networks.";
    // 2xx: materialised.
    "UDH201" Materialised Both tls: "TLS to clients",
        "Responses are encrypted by OpenSSL, the real bytes are put back for it; requests arrive encrypted and are \
         copied as always.",
        "Terminate TLS in front of this proxy where copying matters more than TLS on this hop.";
    "UDH202" Materialised Both tls: "TLS to the server",
        "Requests are encrypted by OpenSSL and responses arrive encrypted: from the first handshake on, the process \
         copies everything.",
        "Use plain HTTP/1.1 to servers on trusted networks.";
    // 3xx: left alone.
    "UDH301" Passed Both note: "not HTTP",
        "`mode tcp` with TLS, and other modes than http, do not carry HTTP/1; the engine leaves their connections alone.",
        "Nothing to do.";
};
