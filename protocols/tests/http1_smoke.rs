//! later
use underdeck_protocols::*;
#[test]
fn smoke() {
    let p = Program::shipped("http1").unwrap().unwrap();
    let mut s = State::new();
    let mut c = Cursor::new();
    let mut r = Cursor::new();
    let req = b"GET /a?b=c HTTP/1.1\r\nHost: a\r\nUser-Agent: x y z\r\n\r\n";
    assert_eq!(c.next(&p, &mut s, Direction::Rx, Role::Server, req), (SpanKind::Metadata, req.len()));
    let head = b"HTTP/1.1 200 OK\r\nServer: nginx/1.22\r\nContent-Type: text/html\r\nContent-Length: 17\r\n\r\n";
    let mut all = head.to_vec();
    all.extend_from_slice(b"01234567890123456HTTP/1.1");
    assert_eq!(r.next(&p, &mut s, Direction::Tx, Role::Server, &all), (SpanKind::Metadata, head.len()));
    assert_eq!(r.place(), Place::Opaque(17));
    assert_eq!(r.next(&p, &mut s, Direction::Tx, Role::Server, &all[head.len()..]), (SpanKind::Opaque, 17));
    assert!(!s.is_passed());
}
