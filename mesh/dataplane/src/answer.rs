//! Answers that need no upstream.

use std::net::IpAddr;

use underdeck_mesh_policy::evaluate::{Answer, Outcome, Request, Sender, evaluate};

use crate::message::RequestHead;
use crate::policies::Policies;

/// What the policies answer to a request that the kernel decided to be answered, by the action's number.
pub(crate) fn of_policy(
    policies: &Policies,
    action: u32,
    head: &RequestHead,
    sender: Sender,
    destination: (IpAddr, u16),
) -> Option<Answer> {
    let host = head.headers.iter().find(|(name, _)| name == "host");
    let request = Request {
        method: head.method.clone(),
        target: head.target.clone(),
        authority: host.map_or_else(String::new, |(_, value)| value.clone()),
        headers: head.headers.iter().filter(|(name, _)| name != "host").cloned().collect(),
        source: sender,
        destination,
    };
    let decision = evaluate(&policies.policy, &policies.listener, &request);
    let mut answers = decision.outcomes.into_iter().filter_map(|(_, outcome)| match outcome {
        Outcome::Answer(answer) => Some(answer),
        _ => None,
    });
    // Where chance decides between a fault and a redirect, the fault comes first.
    let name = policies.program.actions.get(action as usize).map_or("", |action| action.name.as_str());
    if name.ends_with(": abort") { answers.next() } else { answers.next_back() }
}

/// What Envoy says if an upstream does not answer.
pub(crate) fn unavailable(why: &str) -> Answer {
    Answer {
        status: 503,
        headers: vec![("content-type".into(), "text/plain".into())],
        body: format!("upstream connect error or disconnect/reset before headers. reset reason: {why}"),
    }
}

/// What Envoy says if a body makes no sense.
pub(crate) const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 11\r\nconnection: close\r\n\r\nBad Request";

/// The bytes of an answer; `no_body`: to a HEAD.
pub(crate) fn write(answer: &Answer, no_body: bool) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {} {}\r\n", answer.status, reason(answer.status));
    for (name, value) in &answer.headers {
        out += &format!("{name}: {value}\r\n");
    }
    if answer.status != 204 && answer.status != 304 {
        out += &format!("content-length: {}\r\n", answer.body.len());
    }
    out += "\r\n";
    if !no_body {
        out += &answer.body;
    }
    out.into_bytes()
}

/// RFC 9110 section 15.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    }
}
