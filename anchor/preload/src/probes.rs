//! Proof that what is received on a listener leaves where the engine can follow it.
//!
//! An upload arrives before the proxy has connected to a server, so that nobody knows yet how its bytes will leave: as
//! they are, or inside HTTP/2 or TLS, where a placeholder cannot be resolved. Uploads are therefore copied at first, and the
//! first bytes of their payload remembered. When a connection to a server that is followed sends payload that begins with the
//! same bytes, the listener's uploads leave as they are, and are anchored from then on. A probe that is lost costs one more copy.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Fewer bytes may be the same by chance.
const LEAST: usize = 16;
const MOST: usize = 64;
/// Uploads that begin before the first of them is sent on. Beyond, the oldest probe gives way.
const PROBES: usize = 16;

/// The first bytes of one upload.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Probe {
    route: u8,
    len: u8,
    bytes: [u8; MOST],
}

struct Table {
    probes: [Option<Probe>; PROBES],
    next: usize,
}

/// Uploads that were copied, and not seen to leave yet.
pub(crate) struct Probes {
    are_some: AtomicBool,
    table: Mutex<Table>,
}

impl Default for Probes {
    fn default() -> Self {
        Self { are_some: AtomicBool::new(false), table: Mutex::new(Table { probes: [None; PROBES], next: 0 }) }
    }
}

impl Probe {
    fn new(route: u8, bytes: &[u8]) -> Option<Self> {
        let len = bytes.len().min(MOST);
        let mut probe = Self { route, len: len as u8, bytes: [0; MOST] };
        probe.bytes[..len].copy_from_slice(&bytes[..len]);
        (len >= LEAST).then_some(probe)
    }

    /// Whether `bytes` and the upload begin alike, as far as both are known.
    fn begins(&self, bytes: &[u8]) -> bool {
        let len = bytes.len().min(self.len.into());
        len >= LEAST && self.bytes[..len] == bytes[..len]
    }
}

impl Probes {
    /// Whether anything is waited for.
    #[inline]
    pub(crate) fn are_some(&self) -> bool {
        self.are_some.load(Relaxed)
    }

    /// An upload on `route` begins with `bytes`. False: they are too few.
    pub(crate) fn remember(&self, route: u8, bytes: &[u8]) -> bool {
        let Some(probe) = Probe::new(route, bytes) else { return false };
        if let Some(mut table) = self.table()
            && !table.probes.contains(&Some(probe))
        {
            let at = table.next;
            table.probes[at] = Some(probe);
            table.next = (at + 1) % PROBES;
            self.are_some.store(true, Relaxed);
        }
        true
    }

    /// The route that is proven by payload that leaves and begins with `bytes`. Where uploads of several routes begin alike, it
    /// proves none.
    pub(crate) fn recognise(&self, bytes: &[u8]) -> Option<u8> {
        let mut table = self.table()?;
        let mut found = table.probes.iter().flatten().filter(|probe| probe.begins(bytes)).map(|probe| probe.route);
        let route = found.next()?;
        let is_sure = found.all(|other| other == route);
        for place in &mut table.probes {
            let is_over = |probe: &Probe| probe.begins(bytes) || is_sure && probe.route == route;
            *place = place.filter(|probe| !is_over(probe));
        }
        self.are_some.store(table.probes.iter().any(Option::is_some), Relaxed);
        is_sure.then_some(route)
    }

    /// None when somebody is at it: another thread, or this one, which a signal has interrupted. Nobody waits.
    fn table(&self) -> Option<MutexGuard<'_, Table>> {
        self.table.try_lock().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use underdeck_stats::{Reason, Role, RoleSnapshot, Snapshot};

    use super::*;
    use crate::socket::Socket;
    use crate::testing::{self, BODY, SENT, body};
    use crate::{engine, routes};

    /// Head and first bytes of an upload to `listener`: what the proxy reads of it, 1 MiB at a time.
    fn upload(listener: &TcpListener) -> (TcpStream, TcpStream, Vec<u8>) {
        let mut client = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
        let (mut near, _) = listener.accept().expect("accepted");
        near.set_nonblocking(true).expect("set");
        let (head, mut had) = (head(), vec![0; 1 << 20]);
        client.write_all(&[head.as_bytes(), &body(0, SENT)].concat()).expect("sent");
        testing::until("all of it has arrived", || testing::unread(&near) == head.len() + SENT);
        let mut n = 0;
        while n < head.len() + SENT {
            n += near.read(&mut had[n..]).expect("there is more");
        }
        had.truncate(n);
        (client, near, had)
    }

    fn head() -> String {
        format!("PUT / HTTP/1.1\r\nHost: it\r\nContent-Length: {BODY}\r\n\r\n")
    }

    fn uploads() -> RoleSnapshot {
        *Snapshot::of_pid(std::process::id()).expect("counters").role(Role::Accepted)
    }

    fn to_servers() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let route = routes::of_listener(listener.as_raw_fd());
        let first = upload(&listener);
        assert!(first.2 == [head().as_bytes(), &body(0, SENT)].concat());
        assert_eq!(uploads().bytes_anchored, 0);
        let known = &engine::running().expect("it runs").routes;
        assert!(known.is_unproven(route));
        // Otherwise than it came: as what a client of another server says.
        let mut other = testing::pair();
        other.0.write_all(&[head().as_bytes(), &body(1, SENT)].concat()).expect("sent");
        assert!(known.is_unproven(route));
        let mut server = testing::pair();
        server.0.write_all(&first.2).expect("sent");
        assert!(known.is_proven(route));
        let second = upload(&listener);
        let anchored = uploads().bytes_anchored;
        assert!(anchored > SENT as u64 / 2, "{anchored}");
        // Of the first one, too, what is still to come.
        { &first.0 }.write_all(&body(SENT, SENT)).expect("sent");
        testing::until("it has arrived", || testing::unread(&first.1) == SENT);
        assert_ne!({ &first.1 }.read(&mut [0; SENT]).expect("there is more"), 0);
        assert!(uploads().bytes_anchored > anchored);
        assert_eq!(uploads().copied_by_reason[Reason::RouteUnproven as usize], 0, "all came with its head");
        // What is seen, though not followed: in clear text, or inside TLS whose library is.
        let mut http2 = testing::pair();
        http2.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("sent");
        drop(http2);
        let mut inside = Socket::new(Role::Connected, 0, Some(Reason::ExitTls));
        inside.sent_bytes(engine::running().expect("it runs"), b"\x16\x03\x01\x02\x00\x01\x00");
        inside.uncount_pass();
        assert!(known.is_proven(route));
        let mut unseen = testing::pair();
        unseen.0.write_all(b"PROXY UNKNOWN\r\n").expect("sent");
        let error = unseen.0.write_all(&second.2).expect_err("nobody follows it");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(!known.is_proven(route) && !known.is_unproven(route));
        drop(unseen);
        let third = upload(&listener);
        assert!(third.2 == first.2);
        server.0.write_all(&third.2).expect("sent");
        assert!(!known.is_proven(route));
    }

    #[test]
    fn uploads_are_anchored_when_one_was_seen_to_leave_and_until_one_leaves_unseen() {
        const NAME: &str = "probes::tests::uploads_are_anchored_when_one_was_seen_to_leave_and_until_one_leaves_unseen";
        testing::alone(NAME, to_servers);
    }

    fn bytes(seed: u8) -> Vec<u8> {
        (0..200).map(|at: u8| at.wrapping_mul(seed)).collect()
    }

    #[test]
    fn what_leaves_as_it_came_is_recognised_once() {
        let probes = Probes::default();
        assert!(!probes.are_some());
        assert_eq!(probes.recognise(&bytes(3)), None);
        assert!(probes.remember(7, &bytes(3)));
        assert!(probes.remember(7, &bytes(5)));
        assert!(probes.are_some());
        assert_eq!(probes.recognise(&bytes(9)), None);
        assert_eq!(probes.recognise(&bytes(3)[1..]), None, "not from its beginning on");
        assert_eq!(probes.recognise(&bytes(3)), Some(7));
        // The route is proven: its other uploads are not waited for.
        assert!(!probes.are_some());
        assert_eq!(probes.recognise(&bytes(5)), None);
    }

    #[test]
    fn a_part_is_enough_unless_it_is_very_short() {
        for (kept, sent) in [(LEAST, 200), (200, LEAST), (20, 30), (200, 200)] {
            let probes = Probes::default();
            assert!(probes.remember(1, &bytes(3)[..kept]));
            assert_eq!(probes.recognise(&bytes(3)[..sent]), Some(1), "{kept} and {sent}");
        }
        let probes = Probes::default();
        assert!(!probes.remember(1, &bytes(3)[..LEAST - 1]));
        assert!(!probes.are_some());
        assert!(probes.remember(1, &bytes(3)));
        assert_eq!(probes.recognise(&bytes(3)[..LEAST - 1]), None);
        let mut other = bytes(3);
        other[MOST - 1] ^= 1;
        assert_eq!(probes.recognise(&other), None);
    }

    #[test]
    fn uploads_of_two_routes_that_begin_alike_prove_neither() {
        let probes = Probes::default();
        for route in [1, 2] {
            assert!(probes.remember(route, &bytes(3)));
        }
        assert!(probes.remember(1, &bytes(5)));
        assert_eq!(probes.recognise(&bytes(3)), None);
        assert_eq!(probes.recognise(&bytes(3)), None, "both are gone");
        assert_eq!(probes.recognise(&bytes(5)), Some(1));
    }

    #[test]
    fn the_oldest_gives_way() {
        let probes = Probes::default();
        for seed in 0..=PROBES as u8 {
            // The same again takes no place.
            for _ in 0..3 {
                assert!(probes.remember(seed, &bytes(2 * seed + 1)));
            }
        }
        assert_eq!(probes.recognise(&bytes(1)), None);
        for seed in 1..=PROBES as u8 {
            assert_eq!(probes.recognise(&bytes(2 * seed + 1)), Some(seed));
        }
        assert!(!probes.are_some());
    }

    #[test]
    fn a_signal_handler_does_not_wait_for_what_it_interrupted() {
        let probes = Probes::default();
        assert!(probes.remember(1, &bytes(3)));
        let interrupted = probes.table();
        assert_eq!(probes.recognise(&bytes(3)), None);
        assert!(probes.remember(1, &bytes(5)));
        drop(interrupted);
        assert_eq!(probes.recognise(&bytes(3)), Some(1));
    }
}
