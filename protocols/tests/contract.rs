//! Programs that are not HTTP, and programs that break the contract.

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is compared")]

mod common;

use common::{Connection, cut_requests, shipped};
use underdeck_protocols::{Accepted, EngineKind, Place, Program, Role, UNTIL_CLOSE};

macro_rules! object {
    ($name:literal) => {
        include_bytes!(concat!(env!("UNDERDECK_BPF_OUT"), "/", $name, ".bpf.o")).as_slice()
    };
}

fn interpreted(elf: &[u8]) -> Program {
    let program = Program::from_object(elf, &Accepted::none()).expect("it loads");
    assert_eq!(program.engine(), EngineKind::Interpreter);
    program
}

#[test]
fn frames_with_a_length_in_front() {
    let lenprefix = shipped("lenprefix");
    let stream = b"\0\0\0\x05hello\0\0\0\0\0\0\0\x01!\0\x01\0\0";
    for split in 0..=stream.len() {
        for second in [split, split + 1, split + 2, split + 5] {
            let (cuts, passed) = cut_requests(&lenprefix, stream, &[split, second]);
            assert_eq!(cuts.payload(stream), [b"hello".as_slice(), b"!"], "split at {split} and {second}");
            assert_eq!(cuts.place, Some(Place::Opaque(65536)));
            assert!(!passed);
        }
    }
}

#[test]
fn both_directions_are_apart() {
    let lenprefix = shipped("lenprefix");
    let mut connection = Connection::new(&lenprefix, Role::Server);
    connection.request(b"\0\0\0\x03ab");
    connection.response(b"\0\0\0\x02xy\0");
    connection.request(b"c\0\0");
    assert_eq!(connection.requests().opaque, [4..7]);
    assert_eq!(connection.responses().opaque, [4..6]);
}

#[test]
fn the_example_of_the_guide() {
    let netstring = interpreted(object!("netstring"));
    assert_eq!(netstring.name(), "netstring");
    let stream = b"5:hello,0:,12:hello, world,3:";
    for split in 0..=stream.len() {
        let (cuts, passed) = cut_requests(&netstring, stream, &[split]);
        assert_eq!(cuts.payload(stream), [b"hello".as_slice(), b"hello, world"], "split at {split}");
        assert_eq!(cuts.place, Some(Place::Opaque(3)));
        assert!(!passed);
    }
    for wrong in ["05:hello,", "5hello,", ":hello,", "5:hello;5:", "123456789012345:"] {
        assert!(cut_requests(&netstring, wrong.as_bytes(), &[2]).1, "{wrong}");
    }
}

#[test]
fn payload_that_is_told_of_in_advance() {
    let foreteller = interpreted(object!("foreteller"));
    let stream = b"\x05hello\0\0\x01!\x03abc\xffto the end";
    for split in 0..=stream.len() {
        for second in [split, split + 1, split + 2, split + 7] {
            let (cuts, passed) = cut_requests(&foreteller, stream, &[split, second]);
            assert_eq!(cuts.payload(stream), [b"hello".as_slice(), b"!", b"abc", b"to the end"], "{split}, {second}");
            assert_eq!(cuts.place, Some(Place::Opaque(UNTIL_CLOSE)));
            assert!(!passed);
        }
    }
}

#[test]
fn what_breaks_the_contract_is_a_pass() {
    let liar = interpreted(object!("liar"));
    // Verdict, span: metadata of nothing, metadata beyond len, opaque nothing, no verdict.
    for said in [[1, 0], [1, 3], [2, 0], [0, 1], [5, 1]] {
        let (cuts, passed) = cut_requests(&liar, &said, &[]);
        assert!(passed && cuts.passed == Some(0), "{said:?}: {cuts:?}");
    }
    let full: Vec<u8> = [3, 1].repeat(200);
    let (cuts, passed) = cut_requests(&liar, &full, &[]);
    assert!(passed && cuts.opaque.is_empty(), "asking for more than a window: {cuts:?}");
}

#[test]
fn the_interpreter_stops_what_the_verifier_would_refuse() {
    for elf in [object!("forever"), object!("outside")] {
        let (cuts, passed) = cut_requests(&interpreted(elf), &[7; 100], &[]);
        assert!(passed && cuts.opaque.is_empty(), "{cuts:?}");
    }
}

#[test]
fn objects_that_are_none_are_refused() {
    let http1 = Program::shipped_object("http1").unwrap();
    assert!(Program::from_object(b"", &Accepted::none()).is_err());
    assert!(Program::from_object(&http1[..http1.len() / 2], &Accepted::none()).is_err());
    // Any byte of the object changed: it loads or it does not, and if so it runs in the interpreter, to some end.
    for at in (0..http1.len()).step_by(29) {
        let mut broken = http1.to_vec();
        broken[at] ^= 0x5a;
        if let Ok(program) = Program::from_object(&broken, &Accepted::none()) {
            assert_eq!(program.engine(), EngineKind::Interpreter);
            cut_requests(&program, b"GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", &[9]);
        }
    }
}
