//! Whether the kernel's decision is one that the evaluator allows, and whether the head is edited byte for byte.

use std::collections::BTreeSet;

use underdeck_mesh_compiler::{Program, Tried, abi};
use underdeck_mesh_policy::evaluate::{Decision, Outcome, Request, Upstream};
use underdeck_mesh_policy::form::{HostPort, Listener, Placement, Policy};

pub fn wire(request: &Request) -> Vec<u8> {
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method, request.target);
    if !request.authority.is_empty() {
        text += &format!("Host: {}\r\n", request.authority);
    }
    for (at, (name, value)) in request.headers.iter().enumerate() {
        // Names are matched whatever their case.
        let name = if at % 2 == 1 { name.to_ascii_uppercase() } else { name.clone() };
        text += &format!("{name}: {value}\r\n");
    }
    (text + "\r\n").into_bytes()
}

pub fn agrees(outcome: &Outcome, tried: &Tried, program: &Program, head: &[u8]) -> bool {
    match outcome {
        Outcome::Forward(upstream) if tried.verdict == abi::UD_FORWARD => forwarded(upstream, tried, program, head),
        Outcome::Answer(_) => tried.verdict == abi::UD_ANSWER,
        _ => false,
    }
}

fn forwarded(upstream: &Upstream, tried: &Tried, program: &Program, head: &[u8]) -> bool {
    let sent = tried.edited.as_deref().unwrap_or(head);
    let (path, authority, headers) = seen(sent);
    let mut wanted = upstream.headers.clone();
    wanted.sort_by(|a, b| a.0.cmp(&b.0));
    let action = &program.actions[tried.action as usize];
    program.clusters[tried.cluster as usize] == upstream.cluster
        && path == upstream.path
        && authority == upstream.authority
        && headers == wanted
        && action.response_edits == upstream.response_edits
        && is_edited_in_place(head, sent, upstream)
}

/// Path, authority and headers of a head.
fn seen(head: &[u8]) -> (String, String, Vec<(String, String)>) {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(head).expect("a head");
    assert_eq!(parsed, httparse::Status::Complete(head.len()), "{}", String::from_utf8_lossy(head));
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let all: Vec<_> = request.headers.iter().map(|h| (h.name.to_ascii_lowercase(), text(h.value))).collect();
    let hosts: Vec<_> = all.iter().filter(|(name, _)| name == "host").map(|(_, value)| value.clone()).collect();
    assert_eq!(hosts.len(), 1, "one host: {}", String::from_utf8_lossy(head));
    let mut rest: Vec<_> = all.into_iter().filter(|(name, _)| name != "host").collect();
    rest.sort_by(|a, b| a.0.cmp(&b.0));
    (request.path.unwrap_or("").to_owned(), hosts[0].clone(), rest)
}

/// Every line is one of the lines that came, unchanged and in their order, or `name: value` of the evaluator.
fn is_edited_in_place(came: &[u8], sent: &[u8], upstream: &Upstream) -> bool {
    let lines = |head: &[u8]| -> Vec<String> {
        String::from_utf8_lossy(head).split_inclusive("\r\n").map(str::to_owned).collect()
    };
    let (came, sent) = (lines(came), lines(sent));
    let method = came[0].split(' ').next().unwrap_or("");
    let mut made: BTreeSet<String> =
        upstream.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    made.insert(format!("host: {}\r\n", upstream.authority));
    let mut old = came[1..].iter();
    sent[0] == format!("{method} {} HTTP/1.1\r\n", upstream.path)
        && sent[1..]
            .iter()
            .all(|line| old.clone().any(|of| of == line) && old.any(|of| of == line) || made.contains(line))
}

/// Nothing in it that only Envoy is certain of.
pub fn is_ordinary(request: &Request) -> bool {
    let path = request.target.split('?').next().unwrap_or("");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~:,;=&?@!$*+'()".contains(&byte);
    let names: BTreeSet<_> = request.headers.iter().map(|(name, _)| name).collect();
    let host = request.authority.as_str();
    let path = &["%20", "%C3%A9", "%3a%25"].iter().fold(path.to_owned(), |path, escape| path.replace(escape, ""));
    path.starts_with('/')
        && path.bytes().all(plain)
        && !path.contains("//")
        && !path.contains("/.")
        && !request.target.contains('#')
        && !host.is_empty()
        && host.matches(':').count() <= 1
        && names.len() == request.headers.len()
}

/// Whether the kernel may not leave the request to Envoy.
pub fn is_for_the_kernel(policy: &Policy, listener: &Listener, request: &Request, decision: &Decision) -> bool {
    // A port that must be taken off the authority is Envoy's work.
    let strips = matches!(listener.options.host_port, HostPort::StripMatching | HostPort::StripAny);
    let all_in_kernel = policy.rules.iter().all(|rule| rule.placement() == Placement::Kernel);
    let known = |outcome: &Outcome| matches!(outcome, Outcome::Forward(_) | Outcome::Answer(_));
    !(strips && request.authority.contains(':'))
        && all_in_kernel
        && is_ordinary(request)
        && decision.outcomes.iter().all(|(_, outcome)| known(outcome))
}
