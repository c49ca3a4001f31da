//! The shipped objects and the examples before the kernel's verifier. Needs root; without it each test says that it was skipped.
#![cfg(feature = "kernel")]

mod common;

use std::path::Path;

use underdeck_protocols::{
    AcceptError, Accepted, CheckError, Direction, EngineKind, Finding, Input, KernelError, Loaded, Program, Role,
    SpanKind, accept, check,
};

/// Objects of examples and tests, compiled by the build script.
macro_rules! object {
    ($name:literal) => {
        include_bytes!(concat!(env!("UNDERDECK_BPF_OUT"), "/", $name, ".bpf.o")).as_slice()
    };
}

/// CAP_BPF or CAP_SYS_ADMIN in the effective set.
fn may_load() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs is mounted");
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("the kernel has capabilities");
    let set = u64::from_str_radix(set.trim(), 16).expect("it is hexadecimal");
    let able = set & (1 << 39 | 1 << 21) != 0;
    if !able {
        eprintln!("SKIPPED: loading eBPF needs CAP_BPF, which this process lacks: run as root");
    }
    able
}

#[test]
fn root_the_verifier_accepts_what_is_shipped() {
    if !may_load() {
        return;
    }
    for name in Program::shipped_names() {
        let elf = Program::shipped_object(name).unwrap();
        if let Err(error) = Loaded::load(elf) {
            panic!("{name}: {error}");
        }
    }
    Loaded::load(object!("netstring")).unwrap();
}

#[test]
fn root_the_verifier_refuses_what_is_unsafe() {
    if !may_load() {
        return;
    }
    for (name, elf) in [("forever", object!("forever")), ("outside", object!("outside"))] {
        match Loaded::load(elf) {
            Err(KernelError::Refused { summary, log }) => {
                println!("{name}: {summary}");
                assert!(!summary.is_empty() && log.contains(summary.split(" (at: ").next().unwrap()));
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn root_checks_find_nothing_in_what_is_shipped() {
    if !may_load() {
        return;
    }
    let response = b"HTTP/1.1 200 OK\r\nServer: a\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\
        Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let input = Input { bytes: response, role: Role::Server, direction: Direction::Tx };
    let report = check(Program::shipped_object("http1").unwrap(), Some(input)).unwrap();
    assert_eq!(report.findings, []);
    assert_eq!(report.name, "http1");
    assert!(report.cuts > 1000);
    let payload: u64 = report.spans.iter().filter(|span| span.kind == SpanKind::Opaque).map(|span| span.bytes).sum();
    assert_eq!(payload, 10);

    let input = Input { bytes: b"5:hello,0:,12:hello, world,", ..input };
    assert_eq!(check(object!("netstring"), Some(input)).unwrap().findings, []);
    assert_eq!(check(Program::shipped_object("lenprefix").unwrap(), None).unwrap().findings, []);
    let input = Input { bytes: b"\x05hello\0\x01!\xffto the end", ..input };
    assert_eq!(check(object!("foreteller"), Some(input)).unwrap().findings, []);
}

#[test]
fn root_checks_find_what_is_wrong() {
    if !may_load() {
        return;
    }
    let findings = check(object!("liar"), None).unwrap().findings;
    assert!(findings.iter().any(|finding| matches!(finding, Finding::Invalid { .. })), "{findings:?}");
    let findings = check(object!("peeker"), None).unwrap().findings;
    assert!(findings.iter().any(|finding| matches!(finding, Finding::BeyondLen { .. })), "{findings:?}");
    assert!(matches!(check(b"no object", None), Err(CheckError::Kernel(KernelError::Object(_)))));
}

#[test]
fn root_an_accepted_object_is_compiled() {
    if !may_load() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("underdeck-accept-{}", std::process::id()));
    let path = folder.join("deep/protocols.accepted");
    let elf = object!("netstring");
    let before = Program::from_object(elf, &Accepted::read(&path).unwrap()).unwrap();
    assert_eq!(before.engine(), EngineKind::Interpreter);
    let digest = accept(elf, &path).unwrap();
    assert_eq!(accept(elf, &path).unwrap(), digest);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{digest}  netstring\n"));
    let after = Program::from_object(elf, &Accepted::read(&path).unwrap()).unwrap();
    let compiled = if cfg!(target_arch = "x86_64") { EngineKind::Jit } else { EngineKind::Interpreter };
    assert_eq!(after.engine(), compiled);
    assert!(matches!(accept(object!("forever"), &path), Err(AcceptError::Kernel(KernelError::Refused { .. }))));
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(!Path::new(&path).exists());
}
