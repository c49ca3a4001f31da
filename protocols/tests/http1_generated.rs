//! Generated messages, well formed and not, against llhttp (in node) and httparse; and at every split.

mod common;

use std::io::Write;
use std::ops::Range;
use std::process::{Command, Stdio};

use common::{cut_requests, cut_responses, shipped};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use underdeck_protocols::Program;

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

fn field() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[A-Za-z][A-Za-z-]{0,14}: [a-z0-9 ;=/]{0,30}\r\n"
            .prop_filter("framing comes on purpose only", |line| {
                let line = line.to_lowercase();
                !["content-length", "transfer-encoding", "upgrade", "connection"].iter().any(|name| line.starts_with(name))
            }),
        1 => (1..600usize).prop_map(|n| format!("Cookie: {}\r\n", "c".repeat(n))),
    ]
}

/// Field lines that frame, and the content that goes with them.
fn framing() -> impl Strategy<Value = (String, String)> {
    let content = "[ -~\r\n]{0,40}";
    prop_oneof![
        content.prop_map(|content| (format!("Content-Length: {}\r\n", content.len()), content)),
        Just((String::new(), String::new())),
        (
            prop::collection::vec("[ -~]{1,20}", 0..4),
            "(;[a-z]{1,4}(=[a-z]{1,4}|=\"[a-z0-9]{0,4}\")?)?",
            prop::collection::vec(field(), 0..2)
        )
            .prop_map(|(chunks, extension, trailers)| {
                let chunks: String =
                    chunks.iter().map(|data| format!("{:x}{extension}\r\n{data}\r\n", data.len())).collect();
                ("Transfer-Encoding: chunked\r\n".into(), format!("{chunks}0\r\n{}\r\n", trailers.concat()))
            }),
    ]
}

fn message(start: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    (start, prop::collection::vec(field(), 0..5), framing(), prop::collection::vec(field(), 0..3)).prop_map(
        |(start, before, (framing, content), after)| {
            format!("{start}{}{framing}{}\r\n{content}", before.concat(), after.concat())
        },
    )
}

fn request() -> impl Strategy<Value = String> {
    message("(GET|POST|PUT|DELETE|OPTIONS) /[a-z0-9/?=&%]{0,30} HTTP/1\\.1\r\n")
}

fn response() -> impl Strategy<Value = String> {
    message("HTTP/1\\.1 (200|201|206|404|502) [A-Za-z ]{0,12}\r\n")
}

/// A message with some bytes replaced, inserted or removed: mostly by what framing is sensitive to.
fn spoilt(message: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => prop::sample::select(b"\r\n :,;\t0159afx\0-+".to_vec()), 1 => any::<u8>()];
    let change = (any::<prop::sample::Index>(), 0..3u8, byte);
    (message, prop::collection::vec(change, 0..3)).prop_map(|(message, changes)| {
        let mut bytes = message.into_bytes();
        for (index, what, byte) in changes {
            let at = index.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
            if bytes.is_empty() {
                bytes.push(byte);
            }
        }
        bytes
    })
}

#[derive(Clone, Debug)]
struct Case {
    is_response: bool,
    bytes: Vec<u8>,
}

fn case() -> impl Strategy<Value = Case> {
    prop_oneof![
        spoilt(request()).prop_map(|bytes| Case { is_response: false, bytes }),
        spoilt(response()).prop_map(|bytes| Case { is_response: true, bytes }),
    ]
}

fn cut(http1: &Program, case: &Case, splits: &[usize]) -> (Vec<Range<usize>>, bool) {
    let (cuts, passed) = if case.is_response {
        cut_responses(http1, GET, &case.bytes, splits)
    } else {
        cut_requests(http1, &case.bytes, splits)
    };
    (cuts.opaque, passed)
}

proptest! {
    #![proptest_config(Config::with_cases(300))]

    #[test]
    fn splits_do_not_matter(case in case(), more in prop::collection::vec(0..900usize, 0..8)) {
        let http1 = shipped("http1");
        let whole = cut(&http1, &case, &[]);
        for split in 0..case.bytes.len() {
            prop_assert_eq!(&cut(&http1, &case, &[split]), &whole, "split at {}", split);
        }
        prop_assert_eq!(&cut(&http1, &case, &more), &whole);
        let every: Vec<usize> = (0..case.bytes.len()).collect();
        prop_assert_eq!(&cut(&http1, &case, &every), &whole, "byte by byte");
    }

    #[test]
    fn engines_agree(case in case()) {
        let plain = Program::plain(Program::shipped_object("http1").unwrap()).unwrap();
        prop_assert_eq!(cut(&plain, &case, &[]), cut(&shipped("http1"), &case, &[]));
    }

    /// Where there is payload, httparse has read the head before it, and the head says so.
    #[test]
    fn httparse_agrees(case in case()) {
        let (opaque, _) = cut(&shipped("http1"), &case, &[]);
        let Some(first) = opaque.first() else { return Ok(()) };
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let (head, fields) = if case.is_response {
            let mut response = httparse::Response::new(&mut fields);
            (response.parse(&case.bytes), &*response.headers)
        } else {
            let mut request = httparse::Request::new(&mut fields);
            (request.parse(&case.bytes), &*request.headers)
        };
        let Ok(httparse::Status::Complete(head)) = head else { panic!("httparse says {head:?}, http1 {opaque:?}") };
        let value = |name: &str| {
            fields.iter().find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| String::from_utf8_lossy(field.value))
        };
        match (value("content-length"), value("transfer-encoding")) {
            (Some(length), None) => {
                let length: usize = length.trim().parse().unwrap();
                prop_assert_eq!(first.clone(), head..(head + length).min(case.bytes.len()));
            }
            (None, Some(coding)) => {
                prop_assert!(coding.trim().eq_ignore_ascii_case("chunked"));
                let Ok(httparse::Status::Complete((at, size))) = httparse::parse_chunk_size(&case.bytes[head..]) else {
                    panic!("httparse sees no chunk, http1 {opaque:?}");
                };
                prop_assert_eq!(first.clone(), head + at..(head + at + size as usize).min(case.bytes.len()));
            }
            (None, None) if case.is_response => prop_assert_eq!(first.clone(), head..case.bytes.len()),
            other => panic!("{other:?} frames nothing, http1 {opaque:?}"),
        }
    }
}

/// What llhttp says of each case: an error code, and its body bytes.
fn llhttp(cases: &[Case]) -> Option<Vec<(Option<String>, Vec<u8>)>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/llhttp.js");
    let child =
        Command::new("node").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            eprintln!("SKIPPED: the llhttp oracle needs node in PATH (apt-get install nodejs): {error}");
            return None;
        }
    };
    let mut input = Vec::new();
    for case in cases {
        input.push(u8::from(case.is_response));
        input.extend((case.bytes.len() as u32).to_le_bytes());
        input.extend(&case.bytes);
    }
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(answer).collect())
}

/// `- 61626a` or `HPE_X 61`.
fn answer(line: &str) -> (Option<String>, Vec<u8>) {
    let (error, body) = line.split_once(' ').unwrap();
    let bytes =
        body.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
    ((error != "-").then(|| error.to_string()), bytes.collect())
}

#[test]
fn llhttp_agrees() {
    const CASES: usize = 6000;
    let mut runner = TestRunner::new(Config::default());
    let cases: Vec<Case> = (0..CASES).map(|_| case().new_tree(&mut runner).unwrap().current()).collect();
    let Some(answers) = llhttp(&cases) else { return };
    assert_eq!(answers.len(), CASES);
    let http1 = shipped("http1");
    let (mut with_payload, mut with_error, mut passes) = (0, 0, 0);
    for (case, (error, body)) in cases.iter().zip(answers) {
        let (opaque, passed) = cut(&http1, case, &[]);
        let text = String::from_utf8_lossy(&case.bytes);
        with_payload += usize::from(!opaque.is_empty());
        with_error += usize::from(error.is_some());
        passes += usize::from(passed);
        if error.as_deref() == Some("HPE_INVALID_METHOD") {
            // llhttp has a list of methods; RFC 9112 frames them all alike.
            continue;
        }
        // All that is opaque is body, byte for byte; and all of the body is opaque, unless one of both gave up.
        let payload: Vec<u8> = opaque.into_iter().flat_map(|range| case.bytes[range].to_vec()).collect();
        assert!(body.starts_with(&payload), "llhttp {error:?} {body:?}, http1 {payload:?} {passed}: {text:?}");
        assert!(passed || error.is_some() || body == payload, "llhttp {body:?}, http1 {payload:?}: {text:?}");
    }
    println!("{with_payload} with payload, {with_error} with errors, {passes} passed, of {CASES}");
    assert!(with_payload > CASES / 4 && with_error > CASES / 20, "the cases are worth something");
}
