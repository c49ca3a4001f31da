//! Codes of findings in nginx configurations.

use super::{Code, codes};

pub(super) const CODES: &[Code] = codes! {
    // 0xx: what cannot be judged.
    "UDN001" LeftOut Both: "unknown module",
        "A dynamic module is loaded that the audit does not know; it may read or change any body.",
        "Remove the load_module line if the module is not needed; nothing is anchored while it is loaded.";
    "UDN002" LeftOut Both: "unknown directive",
        "The directive belongs to no module that the audit knows; it may read or change bodies where it applies.",
        "Check the spelling; move a directive of a third-party module into the locations that need it.";
    // 1xx: something reads or changes payload where the engine cannot see it.
    "UDN101" LeftOut Responses: "text replaced in responses",
        "A filter searches the bodies of responses for text and replaces it.",
        "Put the filter into the smallest location that needs it, or switch it off there.";
    "UDN102" LeftOut Responses: "server-side includes",
        "SSI parses the bodies of responses.",
        "Set `ssi on` only in locations that serve pages with SSI commands.";
    "UDN103" LeftOut Responses: "character set conversion",
        "`charset` with a `charset_map` recodes the bodies of responses.",
        "Set `charset off` for locations that proxy large bodies, or remove the charset_map.";
    "UDN104" LeftOut Responses: "XSLT",
        "XSLT reads whole XML responses and replaces them.",
        "Keep xslt_stylesheet in the locations that need it.";
    "UDN105" LeftOut Responses: "image filter",
        "The image filter decodes images in responses.",
        "Keep image_filter in the locations that need it.";
    "UDN106" LeftOut Responses: "gunzip",
        "`gunzip on` inflates compressed responses for clients that cannot.",
        "Set `gunzip off` for locations with large bodies; nearly all clients accept gzip.";
    "UDN107" LeftOut Responses: "compression other than gzip",
        "A brotli or zstd filter compresses responses; the engine does not see its compressor.",
        "Switch it off where large bodies are proxied, or use gzip, which is materialised.";
    "UDN108" LeftOut Both: "Lua code",
        "Lua code may read bodies, and may open connections to any server and read what comes back.",
        "The code cannot be judged from outside. Without `*_by_lua` handlers on the route it is anchored.";
    "UDN109" LeftOut Both: "njs code",
        "njs code may read bodies, and may fetch from any server.",
        "The code cannot be judged from outside. Without js_ handlers on the route it is anchored.";
    "UDN110" LeftOut Both: "Perl code",
        "Perl code may read bodies, and may open connections to any server.",
        "The code cannot be judged from outside. Without perl handlers on the route it is anchored.";
    "UDN111" LeftOut Both: "web application firewall",
        "A web application firewall inspects bodies.",
        "Switch it off for locations that need no inspection (`modsecurity off`).";
    "UDN112" LeftOut Responses: "ranges cut by nginx",
        "nginx cuts byte ranges out of bodies by itself.",
        "Let the upstream server answer range requests: remove proxy_force_ranges or slice.";
    "UDN113" LeftOut Requests: "mirrored requests",
        "The bodies of requests are sent twice: to the upstream server and to the mirror.",
        "Set `mirror_request_body off` if the mirror does not need bodies.";
    "UDN114" LeftOut Requests: "$request_body",
        "The variable $request_body reads the bodies of requests.",
        "Take $request_body out of the log format or directive.";
    "UDN115" LeftOut Both: "upstream server does not speak HTTP/1",
        "Bodies leave in the records of another protocol (FastCGI, uwsgi, SCGI, gRPC, HTTP/2, memcached).",
        "Nothing to do: this route is copied as always.";
    "UDN116" LeftOut Requests note: "request kept for another try",
        "nginx buffers the body of a request before it sends it, and may send it again to the next server; what was \
         anchored can be sent only once.",
        "Set `proxy_request_buffering off`, or `proxy_next_upstream off`, to have uploads anchored.";
    "UDN117" LeftOut Requests: "request sent again after an error",
        "error_page leads failed requests to a location that sends the body upstream a second time.",
        "Let error_page lead to a location that does not proxy, or that sets `proxy_pass_request_body off`.";
    "UDN118" LeftOut Both: "HTTP/2 without TLS",
        "The listener speaks HTTP/2 in clear text; bodies are framed, not sent as HTTP/1.",
        "Use HTTP/1.1 on clear-text listeners: remove http2.";
    "UDN119" LeftOut Both: "HTTP/3",
        "QUIC encrypts bodies packet by packet inside nginx, where the engine cannot see it.",
        "Give large downloads a server of their own without `listen ... quic`.";
    "UDN120" LeftOut Both: "PROXY protocol",
        "Connections begin with a PROXY header and not with HTTP/1, so the engine leaves them alone.",
        "Accept connections without proxy_protocol on a listener of its own.";
    "UDN121" LeftOut Responses: "OCSP",
        "nginx itself fetches OCSP answers over HTTP and reads them.",
        "Use ssl_stapling_file, or remove ssl_stapling; other responses from the same port are copied meanwhile.";
    "UDN122" LeftOut Both: "module that reads bodies",
        "The module keeps, parses or forwards bodies by itself.",
        "Keep the directive in the locations that need it.";
    // 2xx: materialised.
    "UDN201" Materialised Responses: "gzip",
        "Responses of the types in gzip_types are compressed; the real bytes are put back for zlib.",
        "Set `gzip off` for locations with large bodies that do not compress; other types are not touched.";
    "UDN202" Materialised Both tls: "TLS to clients",
        "Responses are encrypted by OpenSSL, the real bytes are put back for it; requests arrive encrypted and are \
         copied as always.",
        "Terminate TLS in front of this proxy where copying matters more than TLS on this hop.";
    "UDN203" Materialised Both tls: "TLS to the upstream server",
        "Requests are encrypted by OpenSSL, the real bytes are put back for it; responses arrive encrypted and are \
         copied as always.",
        "Use http:// on trusted networks.";
    "UDN204" Materialised Responses: "cache",
        "Cacheable responses are written to the cache; the real bytes are put back for the file.",
        "Set `proxy_cache off` for locations with large bodies that are not worth keeping.";
    "UDN205" Materialised Responses: "store",
        "proxy_store writes responses to files; the real bytes are put back for them.",
        "Set `proxy_store off` where no copy on disk is wanted.";
    "UDN206" Materialised Responses note: "temporary files for slow clients",
        "What a slow client has not taken is written to a temporary file; the real bytes are put back for it.",
        "Set `proxy_max_temp_file_size 0` to keep responses out of files.";
    "UDN207" Materialised Requests: "bodies of requests in files",
        "The bodies of requests are written to files; the real bytes are put back for them.",
        "Set `client_body_in_file_only off`; keep dav_methods to the locations that need them.";
    "UDN208" Materialised Requests note: "large requests in temporary files",
        "Bodies beyond client_body_buffer_size are buffered in a temporary file; the real bytes are put back for it.",
        "Set `proxy_request_buffering off` to have uploads anchored.";
    // 3xx: left alone.
    "UDN301" Passed Both note: "not HTTP",
        "Mail protocols are not HTTP/1; the engine leaves their connections alone.",
        "Nothing to do.";
};
