//! One test for each TCP state and each situation of the queues: frozen, thawed, and used to its end.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use common::moving::Mover;
use common::{Cable, content, eventually, queued, state};
use underdeck_handoff_tcp::{Snapshot, TcpState};

const BIG: usize = 300_000;

/// Runs a test over both address families.
fn on_both(test: impl Fn(&Mover, TcpStream, TcpStream)) {
    let mover = Mover::new();
    for v6 in [false, true] {
        let (client, server) = mover.cable.connect(v6);
        test(&mover, client, server);
    }
    assert!(mover.steer.rules().is_empty() && mover.ears.rules().is_empty());
}

/// Writes without waiting, until nothing more goes in or all is written.
fn stuff(mut stream: &TcpStream, bytes: &[u8]) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(wrote) => sent += wrote,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

/// Writes and gives the window time to close.
fn stuff_until_full(stream: &TcpStream, bytes: &[u8]) -> usize {
    let (mut sent, mut quiet, mut last) = (0, 0, None);
    eventually("the window is closed", || {
        sent += stuff(stream, &bytes[sent..]);
        let now = Some((sent, queued(stream)));
        quiet = if last == now { quiet + 1 } else { 0 };
        last = now;
        quiet > 3000
    });
    sent
}

fn expect(mut stream: &TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == bytes, "a byte differs");
}

fn expect_end(mut stream: &TcpStream) {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "{} bytes before the end of the stream", rest.len());
}

fn ping(mut from: &TcpStream, to: &TcpStream) {
    from.write_all(b"ping").unwrap();
    expect(to, b"ping");
}

fn is_state(stream: &TcpStream, wanted: TcpState) {
    eventually(&wanted.to_string(), || state(stream) == wanted as u8);
}

#[test]
fn established_and_empty() {
    on_both(|mover, client, server| {
        let (server, snapshot) = mover.go(server);
        assert_eq!(snapshot.state(), TcpState::Established);
        assert!(snapshot.unread().is_empty() && snapshot.unacknowledged().is_empty() && snapshot.unsent().is_empty());
        ping(&client, &server);
        ping(&server, &client);
    });
}

#[test]
fn unread_input() {
    on_both(|mover, client, server| {
        let bytes = content(40_000, 3);
        let sent = stuff(&client, &bytes);
        eventually("it has arrived", || queued(&server).0 == sent);
        let (server, snapshot) = mover.go(server);
        assert_eq!(snapshot.unread(), &bytes[..sent]);
        eventually("it is there again", || queued(&server).0 == sent);
        expect(&server, &bytes[..sent]);
        ping(&client, &server);
        ping(&server, &client);
    });
}

#[test]
fn unacknowledged_output() {
    on_both(|mover, client, mut server| {
        mover.deafen(&client);
        server.write_all(&[7; 9000]).unwrap();
        eventually("it is sent", || queued(&server) == (0, 9000, 0));
        let (server, snapshot) = mover.go(server);
        mover.hear(&client);
        assert_eq!((snapshot.unacknowledged().len(), snapshot.unsent().len()), (9000, 0));
        expect(&client, &[7; 9000]);
        ping(&client, &server);
        eventually("all is acknowledged", || queued(&server).1 == 0);
        ping(&server, &client);
    });
}

#[test]
fn output_of_which_a_part_of_a_segment_is_acknowledged() {
    on_both(|mover, mut client, mut server| {
        mover.deafen(&client);
        let bytes = content(1000, 5);
        server.write_all(&bytes).unwrap();
        eventually("it is sent", || queued(&server) == (0, 1000, 0));
        // As after another segmentation of the same bytes: the client has the first four, and says so.
        put_received(&client, &bytes[..4]);
        client.write_all(b"!").unwrap();
        eventually("a part is acknowledged", || queued(&server) == (1, 996, 0));
        let (server, snapshot) = mover.go(server);
        mover.hear(&client);
        assert_eq!(snapshot.unacknowledged(), &bytes[4..]);
        expect(&server, b"!");
        expect(&client, &bytes);
        ping(&client, &server);
        ping(&server, &client);
    });
}

/// Puts bytes behind what a socket has received.
fn put_received(to: &TcpStream, bytes: &[u8]) {
    const TCP_RECV_QUEUE: i32 = 1;
    for (option, value) in [(libc::TCP_REPAIR, 1), (libc::TCP_REPAIR_QUEUE, TCP_RECV_QUEUE)] {
        set(to, option, value);
    }
    (&mut &*to).write_all(bytes).unwrap();
    set(to, libc::TCP_REPAIR, 0);
}

fn set(socket: &TcpStream, option: i32, value: i32) {
    // SAFETY: the kernel reads one integer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as u32,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn unsent_output() {
    on_both(|mover, client, server| {
        mover.deafen(&client);
        let bytes = content(BIG, 4);
        let sent = stuff(&server, &bytes);
        eventually("some is sent", || queued(&server).1 > queued(&server).2);
        let (server, snapshot) = mover.go(server);
        mover.hear(&client);
        assert!(!snapshot.unacknowledged().is_empty() && !snapshot.unsent().is_empty(), "{snapshot:?}");
        expect(&client, &bytes[..sent]);
        ping(&client, &server);
        ping(&server, &client);
    });
}

#[test]
fn the_peers_window_is_closed() {
    on_both(|mover, client, server| {
        let bytes = content(64 << 20, 5);
        let sent = stuff_until_full(&server, &bytes);
        let (server, snapshot) = mover.go(server);
        assert!(!snapshot.unsent().is_empty(), "{snapshot:?}");
        expect(&client, &bytes[..sent]);
        ping(&client, &server);
        ping(&server, &client);
    });
}

#[test]
fn our_window_is_closed() {
    on_both(|mover, client, server| {
        let bytes = content(64 << 20, 6);
        let sent = stuff_until_full(&client, &bytes);
        let (server, snapshot) = mover.go(server);
        assert!(!snapshot.unread().is_empty(), "{snapshot:?}");
        expect(&server, &bytes[..sent]);
        ping(&client, &server);
        ping(&server, &client);
    });
}

#[test]
fn close_wait_keeps_its_end_of_stream() {
    on_both(|mover, client, server| {
        client.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::CloseWait);
        let (mut server, snapshot) = mover.go(server);
        assert!(snapshot.peer_closed());
        is_state(&server, TcpState::CloseWait);
        expect_end(&server);
        server.write_all(b"late").unwrap();
        expect(&client, b"late");
        drop(server);
        expect_end(&client);
    });
}

#[test]
fn close_wait_with_unread_input_and_unsent_output() {
    on_both(|mover, mut client, server| {
        let (up, down) = (content(20_000, 7), content(8 << 20, 8));
        client.write_all(&up).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::CloseWait);
        let sent = stuff(&server, &down);
        let (server, snapshot) = mover.go(server);
        assert_eq!(snapshot.unread(), up);
        is_state(&server, TcpState::CloseWait);
        expect(&server, &up);
        expect_end(&server);
        expect(&client, &down[..sent]);
        drop(server);
        expect_end(&client);
    });
}

#[test]
fn fin_wait_2() {
    on_both(|mover, mut client, server| {
        server.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::FinWait2);
        let (server, _) = mover.go(server);
        is_state(&server, TcpState::FinWait2);
        expect_end(&client);
        client.write_all(b"late").unwrap();
        expect(&server, b"late");
        drop(client);
        expect_end(&server);
    });
}

#[test]
fn fin_wait_1_with_the_fin_under_way() {
    on_both(|mover, mut client, mut server| {
        mover.deafen(&client);
        server.write_all(b"last").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::FinWait1);
        eventually("the FIN is sent", || queued(&server).2 == 0);
        let (server, snapshot) = mover.go(server);
        mover.hear(&client);
        assert_eq!(snapshot.unacknowledged(), b"last");
        expect(&client, b"last");
        expect_end(&client);
        client.write_all(b"late").unwrap();
        expect(&server, b"late");
        is_state(&server, TcpState::FinWait2);
        drop(client);
        expect_end(&server);
    });
}

#[test]
fn fin_wait_1_with_the_fin_behind_unsent_data() {
    on_both(|mover, mut client, server| {
        let bytes = content(64 << 20, 9);
        let sent = stuff_until_full(&server, &bytes);
        server.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::FinWait1);
        let (server, snapshot) = mover.go(server);
        assert!(!snapshot.unsent().is_empty(), "{snapshot:?}");
        expect(&client, &bytes[..sent]);
        expect_end(&client);
        client.write_all(b"late").unwrap();
        expect(&server, b"late");
        is_state(&server, TcpState::FinWait2);
    });
}

#[test]
fn last_ack() {
    on_both(|mover, client, mut server| {
        client.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::CloseWait);
        mover.deafen(&client);
        server.write_all(b"last").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::LastAck);
        let (server, snapshot) = mover.go(server);
        mover.hear(&client);
        assert_eq!(snapshot.unacknowledged(), b"last");
        expect(&client, b"last");
        expect_end(&client);
        is_state(&server, TcpState::Closed);
    });
}

#[test]
fn last_ack_behind_unsent_data() {
    on_both(|mover, client, server| {
        client.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::CloseWait);
        let bytes = content(64 << 20, 10);
        let sent = stuff_until_full(&server, &bytes);
        server.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::LastAck);
        let (server, _) = mover.go(server);
        expect(&client, &bytes[..sent]);
        expect_end(&client);
        is_state(&server, TcpState::Closed);
    });
}

#[test]
fn closing() {
    on_both(|mover, client, server| {
        // Both sides close at once: the client hears nothing of the server's FIN.
        mover.deafen(&client);
        server.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::FinWait1);
        client.shutdown(Shutdown::Write).unwrap();
        is_state(&server, TcpState::Closing);
        let (server, snapshot) = mover.go(server);
        mover.hear(&client);
        assert_eq!(snapshot.state(), TcpState::Closing);
        expect_end(&client);
        expect_end(&server);
        eventually("it is closed", || matches!(state(&server), 6 | 7));
    });
}

/// The client has all of it and has said so, but the server has not heard it.
fn unheard(mover: &Mover, client: &TcpStream, mut server: &TcpStream, bytes: &[u8]) {
    let flow = mover.flow(server);
    // A block spares packets that have a source rule, even if it changes nothing.
    mover.steer.rewrite_source(&flow, flow.local).unwrap();
    mover.steer.block(&flow).unwrap();
    let before = queued(client).0;
    server.write_all(bytes).unwrap();
    eventually("the client has it", || queued(client).0 == before + bytes.len());
    assert_eq!(queued(server).1, bytes.len());
}

/// Acknowledgements that were lost are asked for at once, and not after a retransmission time-out.
#[test]
fn lost_acknowledgements_are_asked_for() {
    on_both(|mover, client, mut server| {
        for half_closed in [false, true] {
            if half_closed {
                client.shutdown(Shutdown::Write).unwrap();
                is_state(&server, TcpState::CloseWait);
            }
            // More often than a peer answers window probes.
            let mut at_once = 0;
            for _ in 0..5 {
                unheard(mover, &client, &server, &[7; 9000]);
                let (moved, snapshot) = mover.go(server);
                assert_eq!(snapshot.unacknowledged().len(), 9000);
                eventually("all is acknowledged", || queued(&moved).1 == 0);
                at_once += u32::from(common::retransmissions(&moved) == 0);
                expect(&client, &[7; 9000]);
                server = moved;
            }
            // Established connections have a window probe, too. A machine may be too busy for a second now and then.
            assert!(!half_closed || at_once >= 2, "{at_once}");
        }
    });
}

#[test]
fn lost_acknowledgements_are_asked_for_after_a_rollback() {
    let cable = Cable::new();
    // Nothing is sent again by the kernel.
    cable.server.run("sysctl -qw net.ipv4.tcp_early_retrans=0");
    cable.server.run("ip route change 10.0.0.0/24 dev eth0 src 10.0.0.2 rto_min 100s");
    let mover = Mover::with(cable);
    let (client, mut server) = mover.cable.connect(false);
    for half_closed in [false, true] {
        if half_closed {
            client.shutdown(Shutdown::Write).unwrap();
            is_state(&server, TcpState::CloseWait);
        }
        unheard(&mover, &client, &server, &[7; 9000]);
        let flow = mover.flow(&server);
        let frozen = underdeck_handoff_tcp::freeze(server.into(), b"").unwrap();
        mover.steer.remove(&flow).unwrap();
        server = common::stream(mover.cable.server.on(|| frozen.resume()).unwrap());
        eventually("all is acknowledged", || queued(&server).1 == 0);
        expect(&client, &[7; 9000]);
    }
    // A FIN that waits for its acknowledgement, too.
    let flow = mover.flow(&server);
    mover.steer.rewrite_source(&flow, flow.local).unwrap();
    mover.steer.block(&flow).unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    expect_end(&client);
    is_state(&server, TcpState::LastAck);
    let frozen = underdeck_handoff_tcp::freeze(server.into(), b"").unwrap();
    mover.steer.remove(&flow).unwrap();
    server = common::stream(mover.cable.server.on(|| frozen.resume()).unwrap());
    is_state(&server, TcpState::Closed);
}

/// What was negotiated is restored, and nothing else.
#[test]
fn every_combination_of_negotiated_options() {
    for bits in 0..8 {
        let (sack, timestamps, scaling) = (bits & 1, bits >> 1 & 1, bits >> 2 & 1);
        let cable = Cable::new();
        cable.client.run(&format!(
            "sysctl -qw net.ipv4.tcp_sack={sack} net.ipv4.tcp_timestamps={timestamps} \
             net.ipv4.tcp_window_scaling={scaling}"
        ));
        let mover = Mover::with(cable);
        let (client, server) = mover.cable.connect(bits % 2 == 0);
        let size = common::segment_size(&server);
        let (server, snapshot) = mover.go(server);
        let negotiated = snapshot.negotiated();
        assert_eq!(
            (negotiated.sack, negotiated.timestamp.is_some(), negotiated.window_scale.is_some()),
            (sack == 1, timestamps == 1, scaling == 1)
        );
        // The kernel calls a scale of 0 negotiated, which comes to the same.
        assert_eq!(common::options(&server) & 3, (timestamps | sack << 1) as u8, "SACK and timestamps");
        if scaling == 0 {
            assert_eq!(common::info(&server)[6], 0, "no shift in either direction");
        }
        assert!(common::segment_size(&server) + 12 >= size, "{} of {size}", common::segment_size(&server));
        exchange(&client, &server);
        let (server, again) = mover.go(server);
        assert_eq!(again.negotiated().sack, negotiated.sack);
        assert_eq!(again.negotiated().mss, negotiated.mss);
        exchange(&client, &server);
    }
}

/// Enough in both directions for windows, acknowledgements and losses of all kinds.
fn exchange(client: &TcpStream, server: &TcpStream) {
    let bytes = content(2_000_000, 11);
    std::thread::scope(|scope| {
        for (mut from, to) in [(client, server), (server, client)] {
            let bytes = &bytes;
            scope.spawn(move || from.write_all(bytes).unwrap());
            scope.spawn(move || expect(to, bytes));
        }
    });
}

#[test]
fn the_first_flight_has_segments_of_full_size() {
    on_both(|mover, client, server| {
        let size = common::segment_size(&server);
        assert!(size > 1400, "{size}");
        let (server, _) = mover.go(server);
        assert_eq!(common::segment_size(&server), size);
        ping(&server, &client);
    });
}

#[test]
fn a_maximum_segment_size_of_536() {
    let cable = Cable::new();
    cable.client.run("ip route change 10.0.0.0/24 dev eth0 advmss 536");
    let mover = Mover::with(cable);
    let (client, server) = mover.cable.connect(false);
    let size = common::segment_size(&server);
    assert!(size <= 536, "{size}");
    let (server, snapshot) = mover.go(server);
    assert_eq!(snapshot.negotiated().mss, 536);
    assert_eq!(common::segment_size(&server), size);
    exchange(&client, &server);
}

#[test]
fn ipv4_through_a_dual_stack_listener() {
    let mover = Mover::new();
    let address: SocketAddr = "[::]:81".parse().unwrap();
    let listener = mover.cable.server.on(|| std::net::TcpListener::bind(address)).unwrap();
    let client = mover.cable.client.on(|| TcpStream::connect("10.0.0.2:81")).unwrap();
    let (server, _) = listener.accept().unwrap();
    let flow =
        underdeck_handoff_steer::Flow { local: "10.0.0.2:81".parse().unwrap(), peer: client.local_addr().unwrap() };
    mover.steer.block(&flow).unwrap();
    let frozen = underdeck_handoff_tcp::freeze(server.into(), b"").unwrap();
    let snapshot = Snapshot::decode(&frozen.snapshot().encode()).unwrap();
    assert_eq!((snapshot.local(), snapshot.peer()), (flow.local, flow.peer));
    frozen.release();
    let thawing = mover.cable.server.on(|| underdeck_handoff_tcp::thaw(&snapshot, snapshot.local())).unwrap();
    mover.steer.remove(&flow).unwrap();
    let server = common::stream(thawing.finish().unwrap());
    exchange(&client, &server);
}
