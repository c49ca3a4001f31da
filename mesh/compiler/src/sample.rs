//! What a decision costs: heads that a listener's routes are for, and the time that they take.

use std::net::Ipv4Addr;

use serde::Serialize;
use underdeck_mesh_policy::form::{HeaderPattern, Listener, PathPattern, Route, StringMatch, StringPattern};

use crate::trial::{Trial, TrialError};

/// What a browser or a client library sends besides.
const USUAL: &str = "user-agent: curl/8.14.1\r\naccept: */*\r\naccept-encoding: gzip, deflate, br\r\n\
                     x-request-id: 5d1f3b9e-6a0c-4f0e-9d0b-0f6f2f6a7c11\r\n";

/// No more routes are timed.
const SAMPLES_MAX: usize = 256;

/// The same head, so many times.
const ROUNDS: u32 = 2000;

/// Nanoseconds for one request, over heads of several routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// Heads that were timed.
    pub requests: usize,
    /// The fastest one.
    pub min_ns: u64,
    /// The one in the middle.
    pub median_ns: u64,
    /// The slowest one.
    pub max_ns: u64,
}

/// A head for each route that one can be written for, spread over all routes.
pub fn samples(listener: &Listener) -> Vec<Vec<u8>> {
    let hosts = listener.virtual_hosts.iter();
    let routes = hosts.filter_map(|host| Some((host.domains.first()?, &host.routes)));
    let all: Vec<_> = routes
        .flat_map(|(domain, routes)| routes.iter().filter_map(|route| head(&domain.replace('*', "any"), route)))
        .collect();
    let step = all.len().div_ceil(SAMPLES_MAX).max(1);
    all.into_iter().step_by(step).collect()
}

fn head(authority: &str, route: &Route) -> Option<Vec<u8>> {
    let matching = &route.matching;
    let path = match &matching.path.pattern {
        PathPattern::Any => "/",
        PathPattern::Exact(path) | PathPattern::Prefix(path) | PathPattern::Segments(path) => path,
        PathPattern::Regex(_) => return None,
    };
    let method = matching.method.as_ref().map_or(Some("GET"), text)?;
    let mut lines = String::new();
    for header in matching.headers.iter().filter(|header| !header.invert && !header.name.starts_with(':')) {
        let value = match &header.pattern {
            HeaderPattern::Present => "1".to_owned(),
            HeaderPattern::Value(value) => text(value)?.to_owned(),
            HeaderPattern::Range { start, .. } => start.to_string(),
        };
        lines += &format!("{}: {value}\r\n", header.name);
    }
    Some(format!("{method} {path} HTTP/1.1\r\nhost: {authority}\r\n{USUAL}{lines}\r\n").into_bytes())
}

fn text(matching: &StringMatch) -> Option<&str> {
    match &matching.pattern {
        StringPattern::Exact(text)
        | StringPattern::Prefix(text)
        | StringPattern::Suffix(text)
        | StringPattern::Contains(text) => Some(text),
        StringPattern::Regex(_) => None,
    }
}

/// Times decisions by `BPF_PROG_TEST_RUN`; None: there is nothing to time.
///
/// # Errors
///
/// If the program does not run.
pub fn time(trial: &mut Trial, heads: &[Vec<u8>]) -> Result<Option<Timing>, TrialError> {
    let mut all = Vec::new();
    for head in heads {
        let tried = trial.run(head, (Ipv4Addr::LOCALHOST, 80), 0, ROUNDS)?;
        all.push(tried.nanoseconds / u64::from(ROUNDS));
    }
    all.sort_unstable();
    let middle = all.get(all.len() / 2).copied();
    Ok(middle.map(|median_ns| Timing { requests: all.len(), min_ns: all[0], median_ns, max_ns: all[all.len() - 1] }))
}
