//! A proxy in one thread that frames anew what it forwards, cuts it anywhere and waits anywhere: whoever receives it must get
//! every byte as it was, and no reset. Some of the bytes look like the beginning of a mark.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Instant;

use libc::{c_int, iovec};
use syscalls::{Errno, Sysno, syscall};
use underdeck_stats::{Gauge, Snapshot};

use super::tests::{client_of, held};
use crate::engine::{self, Engine};
use crate::mark::{MAGIC, MARK, Vpi};
use crate::testing::{self, PATIENCE};
use crate::tls::{self, Prepared};
use crate::{batch, sys, table};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// At least `from`, below `until`.
    fn within(&mut self, from: usize, until: usize) -> usize {
        from + (self.next() % (until - from) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.within(0, n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.within(0, of.len())]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length,
    Chunked,
    UntilClose,
}

/// Who sends the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Download,
    Upload,
}

/// Sends past the hooks, as another process would.
fn send_from_outside(fd: c_int, bytes: &[u8]) -> usize {
    // SAFETY: the slice lives.
    unsafe { syscall!(Sysno::sendto, fd, bytes.as_ptr(), bytes.len(), libc::MSG_DONTWAIT, 0, 0) }.unwrap_or(0)
}

fn receive_outside(fd: c_int, bytes: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the slice lives.
    unsafe { syscall!(Sysno::recvfrom, fd, bytes.as_mut_ptr(), bytes.len(), libc::MSG_DONTWAIT, 0, 0) }
}

/// Bytes by chance, some of which look like the beginning of a mark.
fn content(random: &mut Random, len: usize, magic: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    for _ in 0..len / 300 + 1 {
        let known = random.within(1, MAGIC);
        if len > known {
            let at = if random.one_in(3) { len - known } else { random.within(0, len - known) };
            bytes[at..at + known].copy_from_slice(&magic[..known]);
            if let Some(next) = bytes.get_mut(at + known) {
                // All of it does not come by chance.
                *next = !magic[known];
            }
        }
    }
    bytes
}

/// Where the proxy sends to.
enum Out {
    Plain,
    /// What a TLS library was given, and what it is to be given again, after it took nothing.
    Tls {
        wire: Vec<u8>,
        again: Vec<u8>,
    },
}

/// One message on its way through the proxy.
struct Flow {
    way: Way,
    framing: Framing,
    source: TcpStream,
    input: TcpStream,
    output: TcpStream,
    sink: TcpStream,
    out: Out,
    /// What the source sends, which of it is body, how much was sent and how much of that read.
    sent: Vec<u8>,
    is_body: Vec<bool>,
    sent_to: usize,
    read_to: usize,
    /// What the proxy has to send: as it sees it, and as it ought to arrive.
    queue: Vec<u8>,
    right: Vec<u8>,
    /// Body that is not framed anew yet: the same.
    body: (Vec<u8>, Vec<u8>),
    written: usize,
    ended: bool,
    received: usize,
    /// A write of so many bytes must be tried again (TLS).
    retry: usize,
}

impl Flow {
    fn new(random: &mut Random, listener: &TcpListener, set: c_int, magic: &[u8]) -> Self {
        let way = if random.one_in(3) { Way::Upload } else { Way::Download };
        let (backend_near, backend_far) = testing::pair();
        let client = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        for stream in [&backend_near, &server] {
            stream.set_nonblocking(true).expect("set");
            testing::control(set, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), libc::EPOLLIN);
        }
        let (source, input, output, sink) = match way {
            Way::Download => (backend_far, backend_near, server, client),
            Way::Upload => (client, server, backend_near, backend_far),
        };
        if random.one_in(4) {
            buffers(&output, libc::SO_SNDBUF, 20_000);
        }
        let is_tls = way == Way::Download && random.one_in(4);
        let out = if is_tls { Out::Tls { wire: Vec::new(), again: Vec::new() } } else { Out::Plain };
        let framings = [Framing::Length, Framing::Chunked, Framing::UntilClose];
        let framing = if way == Way::Upload { random.pick(&framings[..2]) } else { random.pick(&framings) };
        let mut flow = Self {
            way,
            framing,
            source,
            input,
            output,
            sink,
            out,
            sent: Vec::new(),
            is_body: Vec::new(),
            sent_to: 0,
            read_to: 0,
            queue: Vec::new(),
            right: Vec::new(),
            body: (Vec::new(), Vec::new()),
            written: 0,
            ended: false,
            received: 0,
            retry: 0,
        };
        if way == Way::Download {
            flow.ask();
        }
        flow.begin(random, magic);
        flow
    }

    /// The request of a download goes the other way.
    fn ask(&mut self) {
        const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: it\r\n\r\n";
        let (server, client, near, far) = (&self.output, &self.sink, &self.input, &self.source);
        let mut bytes = [0; 64];
        match self.out {
            Out::Plain => {
                assert_eq!(send_from_outside(client.as_raw_fd(), REQUEST), REQUEST.len());
                testing::until("the request", || testing::unread(server) == REQUEST.len());
                assert_eq!({ server }.read(&mut bytes).expect("a request"), REQUEST.len());
            }
            Out::Tls { .. } => in_socket(server, |engine, socket| {
                tls::begin(socket);
                tls::read(engine, socket, REQUEST.as_ptr().cast(), REQUEST.len());
            }),
        }
        assert_eq!({ near }.write(REQUEST).expect("room"), REQUEST.len());
        testing::until("the request", || receive_outside(far.as_raw_fd(), &mut [0; 64]) == Ok(REQUEST.len()));
    }

    /// What the source will send, and the head that the proxy sends.
    fn begin(&mut self, random: &mut Random, magic: &[u8]) {
        let len = random.pick(&[40, 3000, 20_000, 80_000, 200_000]) + random.within(0, 5000);
        let body = content(random, len, magic);
        let start = |way| if way == Way::Download { "HTTP/1.1 200 OK\r\n" } else { "POST / HTTP/1.1\r\nHost: it\r\n" };
        if random.one_in(2) {
            self.source_sends(format!("{}Content-Length: {len}\r\n\r\n", start(self.way)).as_bytes(), false);
            self.source_sends(&body, true);
        } else {
            self.source_sends(format!("{}Transfer-Encoding: chunked\r\n\r\n", start(self.way)).as_bytes(), false);
            let mut at = 0;
            while at < len {
                let n = random.pick(&[1, 30, 3000, 10_000, 60_000]) + random.within(0, 3000);
                let chunk = &body[at..(at + n).min(len)];
                let extension = if random.one_in(5) { ";extension=of-more-than-thirty-two-bytes" } else { "" };
                self.source_sends(format!("{:x}{extension}\r\n", chunk.len()).as_bytes(), false);
                self.source_sends(chunk, true);
                self.source_sends(b"\r\n", false);
                at += chunk.len();
            }
            self.source_sends(b"0\r\n\r\n", false);
        }
        let fields = match self.framing {
            Framing::Length => format!("Content-Length: {len}\r\n\r\n"),
            Framing::Chunked => "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
            Framing::UntilClose => "Connection: close\r\n\r\n".to_owned(),
        };
        self.enqueue(format!("{}{fields}", start(self.way)).as_bytes());
    }

    fn source_sends(&mut self, bytes: &[u8], is_body: bool) {
        self.sent.extend_from_slice(bytes);
        self.is_body.resize(self.sent.len(), is_body);
    }

    fn enqueue(&mut self, bytes: &[u8]) {
        self.queue.extend_from_slice(bytes);
        self.right.extend_from_slice(bytes);
    }

    fn source_goes_on(&mut self, random: &mut Random) {
        let until = (self.sent_to + random.pick(&[100, 5000, 100_000])).min(self.sent.len());
        self.sent_to += send_from_outside(self.source.as_raw_fd(), &self.sent[self.sent_to..until]);
    }

    /// The proxy reads into one or two slices.
    fn read(&mut self, random: &mut Random) {
        let mut buffer = vec![0u8; random.pick(&[100, 1024, 4096, 8192, 16_384, 65_536])];
        let size = buffer.len();
        let (first, second) = buffer.split_at_mut(if random.one_in(3) { random.within(1, size) } else { size });
        let iov = [first, second].map(|it| iovec { iov_base: it.as_mut_ptr().cast(), iov_len: it.len() });
        // SAFETY: the slices live.
        let n = unsafe { libc::readv(self.input.as_raw_fd(), iov.as_ptr(), 2) };
        let Ok(n) = usize::try_from(n) else { return };
        for (at, byte) in buffer[..n].iter().enumerate() {
            if self.is_body[self.read_to + at] {
                self.body.0.push(*byte);
                self.body.1.push(self.sent[self.read_to + at]);
            } else {
                assert_eq!(*byte, self.sent[self.read_to + at], "metadata is copied");
            }
        }
        self.read_to += n;
    }

    /// The proxy frames what it has read.
    fn frame(&mut self, random: &mut Random) {
        let is_all = self.read_to == self.sent.len();
        let have = self.body.0.len();
        if self.framing == Framing::Chunked {
            if have > 0 {
                let n = if random.one_in(2) {
                    have
                } else {
                    random.within(1, have + 1).min(random.pick(&[3, 30, 5000, have]))
                };
                let (seen, right) =
                    (self.body.0.drain(..n).collect::<Vec<_>>(), self.body.1.drain(..n).collect::<Vec<_>>());
                self.enqueue(format!("{n:x}\r\n").as_bytes());
                self.queue.extend(seen);
                self.right.extend(right);
                self.enqueue(b"\r\n");
            } else if is_all && !self.ended {
                self.enqueue(b"0\r\n\r\n");
            }
        } else {
            self.queue.append(&mut self.body.0);
            self.right.append(&mut self.body.1);
        }
        self.ended |= is_all && self.body.0.is_empty() && (self.framing != Framing::Chunked || have == 0);
    }

    /// The proxy sends some of what it has: often so that a mark is cut.
    fn write(&mut self, random: &mut Random, engine: &Engine, magic: &[u8]) {
        let have = self.queue.len() - self.written;
        if have == 0 {
            return;
        }
        let rest = &self.queue[self.written..];
        let next_mark = memchr::memmem::find(&rest[1.min(have)..], magic).map(|at| at + 1);
        let n = match next_mark {
            Some(at) if random.one_in(3) => at + random.within(0, MARK + 1),
            _ => random.pick(&[1, 2, 7, 24, 300, 4096, 30_000, have]),
        };
        let n = if self.retry > 0 { self.retry } else { n.clamp(1, have) };
        match &self.out {
            Out::Plain => self.write_plain(random, n),
            Out::Tls { .. } => self.write_tls(random, engine, n),
        }
    }

    fn write_plain(&mut self, random: &mut Random, n: usize) {
        let part = &mut self.queue[self.written..self.written + n];
        let cuts = [random.within(0, n + 1), random.within(0, n + 1)];
        let (from, until) = (cuts[0].min(cuts[1]), cuts[0].max(cuts[1]));
        let slices = if random.one_in(2) { [0..n, n..n, n..n] } else { [0..from, from..until, until..n] };
        let iov: Vec<iovec> = slices
            .into_iter()
            .map(|it| iovec { iov_base: part[it.clone()].as_mut_ptr().cast(), iov_len: it.len() })
            .collect();
        // SAFETY: the slices live.
        let done = unsafe { libc::writev(self.output.as_raw_fd(), iov.as_ptr(), iov.len() as c_int) };
        match usize::try_from(done) {
            Ok(done) => self.written += done,
            Err(_) => {
                let error = std::io::Error::last_os_error();
                assert_eq!(error.raw_os_error(), Some(libc::EAGAIN), "{error}");
            }
        }
    }

    /// A TLS library that takes all, a record, or nothing; what it took nothing of, it must be given again.
    fn write_tls(&mut self, random: &mut Random, engine: &Engine, n: usize) {
        /// The least that `SSL_CTX_set_max_send_fragment` takes.
        const RECORD: usize = 512;
        let buffer = self.queue[self.written..self.written + n].as_mut_ptr().cast();
        let prepared = in_socket(&self.output, |_, socket| tls::prepare(engine, socket, buffer, n)).expect("no doubt");
        let Out::Tls { wire, again } = &mut self.out else { return };
        let offered = match prepared {
            Prepared::Nothing => {
                self.written += n;
                self.retry = 0;
                return;
            }
            Prepared::AsItIs(size) => self.queue[self.written..self.written + size].to_vec(),
            Prepared::Joined(bytes) => bytes,
        };
        assert!(offered.starts_with(again), "what is tried again is the same");
        let taken = match again.len() {
            0 if random.one_in(4) => {
                again.extend_from_slice(&offered[..offered.len().min(RECORD)]);
                -1
            }
            0 if random.one_in(3) => offered.len().min(RECORD) as isize,
            0 => offered.len() as isize,
            same => same as isize,
        };
        if let Ok(taken) = usize::try_from(taken) {
            wire.extend_from_slice(&offered[..taken]);
            again.clear();
        }
        let told = in_socket(&self.output, |engine, socket| tls::wrote(engine, socket, buffer, n, taken));
        match told.and_then(|it| usize::try_from(it).ok()) {
            Some(done) if done > 0 => {
                self.written += done;
                self.retry = 0;
            }
            _ => self.retry = n,
        }
    }

    /// The other end receives what is there; all of it must be right. The number of bytes it has.
    fn receive(&mut self, most: usize) -> usize {
        let mut bytes = vec![0; most];
        let (n, what) = match &mut self.out {
            Out::Plain => match receive_outside(self.sink.as_raw_fd(), &mut bytes) {
                Ok(n) => (n, &bytes[..n]),
                Err(Errno::EAGAIN) => (0, &bytes[..0]),
                Err(error) => panic!("{error}"),
            },
            Out::Tls { wire, .. } => {
                bytes = core::mem::take(wire);
                (bytes.len(), &bytes[..])
            }
        };
        let right = self.right.get(self.received..self.received + n).unwrap_or_default();
        if right != what {
            let wrong = right.iter().zip(what).position(|(right, seen)| right != seen);
            let is_tls = matches!(self.out, Out::Tls { .. });
            let (way, framing, from) = (self.way, self.framing, self.received);
            panic!("{way:?} {framing:?}, TLS: {is_tls}: byte {from} + {wrong:?} of {n}");
        }
        self.received += n;
        self.received
    }
}

fn buffers(stream: &impl AsRawFd, option: c_int, bytes: c_int) {
    let size = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: one int, as is said.
    let set =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const bytes).cast(), size) };
    assert_eq!(set, 0);
}

fn in_socket<T>(stream: &TcpStream, then: impl FnOnce(&Engine, &mut crate::socket::Socket) -> T) -> T {
    let fd = stream.as_raw_fd();
    let engine = engine::running().expect("it runs");
    table::socket(fd).and_then(|cell| cell.with(fd, |socket| then(engine, socket))).expect("it is followed")
}

/// The first bytes of every mark.
fn magic(engine: &Engine) -> [u8; MAGIC] {
    let mark = engine.magic.encode(Vpi { slot: 0, generation: 0 }, 0, &[0; 2]);
    mark.first_chunk().copied().unwrap_or_default()
}

/// Says how to try again what fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("UNDERDECK_TEST_SEED={}", self.0);
        }
    }
}

fn a_round(seed: u64, listener: &TcpListener) {
    let (mut random, set, _seed) = (Random(seed), testing::set(), Seed(seed));
    testing::events(set, 0);
    drop(testing::pair());
    let engine = engine::running().expect("it runs");
    let magic = magic(engine);
    let mut flows: Vec<Flow> =
        (0..random.within(1, 6)).map(|_| Flow::new(&mut random, listener, set, &magic)).collect();
    let end = Instant::now() + PATIENCE;
    let mut over = Vec::new();
    while !flows.is_empty() {
        assert!(Instant::now() < end, "stuck");
        let at = random.within(0, flows.len());
        let flow = &mut flows[at];
        match random.within(0, 12) {
            0..2 => flow.source_goes_on(&mut random),
            2..4 => flow.read(&mut random),
            4..6 => flow.frame(&mut random),
            6..9 => flow.write(&mut random, engine, &magic),
            9 => drop(flow.receive(random.pick(&[10, 3000, 100_000]))),
            10 => drop(testing::events(set, 0)),
            _ if random.one_in(3) => drop(testing::events(set, 1)),
            // SAFETY: there are no descriptors.
            _ => unsafe { assert_eq!(libc::poll(core::ptr::null_mut(), 0, 0), 0) },
        }
        let flow = &flows[at];
        if flow.ended && flow.written == flow.right.len() {
            over.push(flows.swap_remove(at));
        }
    }
    for mut flow in over {
        if flow.framing == Framing::UntilClose || matches!(flow.out, Out::Tls { .. }) {
            if let Out::Tls { wire, .. } = &mut flow.out {
                wire.extend(in_socket(&flow.output, tls::take_owed).unwrap_or_default());
            }
            flow.output.shutdown(Shutdown::Write).expect("shut down");
        }
        while flow.receive(1 << 20) < flow.right.len() {
            assert!(Instant::now() < end, "{:?} {:?} lacks bytes", flow.way, flow.framing);
            testing::events(set, 1);
        }
    }
    sys::close(set);
    let it = Snapshot::of_pid(std::process::id()).expect("counters");
    assert_eq!((it.resets, it.panics), (0, 0));
    assert_eq!(engine.stats.level(Gauge::BytesHeld), 0);
}

fn rounds() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |it| it.as_nanos() as u64);
    let first = number("UNDERDECK_TEST_SEED").unwrap_or(now);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    for round in 0..number("UNDERDECK_TEST_ROUNDS").unwrap_or(60) {
        a_round(first.wrapping_add(round), &listener);
    }
    let it = Snapshot::of_pid(std::process::id()).expect("counters");
    for role in underdeck_stats::Role::ALL {
        assert_ne!(it.role(role).bytes_forwarded, 0, "{role:?}: otherwise this would test nothing");
    }
}

#[test]
fn whatever_is_cut_arrives_as_it_was() {
    const NAME: &str = "egress::cuts::whatever_is_cut_arrives_as_it_was";
    testing::alone_with(NAME, &[("UNDERDECK_MIN_BODY", "2000")], rounds);
}

/// A program that gives up after it has cut a mark.
fn cut_and_closed() {
    for (known, how) in (1..MARK).flat_map(|known| [(known, "close"), (known, "shutdown")]) {
        let (mut client, mut server) = client_of(1 << 20);
        let (_near, _far, _, placeholder) = held();
        server.write_all(b"right").expect("accepted");
        server.write_all(&placeholder[..known]).expect("accepted");
        if how == "shutdown" {
            server.shutdown(Shutdown::Write).expect("shut down");
        }
        let server = (how == "shutdown").then_some(server);
        let mut seen = Vec::new();
        let _ = client.read_to_end(&mut seen);
        assert_eq!(seen, b"right", "{how} after {known} bytes of a mark");
        drop(server);
    }
}

/// A client of which the kernel takes 4 KiB at a time, and the proxy's end of its connection, which blocks.
fn narrow() -> (UnixStream, UnixStream) {
    testing::hear_panics();
    let name = SocketAddr::from_abstract_name(format!("underdeck-test-{}", std::process::id())).expect("a name");
    let listener = UnixListener::bind_addr(&name).expect("a listener");
    let mut client = UnixStream::connect_addr(&name).expect("connected");
    let (mut server, _) = listener.accept().expect("accepted");
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    client.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
    assert_ne!(server.read(&mut [0; 256]).expect("a request"), 0);
    buffers(&server, libc::SO_SNDBUF, 4608);
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
    server.write_all(head).expect("room");
    client.read_exact(&mut vec![0; head.len()]).expect("received");
    (client, server)
}

/// Payload that cannot be spliced, in several writes, of each of which the kernel takes a part.
fn half_put_back() {
    let (mut client, mut server) = narrow();
    let (mut near, _far, got) = testing::ahead(Some(testing::set()));
    let mut placeholder = vec![0; 40_000];
    let n = near.read(&mut placeholder).expect("it was read ahead");
    assert!(n > 20_000, "{n} bytes in one segment");
    let writer = std::thread::spawn(move || {
        for part in placeholder[..n].chunks(9000) {
            server.write_all(part).expect("accepted");
        }
        server
    });
    let mut seen = vec![0; n];
    client.read_exact(&mut seen).expect("all of it");
    assert!(seen == testing::body(got, n));
    drop(writer.join().expect("no panic"));
}

#[test]
fn a_cut_mark_is_not_the_last_that_a_client_sees() {
    testing::alone("egress::cuts::a_cut_mark_is_not_the_last_that_a_client_sees", cut_and_closed);
}

#[test]
fn what_is_put_back_may_leave_in_parts() {
    testing::alone("egress::cuts::what_is_put_back_may_leave_in_parts", half_put_back);
}

/// A byte of payload that was let out, at the end of a chunk, and then a mark in the next one that is cut.
fn marks_behind_a_byte() {
    let (_near, _far, _, placeholder) = held();
    let (_other_client, mut other_server) = client_of(1 << 20);
    assert_eq!(other_server.write(&placeholder).expect("room"), placeholder.len());
    let (mut client, mut server) = testing::pair();
    client.write_all(b"GET / HTTP/1.1\r\nHost: it\r\n\r\n").expect("sent");
    assert_ne!(server.read(&mut [0; 256]).expect("a request"), 0);
    server.set_nonblocking(true).expect("set");
    let mut right = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n".to_vec();
    server.write_all(&right).expect("accepted");
    let by_chance = [&placeholder[..1], b"\r\n"].concat();
    server.write_all(&by_chance).expect("accepted");
    let (_near, _far, got, placeholder) = held();
    let line = format!("{:x}\r\n", placeholder.len());
    server.write_all(&[line.as_bytes(), &placeholder[..1]].concat()).expect("accepted");
    for part in [1..3, 3..MAGIC, MAGIC..placeholder.len()] {
        server.write_all(&placeholder[part]).expect("accepted");
    }
    batch::before_events(true);
    right.extend([&by_chance[..], line.as_bytes(), &testing::body(got, placeholder.len())].concat());
    let mut seen = vec![0; right.len()];
    client.read_exact(&mut seen).expect("all of it");
    assert!(seen == right);
}

#[test]
fn a_mark_may_be_cut_behind_a_byte_that_looked_like_one() {
    testing::alone("egress::cuts::a_mark_may_be_cut_behind_a_byte_that_looked_like_one", marks_behind_a_byte);
}

/// A connection on which a TLS library is about to send a body.
fn within_tls() -> (TcpStream, TcpStream) {
    let (client, server) = testing::pair();
    let request = b"GET / HTTP/1.1\r\nHost: it\r\n\r\n";
    in_socket(&server, |engine, socket| {
        tls::begin(socket);
        tls::read(engine, socket, request.as_ptr().cast(), request.len());
    });
    let mut head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".to_vec();
    let size = head.len();
    assert_eq!(given(&server, &mut head, size), Some(size));
    (client, server)
}

/// What a library is given of `bytes`, of which it takes `most`. None: it must not be given any.
fn given(server: &TcpStream, bytes: &mut [u8], most: usize) -> Option<usize> {
    let (address, size) = (bytes.as_mut_ptr().cast_const().cast(), bytes.len());
    in_socket(server, |engine, socket| {
        let offered = match tls::prepare(engine, socket, address, size)? {
            Prepared::AsItIs(size) => size,
            Prepared::Joined(bytes) => bytes.len(),
            Prepared::Nothing => return Some(0),
        };
        tls::wrote(engine, socket, address, size, if most == 0 { -1 } else { offered.min(most) as isize });
        Some(offered)
    })
}

/// What follows a cut mark of what is gone must not be given to a TLS library.
fn marks_of_nothing_within_tls() {
    let (_near, _far, _, mut placeholder) = held();
    let (_other_client, mut other_server) = client_of(1 << 20);
    assert_eq!(other_server.write(&placeholder).expect("room"), placeholder.len());
    for known in 1..MAGIC {
        let (_client, server) = within_tls();
        assert_eq!(given(&server, &mut placeholder[..known], known), Some(known), "nothing can stand behind it");
        assert_eq!(given(&server, &mut placeholder[known..1000], 1000), None, "{known}: it was a mark");
    }
}

/// A library that takes a part of what it is given, and a program that comes again with less than the rest.
fn parts_within_tls() {
    let (_near, _far, got, mut placeholder) = held();
    let (_client, server) = within_tls();
    let n = placeholder.len();
    assert_eq!(given(&server, &mut placeholder[..5000], 512), Some(5000));
    assert_eq!(given(&server, &mut placeholder[512..600], 88), Some(88));
    assert_eq!(given(&server, &mut placeholder[600..], n), Some(n - 600));
    assert!(placeholder == testing::body(got, n));
}

/// A library that takes nothing must be given the same again, whatever was received meanwhile.
fn same_again_within_tls() {
    let (_client, server) = within_tls();
    let magic = magic(engine::running().expect("it runs"));
    let mut bytes = [b"by chance", &magic[..3]].concat();
    let n = bytes.len();
    assert_eq!(given(&server, &mut bytes, 0), Some(n));
    let held = held();
    assert_eq!(given(&server, &mut bytes, n), Some(n));
    drop(held);
}

#[test]
fn a_tls_library_is_given_the_same_again() {
    testing::alone("egress::cuts::a_tls_library_is_given_the_same_again", same_again_within_tls);
}

#[test]
fn a_tls_library_may_take_parts() {
    testing::alone("egress::cuts::a_tls_library_may_take_parts", parts_within_tls);
}

#[test]
fn a_cut_mark_that_nothing_stands_behind_does_not_reach_tls() {
    let name = "egress::cuts::a_cut_mark_that_nothing_stands_behind_does_not_reach_tls";
    testing::alone(name, marks_of_nothing_within_tls);
}

/// What is held back for a peer that is gone.
fn held_for_nobody() {
    let (_near, _far, _, placeholder) = held();
    let ((client, mut server), (_other_client, mut other_server)) = (client_of(1 << 20), client_of(1 << 20));
    server.write_all(&placeholder[..1]).expect("accepted");
    assert!(!batch::before_events(true), "it may be the payload's");
    sys::reset(client.as_raw_fd());
    assert_eq!(other_server.write(&placeholder).expect("room"), placeholder.len());
    testing::until("nothing keeps the loop awake", || batch::before_events(true));
    server.write(b"x").expect_err("it is the next call that is told");
}

#[test]
fn who_is_gone_does_not_keep_a_loop_awake() {
    testing::alone("egress::cuts::who_is_gone_does_not_keep_a_loop_awake", held_for_nobody);
}
