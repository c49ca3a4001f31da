//! Which keywords touch payload.

use super::lex::Line;
use super::table::{List, is_known};
use crate::findings::{Hit, Reach};

/// Sample fetches that read the body of a request, and of a response. Those with a bracket are only meant as calls:
/// the bare word is too common.
const REQUEST_FETCHES: &[&str] = &[
    "req.body",
    "req.body_len",
    "req.body_param",
    "req.payload",
    "req.payload_lv",
    "payload(",
    "payload_lv(",
    "distcc_body(",
    "internal.htx_blk.data",
];
const RESPONSE_FETCHES: &[&str] = &[
    "res.body",
    "res.body_len",
    "res.payload",
    "res.payload_lv",
    "payload(",
    "payload_lv(",
    "distcc_body(",
    "internal.htx_blk.data",
];

/// Filters that only count or limit.
const HARMLESS_FILTERS: &[&str] = &["bwlim-in", "bwlim-out", "fcgi-app", "cache"];
const SEEING_FILTERS: &[&str] = &["spoe", "trace", "opentracing", "opentelemetry", "otel"];

/// What a line of the global section means.
pub(super) fn in_global(line: &Line) -> Option<Hit> {
    let code = match line.word(0) {
        "lua-load" | "lua-load-per-thread" => "UDH001",
        "tune.ssl.ocsp-update.mode" | "ocsp-update.mode" if line.word(1) == "on" => "UDH114",
        "ocsp-update.mode"
        | "ocsp-update.disable"
        | "ocsp-update.mindelay"
        | "ocsp-update.maxdelay"
        | "ocsp-update.httpproxy" => return None,
        keyword if !is_known(List::Global, keyword) => "UDH002",
        _ => return None,
    };
    Some(hit(code, line).reaching(Reach::Everything))
}

/// What is found in a proxy, from its lines in effect. It holds for every route that uses the proxy.
pub(super) fn in_proxy(lines: &[&Line]) -> Vec<Hit> {
    let mut hits: Vec<Hit> = lines.iter().flat_map(|line| in_line(line)).collect();
    hits.extend(switched_on(lines, "http-buffer-request").map(|l| hit("UDH101", l)));
    hits.extend(switched_off(lines, "http-use-htx").map(|l| hit("UDH115", l)));
    hits
}

/// What only counts in a backend, though a frontend can inherit it from its defaults.
pub(super) fn in_backend(lines: &[&Line]) -> Vec<Hit> {
    let mut hits: Vec<Hit> = kept_for_retry(lines).map(|l| hit("UDH108", l)).into_iter().collect();
    for line in lines.iter().filter(|l| matches!(l.word(0), "http-check" | "tcp-check")) {
        hits.extend(health_check(line).then(|| hit("UDH113", line)));
    }
    hits
}

fn in_line(line: &Line) -> Vec<Hit> {
    let mut hits = Vec::new();
    let mut found = |code| hits.push(hit(code, line));
    match line.word(0) {
        "http-request" | "http-response" | "http-after-response" | "tcp-request" | "tcp-response" => {
            action(line, &mut found)
        }
        "filter" => filter(line.word(1), &mut found),
        "compression" => compression(line, &mut found),
        "use-fcgi-app" => found("UDH110"),
        "option" | "no" => {
            let option = if line.word(0) == "no" { line.word(2) } else { line.word(1) };
            if option != "http-buffer-request" && !is_known(List::Option, option) {
                found("UDH002");
            }
        }
        keyword if !is_known(List::Proxy, keyword) => found("UDH002"),
        _ => {}
    }
    if reads(line, REQUEST_FETCHES) && !is_of_response(line) {
        found("UDH102");
    }
    if reads(line, RESPONSE_FETCHES) && !is_of_request(line) {
        found("UDH103");
    }
    hits
}

fn action(line: &Line, found: &mut impl FnMut(&'static str)) {
    let of_response = line.word(0) == "http-response";
    let is_content = matches!(line.word(1), "content" | "connection" | "session");
    let action = if is_content { line.word(2) } else { line.word(1) };
    match action.split('(').next().unwrap_or(action) {
        "wait-for-body" if of_response => found("UDH103"),
        "wait-for-body" => found("UDH101"),
        "cache-store" => found("UDH107"),
        action if action.starts_with("lua.") => found("UDH001"),
        "use-service" if line.words.iter().any(|w| w.starts_with("lua.")) => found("UDH001"),
        action if !is_known(List::Action, action) => found("UDH002"),
        _ => {}
    }
}

fn filter(name: &str, found: &mut impl FnMut(&'static str)) {
    match name {
        "compression" | "comp-res" | "comp-req" => {}
        name if SEEING_FILTERS.contains(&name) => found("UDH106"),
        name if name.starts_with("lua.") => found("UDH001"),
        name if !HARMLESS_FILTERS.contains(&name) => found("UDH003"),
        _ => {}
    }
}

/// The filter does nothing without an algorithm. `direction request` moves the old `algo` to the other side.
fn compression(line: &Line, found: &mut impl FnMut(&'static str)) {
    let compresses = line.words.iter().skip(2).any(|w| w != "identity");
    match line.word(1) {
        "algo" | "algo-res" if compresses => found("UDH104"),
        "algo-req" if compresses => found("UDH105"),
        "direction" if matches!(line.word(2), "request" | "both") => found("UDH105"),
        _ => {}
    }
}

fn health_check(line: &Line) -> bool {
    const TEXTS: &[&str] = &["string", "rstring", "string-lf", "binary", "rbinary", "binary-lf"];
    line.word(1) == "expect" && line.words.iter().skip(2).any(|w| TEXTS.contains(&w.as_str()))
}

/// The line that may leave an option on. `no option` counts only where it is certain.
fn switched_on<'a>(lines: &[&'a Line], option: &str) -> Option<&'a Line> {
    let mut on = None;
    for line in lines {
        if line.word(0) == "option" && line.word(1) == option {
            on = Some(*line);
        } else if line.word(0) == "no" && line.word(2) == option && !line.conditional {
            on = None;
        }
    }
    on
}

fn switched_off<'a>(lines: &[&'a Line], option: &str) -> Option<&'a Line> {
    lines.iter().rev().find(|l| l.word(0) == "no" && l.word(1) == "option" && l.word(2) == option).copied()
}

/// `retry-on`, unless it only retries connections, or a rule without a condition forbids it.
fn kept_for_retry<'a>(lines: &[&'a Line]) -> Option<&'a Line> {
    let forbids = |l: &&&Line| {
        l.word(0) == "http-request" && l.word(1) == "disable-l7-retry" && l.words.len() == 2 && !l.conditional
    };
    if lines.iter().any(|l| forbids(&l)) {
        return None;
    }
    let mut kept = None;
    for line in lines.iter().filter(|l| l.word(0) == "retry-on") {
        let harmless = line.words.iter().skip(1).all(|w| matches!(w.as_str(), "none" | "conn-failure"));
        match (harmless, line.conditional) {
            (false, _) => kept = Some(*line),
            (true, false) => kept = None,
            (true, true) => {}
        }
    }
    kept
}

/// Whether an expression on the line uses one of the fetches.
fn reads(line: &Line, fetches: &[&str]) -> bool {
    let part_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    line.words.iter().skip(1).any(|word| {
        fetches.iter().any(|fetch| {
            word.match_indices(fetch).any(|(at, _)| {
                let before = word[..at].chars().next_back();
                let after = word[at + fetch.len()..].chars().next();
                !before.is_some_and(|c| part_of_name(c) || c == '/')
                    && (fetch.ends_with('(') || !after.is_some_and(part_of_name))
            })
        })
    })
}

fn is_of_response(line: &Line) -> bool {
    matches!(line.word(0), "http-response" | "tcp-response" | "http-after-response" | "http-check" | "tcp-check")
        || (line.word(0) == "stick" && line.word(1) == "store-response")
}

fn is_of_request(line: &Line) -> bool {
    matches!(line.word(0), "http-request" | "tcp-request" | "use_backend" | "use-server" | "redirect" | "balance")
}

pub(super) fn hit(code: &'static str, line: &Line) -> Hit {
    Hit::new(code, &line.at, line.display())
}
