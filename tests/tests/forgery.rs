//! A hostile backend sends bytes that look like placeholders. With the key that nobody can guess they are bytes like
//! any other; with the guessable key of the feature `test-guessable-key` the same test must fail.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use underdeck_lab::client::{Connection, Pace, Request};
use underdeck_lab::content;
use underdeck_lab::engine as counters;
use underdeck_lab::http::Head;
use underdeck_lab::proxy::{Engine, Mode, Nginx, Proxy, Spec};
use underdeck_lab::{tools, wait};
use underdeck_tests::matrix::engine;

const VICTIM: usize = 4 << 20;
const ATTACK: usize = 3000;
/// Where the forged mark stands in an attacking body.
const AT: usize = 1000;

/// A mark as the library writes it with the guessable key: magic, slot, generation, offset, tag.
fn forged(slot: u16, generation: u16, offset: u64) -> Vec<u8> {
    let mut mark = b"UNDERDCK".to_vec();
    mark.extend_from_slice(&slot.to_le_bytes());
    mark.extend_from_slice(&generation.to_le_bytes());
    mark.extend_from_slice(&(offset as u32).to_le_bytes());
    mark.extend_from_slice(&offset.to_le_bytes());
    mark
}

fn attack_body(slot: u16, generation: u16, offset: u64) -> Vec<u8> {
    let mut body = content::bytes(77, 0, ATTACK);
    let mark = forged(slot, generation, offset);
    body[AT..AT + mark.len()].copy_from_slice(&mark);
    body
}

/// Serves `/victim` and `/attack-SLOT-GENERATION-OFFSET`; its threads end with their connections.
fn hostile_backend() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let addr = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    addr
}

fn serve(mut stream: TcpStream) {
    let (mut request, mut block) = (Vec::new(), [0; 4096]);
    let head = loop {
        let Ok(n @ 1..) = stream.read(&mut block) else { return };
        request.extend_from_slice(&block[..n]);
        if let Ok(Some(head)) = Head::find(&request) {
            break head;
        }
    };
    let numbers: Vec<u64> = head.start[1].split('-').skip(1).filter_map(|n| n.parse().ok()).collect();
    let body = match numbers[..] {
        [slot, generation, offset] => attack_body(slot as u16, generation as u16, offset),
        _ => content::bytes(9, 0, VICTIM),
    };
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    // In two writes, so that the attacking bytes do not come with the head. The proxy may be gone by then.
    let _ = stream.write_all(answer.as_bytes());
    let _ = stream.write_all(&body);
}

fn ask(proxy: &Proxy, target: &str, pace: &Pace) -> Connection {
    let mut client = Connection::open(&proxy.front().expect("a front"), pace).expect("connected");
    client.send(&Request { close: true, ..Request::get(target) }).expect("sent");
    client
}

fn body_of(client: &mut Connection) -> Vec<u8> {
    let (bytes, _) = client.rest();
    let head = Head::find(&bytes).ok().flatten().map_or(0, |head| head.raw.len());
    bytes[head..].to_vec()
}

/// Attacks a proxy while a victim's payload is anchored; returns what was not delivered as sent.
fn attack(engine: Engine) -> Vec<String> {
    // Nothing goes to temp files, so that the payload of a client that does not read stays anchored.
    let spec =
        Spec::Nginx(Nginx { keepalive: false, server: "proxy_max_temp_file_size 0;".to_owned(), ..Nginx::large() });
    let proxy = Proxy::start(&spec, &Mode::Underdeck(engine), hostile_backend()).expect("a proxy");
    let pace = Pace { receive_buffer: Some(4096), deadline: Duration::from_secs(40), ..Pace::default() };
    let mut victim = ask(&proxy, "/victim", &pace);
    let anchored = || counters::snapshot(&proxy).filter(|it| it.anchors_open > 0 && it.bytes_held > 0);
    wait::until("the victim's payload is anchored", Duration::from_secs(30), anchored).expect("anchored");
    let mut wrong = Vec::new();
    for slot in 0..3 {
        for generation in 0..4 {
            for offset in [0, 512, 65_536, 131_072] {
                let target = format!("/attack-{slot}-{generation}-{offset}");
                let got = body_of(&mut ask(&proxy, &target, &Pace::default()));
                let sent = attack_body(slot, generation, offset);
                if got != sent {
                    let at = got.iter().zip(&sent).position(|(a, b)| a != b);
                    wrong.push(format!("{target}: {} of {ATTACK} bytes, first wrong {at:?}", got.len()));
                }
            }
        }
    }
    let got = body_of(&mut victim);
    if got != content::bytes(9, 0, VICTIM) {
        wrong.push(format!("the victim got {} of {VICTIM} bytes, or wrong ones", got.len()));
    }
    if let Some(it) = counters::snapshot(&proxy).filter(|it| it.resets + it.panics > 0) {
        wrong.push(format!("{} resets, {} panics", it.resets, it.panics));
    }
    proxy.stop().expect("nothing is left");
    wrong
}

/// Builds the library with the guessable key, apart from every other build.
fn guessable() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guessable");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "-p", "underdeck-anchor", "--features", "test-guessable-key", "--target-dir"])
        .arg(&target)
        .current_dir(tools::root())
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join("debug/libunderdeck_anchor.so")
}

#[test]
fn forged_marks_are_bytes_like_any_other() {
    let Some(engine) = engine() else { return };
    assert_eq!(attack(engine), Vec::<String>::new());
}

#[test]
fn with_a_guessable_key_the_same_attack_is_noticed() {
    let Some(engine) = engine() else { return };
    let wrong = attack(Engine { library: guessable(), ..engine });
    assert!(!wrong.is_empty(), "forged marks went through unnoticed: then the tests prove nothing");
    eprintln!("with the guessable key: {wrong:#?}");
}
