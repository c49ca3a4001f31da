//! A proxy in one thread that frames anew what it forwards, cuts it anywhere and waits anywhere: whoever receives it must get
//! every byte as it was, and no reset. Some of the bytes look like the beginning of a mark.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Instant;

use libc::{c_int, iovec};
use syscalls::{Errno, Sysno, syscall};
use underdeck_stats::{Gauge, Snapshot};

use crate::engine::{self, Engine};
use crate::mark::{MAGIC, MARK, Vpi};
use crate::testing::{self, PATIENCE};
use crate::tls::{self, Prepared};
use crate::{anchor, sys, table};

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
    Tunnel,
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
    /// The proxy gives up when it has sent so much.
    gives_up_at: usize,
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
        let gives_up_at = if random.one_in(8) { random.within(0, 100_000) } else { usize::MAX };
        let mut flow = Self {
            way,
            framing: Framing::Length,
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
            gives_up_at,
        };
        flow.begin(random, magic);
        flow
    }

    /// The request of a download goes the other way.
    fn ask(&mut self) {
        let fields = if self.framing == Framing::Tunnel { "Connection: upgrade\r\nUpgrade: it\r\n" } else { "" };
        let request = format!("GET / HTTP/1.1\r\nHost: it\r\n{fields}\r\n").into_bytes();
        let (server, client, near, far) = (&self.output, &self.sink, &self.input, &self.source);
        let mut bytes = [0; 128];
        match self.out {
            Out::Plain => {
                assert_eq!(send_from_outside(client.as_raw_fd(), &request), request.len());
                testing::until("the request", || testing::unread(server) == request.len());
                assert_eq!({ server }.read(&mut bytes).expect("a request"), request.len());
            }
            Out::Tls { .. } => in_socket(server, |engine, socket| {
                tls::begin(socket);
                tls::read(engine, socket, request.as_ptr().cast(), request.len());
            }),
        }
        assert_eq!({ near }.write(&request).expect("room"), request.len());
        testing::until("the request", || receive_outside(far.as_raw_fd(), &mut [0; 128]) == Ok(request.len()));
    }

    /// A message begins: what the source will send, and the head that the proxy sends.
    fn begin(&mut self, random: &mut Random, magic: &[u8]) {
        let framings = [Framing::Length, Framing::Chunked, Framing::UntilClose, Framing::Tunnel];
        self.framing = random.pick(if self.way == Way::Upload { &framings[..2] } else { &framings });
        self.ended = false;
        if self.way == Way::Download {
            self.ask();
        }
        let start = match (self.way, self.framing) {
            (_, Framing::Tunnel) => "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: it\r\n",
            (Way::Download, _) => "HTTP/1.1 200 OK\r\n",
            (Way::Upload, _) => "POST / HTTP/1.1\r\nHost: it\r\n",
        };
        let len = random.pick(&[40, 3000, 20_000, 80_000, 200_000]) + random.within(0, 5000);
        let body = content(random, len, magic);
        if self.framing == Framing::Tunnel || random.one_in(2) {
            let fields =
                if self.framing == Framing::Tunnel { String::new() } else { format!("Content-Length: {len}\r\n") };
            self.source_sends(format!("{start}{fields}\r\n").as_bytes(), false);
            self.source_sends(&body, true);
        } else {
            self.source_sends(format!("{start}Transfer-Encoding: chunked\r\n\r\n").as_bytes(), false);
            self.source_sends_chunks(random, &body);
        }
        let fields = match self.framing {
            Framing::Length => format!("Content-Length: {len}\r\n"),
            Framing::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
            Framing::UntilClose => "Connection: close\r\n".to_owned(),
            Framing::Tunnel => String::new(),
        };
        self.enqueue(format!("{start}{fields}\r\n").as_bytes());
    }

    fn source_sends_chunks(&mut self, random: &mut Random, body: &[u8]) {
        let mut at = 0;
        while at < body.len() {
            let n = random.pick(&[1, 30, 3000, 10_000, 60_000]) + random.within(0, 3000);
            let chunk = &body[at..(at + n).min(body.len())];
            let extension = if random.one_in(5) { ";extension=of-more-than-thirty-two-bytes" } else { "" };
            self.source_sends(format!("{:x}{extension}\r\n", chunk.len()).as_bytes(), false);
            self.source_sends(chunk, true);
            self.source_sends(b"\r\n", false);
            at += chunk.len();
        }
        self.source_sends(b"0\r\n\r\n", false);
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
                Err(error) => panic!("{error}, given up: {}", self.gives_up_at),
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

    /// The proxy closes its connections: whatever has left must be right.
    fn give_up(mut self) {
        // Of what has no end of its own, nobody knows whether the last bytes only look like the beginning of a mark.
        let ends = matches!(self.framing, Framing::UntilClose | Framing::Tunnel);
        let unsure = if ends { MAGIC - 1 } else { 0 };
        if let Out::Tls { wire, .. } = &mut self.out {
            wire.extend(in_socket(&self.output, tls::take_owed).unwrap_or_default());
            wire.truncate(wire.len().saturating_sub(unsure));
            self.receive(0);
            return;
        }
        drop((self.output, self.input));
        let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
        let end = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < end, "no end");
            match receive_outside(self.sink.as_raw_fd(), &mut bytes) {
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                Ok(n @ 1..) => all.extend_from_slice(&bytes[..n]),
                _ => break,
            }
        }
        all.truncate(all.len().saturating_sub(unsure));
        let right = &self.right[self.received..];
        let wrong = all.iter().zip(right).position(|(seen, right)| seen != right);
        assert_eq!(wrong, None, "{:?} {:?}, given up: of {} bytes", self.way, self.framing, all.len());
    }
}

pub(super) fn buffers(stream: &impl AsRawFd, option: c_int, bytes: c_int) {
    let size = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: one int, as is said.
    let set =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const bytes).cast(), size) };
    assert_eq!(set, 0);
}

pub(super) fn in_socket<T>(stream: &TcpStream, then: impl FnOnce(&Engine, &mut crate::socket::Socket) -> T) -> T {
    let fd = stream.as_raw_fd();
    let engine = engine::running().expect("it runs");
    table::socket(fd).and_then(|cell| cell.with(fd, |socket| then(engine, socket))).expect("it is followed")
}

/// The first bytes of every mark.
pub(super) fn magic(engine: &Engine) -> [u8; MAGIC] {
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
        let flow = &mut flows[at];
        let ends = matches!(flow.framing, Framing::UntilClose | Framing::Tunnel);
        let is_over = flow.ended && flow.written == flow.right.len();
        if flow.written >= flow.gives_up_at {
            flows.swap_remove(at).give_up();
        } else if is_over && !ends && random.one_in(2) {
            flow.begin(&mut random, &magic);
        } else if is_over {
            over.push(flows.swap_remove(at));
        }
    }
    for mut flow in over {
        if matches!(flow.framing, Framing::UntilClose | Framing::Tunnel) || matches!(flow.out, Out::Tls { .. }) {
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
}

fn set_sigpipe(handler: libc::sighandler_t) {
    // SAFETY: no handler runs.
    unsafe { libc::signal(libc::SIGPIPE, handler) };
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// `UNDERDECK_TEST_SEED`: these rounds again, in one thread. `UNDERDECK_TEST_ROUNDS`: so many.
fn rounds() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |it| it.as_nanos() as u64);
    let seeds = number("UNDERDECK_TEST_SEED").map_or_else(|| vec![now, now << 32], |seed| vec![seed]);
    let count = number("UNDERDECK_TEST_ROUNDS").unwrap_or(20);
    // Where the signal is not ignored, payload is sent by copy.
    for (way, handler) in [libc::SIG_IGN, libc::SIG_DFL].into_iter().enumerate() {
        set_sigpipe(handler);
        std::thread::scope(|scope| {
            for seed in &seeds {
                scope.spawn(move || {
                    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
                    (0..count / (1 + way as u64)).for_each(|round| a_round(seed.wrapping_add(round), &listener));
                });
            }
        });
        let it = Snapshot::of_pid(std::process::id()).expect("counters");
        assert_eq!((it.resets, it.panics), (0, 0));
    }
    let it = Snapshot::of_pid(std::process::id()).expect("counters");
    for role in underdeck_stats::Role::ALL {
        assert_ne!(it.role(role).bytes_forwarded, 0, "{role:?}: otherwise this would test nothing");
    }
    if number("UNDERDECK_TEST_ROUNDS").is_none() {
        // What was given up before anything of it was sent is kept for five seconds.
        return;
    }
    let engine = engine::running().expect("it runs");
    testing::until("nothing is held", || {
        anchor::reap(engine);
        [Gauge::BytesHeld, Gauge::AnchorsOpen].iter().all(|gauge| engine.stats.level(*gauge) == 0)
    });
}

#[test]
fn whatever_is_cut_arrives_as_it_was() {
    const NAME: &str = "egress::cuts::whatever_is_cut_arrives_as_it_was";
    testing::alone_with(NAME, &[("UNDERDECK_MIN_BODY", "2000")], rounds);
}
