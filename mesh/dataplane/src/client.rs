//! A connection of an application that was taken over: what the kernel did not move comes here.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Mutex, MutexGuard, Notify};
use underdeck_mesh_compiler::abi::{self, ud_progress, ud_tag};
use underdeck_mesh_policy::evaluate::Answer;

use crate::agent::Agent;
use crate::answer;
use crate::envoy::Envoy;
use crate::exchange::{Broken, End, Input, Link, exchange, tunnel};
use crate::message::{self, Body, Follow, Read, RequestHead};
use crate::unread::Asker;

/// Between looks whether the kernel has moved all of a response. Only for clients that do not wait for it.
const LOOK: Duration = Duration::from_millis(1);

/// An application that has half-closed its connection sees the end when nothing was unread for so long: bytes may still
/// be on their way through the kernel, in a work queue of a busy machine.
const GRACE: Duration = Duration::from_millis(500);

/// How long a client that goes on sending is listened to after the last answer.
const DRAIN: Duration = Duration::from_secs(1);

const TAG: usize = size_of::<ud_tag>();

/// What other tasks may do with a connection.
pub(crate) struct Client {
    agent: Rc<Agent>,
    pub(crate) cookie: u64,
    output: Mutex<OwnedWriteHalf>,
    /// Bytes that were written.
    sent: Cell<u64>,
    /// Bytes that were taken from what the application sent.
    taken: Cell<u64>,
    /// As many of them belong to requests that are done.
    done: Cell<u64>,
    ending: Cell<Option<Ending>>,
    end: Notify,
}

/// The right to write, for a whole response.
pub(crate) struct Writer<'a> {
    client: &'a Client,
    output: MutexGuard<'a, OwnedWriteHalf>,
}

impl Client {
    pub(crate) async fn writer(&self) -> Writer<'_> {
        Writer { client: self, output: self.output.lock().await }
    }

    pub(crate) fn took(&self, count: usize) {
        self.taken.set(self.taken.get() + count as u64);
    }

    /// All that was taken belongs to requests whose responses are, but for the next bytes, written.
    pub(crate) fn request_is_done(&self) {
        self.done.set(self.taken.get());
    }

    /// Ends the connection with a reset, from another task.
    pub(crate) fn reset(&self) {
        self.ending.set(Some(Ending::Reset));
        self.end.notify_one();
    }

    /// Ends it in order, from another task.
    pub(crate) fn finish(&self) {
        self.ending.set(Some(Ending::Over));
        self.end.notify_one();
    }
}

impl Writer<'_> {
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sent = &self.client.sent;
        sent.set(sent.get() + bytes.len() as u64);
        self.output.write_all(bytes).await
    }

    /// The last bytes of a response.
    pub(crate) async fn send_last(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.announce_last(bytes.len());
        self.send(bytes).await
    }

    /// So many bytes are the last ones of a response. The kernel takes the next request once they have arrived.
    pub(crate) fn announce_last(&self, count: usize) {
        let client = self.client;
        let progress = ud_progress { in_: client.done.get(), out: client.sent.get() + count as u64 };
        client.agent.kernel.set_progress(client.cookie, progress);
    }

    /// The end of the connection is the end of the response: if the agent is killed before, the client must see a reset.
    pub(crate) fn begin_until_close(&self) {
        let _ = SockRef::from(self.output.as_ref()).set_linger(Some(Duration::ZERO));
    }

    pub(crate) fn end_until_close(&self) {
        let _ = SockRef::from(self.output.as_ref()).set_linger(None);
    }

    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        self.end_until_close();
        self.output.shutdown().await
    }
}

/// What belongs to one connection, and goes with it.
struct Guard {
    client: Rc<Client>,
    peer: SocketAddr,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let agent = &self.client.agent;
        agent.clients.borrow_mut().remove(&self.client.cookie);
        agent.kernel.forget_client(self.client.cookie, self.peer);
    }
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The application has said all.
    Finished,
    /// The response ends with the connection.
    Over,
    /// The client must not take what it got for whole, or is gone.
    Reset,
}

/// A connection from its beginning to its end.
pub(crate) async fn serve(agent: Rc<Agent>, stream: TcpStream, peer: SocketAddr) {
    // A process connected to the agent's port by itself: nobody knows what it wants.
    let Some(cookie) = agent.kernel.cookie_of(peer) else { return };
    let Some(conn) = agent.kernel.conn(cookie) else { return };
    let destination = conn.destination.parts();
    let local = stream.local_addr().ok();
    let _ = stream.set_nodelay(true);
    let (read, output) = stream.into_split();
    let client = Rc::new(Client {
        agent: agent.clone(),
        cookie,
        output: Mutex::new(output),
        sent: Cell::new(0),
        taken: Cell::new(0),
        done: Cell::new(0),
        ending: Cell::new(None),
        end: Notify::new(),
    });
    agent.clients.borrow_mut().insert(cookie, client.clone());
    let guard = Guard { client: client.clone(), peer };
    let mut connection = Connection {
        agent: agent.clone(),
        client: client.clone(),
        input: Input::new(read),
        envoy: None,
        destination,
        is_foreign: conn.foreign != 0,
    };
    let ending = tokio::select! {
        ending = connection.run() => ending,
        () = client.end.notified() => client.ending.get().unwrap_or(Ending::Reset),
    };
    match ending {
        Ending::Finished | Ending::Over => {
            connection.wait_for_kernel().await;
            if ending == Ending::Finished || connection.input.has_ended().await {
                until_read(&agent, cookie, peer, local).await;
            }
            let _ = client.writer().await.shutdown().await;
            if ending == Ending::Over {
                // What the client still sends must not reset the connection before it has read its answer.
                let _ = tokio::time::timeout(DRAIN, connection.input.drain()).await;
            }
        }
        Ending::Reset => {
            agent.upstreams.kill_of(&agent, cookie);
            connection.input.abort();
        }
    }
    drop(guard);
}

/// Waits until an application that has closed its half has read all, or closed its socket. Where nobody can say how
/// much is unread, it has [`GRACE`] to read.
async fn until_read(agent: &Agent, cookie: u64, peer: SocketAddr, local: Option<SocketAddr>) {
    let asker = Asker::new().ok().zip(local);
    let mut since = Instant::now();
    while agent.kernel.is_open(cookie) {
        let unread = asker.as_ref().and_then(|(asker, local)| asker.unread(peer, *local, cookie));
        if unread.is_some_and(|unread| unread > 0) {
            since = Instant::now();
        } else if since.elapsed() >= GRACE {
            return;
        }
        tokio::time::sleep(5 * LOOK).await;
    }
}

struct Connection {
    agent: Rc<Agent>,
    client: Rc<Client>,
    input: Input,
    envoy: Option<(Rc<Envoy>, Link)>,
    destination: (IpAddr, u16),
    /// Another program holds the application's socket.
    is_foreign: bool,
}

impl Connection {
    /// A request, or all that follows, goes to Envoy.
    fn count_raw(&self) {
        let add = |count: &Cell<u64>, more: bool| count.set(count.get() + u64::from(more));
        add(&self.agent.raw, true);
        add(&self.agent.foreign, self.is_foreign);
    }

    async fn run(&mut self) -> Ending {
        loop {
            if self.input.bytes.is_empty() {
                match self.input.fill().await {
                    Ok(true) => {}
                    Ok(false) => return Ending::Finished,
                    Err(_) => return Ending::Reset,
                }
            }
            // A request behind one that the kernel still has: its response comes first.
            self.wait_for_kernel().await;
            let next = if self.input.bytes[0] == 0 { self.tagged().await } else { self.raw().await };
            if let Some(ending) = next {
                return ending;
            }
        }
    }

    /// Waits until no upstream has a request of this connection.
    async fn wait_for_kernel(&self) {
        let mut looks = 0u32;
        let (kernel, cookie) = (&self.agent.kernel, self.client.cookie);
        while kernel.in_flight(cookie) && kernel.is_open(cookie) {
            looks += 1;
            tokio::time::sleep(LOOK).await;
        }
        if looks > 0 {
            // If they came by TCP, the kernel may not have queued the last bytes yet; behind them in the queue is well.
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A request that the kernel has decided.
    async fn tagged(&mut self) -> Option<Ending> {
        while self.input.bytes.len() < TAG {
            if !matches!(self.input.fill().await, Ok(true)) {
                return Some(Ending::Reset);
            }
        }
        let mut tag = ud_tag::default();
        // SAFETY: a structure of integers without padding, and there are enough bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.input.bytes.as_ptr(), (&raw mut tag).cast::<u8>(), TAG) };
        let whole = TAG + tag.head_len as usize;
        while self.input.bytes.len() < whole {
            if !matches!(self.input.fill().await, Ok(true)) {
                return Some(Ending::Reset);
            }
        }
        let head = self.input.bytes[TAG..whole].to_vec();
        self.input.take(whole);
        self.client.took(whole);
        let Some(generation) = self.agent.generation(tag.generation) else { return Some(Ending::Reset) };
        let Read::Head(parsed) = message::request(&head) else { return Some(Ending::Reset) };
        if tag.verdict == abi::UD_ANSWER {
            let sender = self.agent.config().sender();
            let answer = answer::of_policy(&generation.policies, tag.action, &parsed, sender, self.destination);
            let answer = answer.unwrap_or_else(|| answer::unavailable("no answer"));
            return self.answer(&answer, &parsed).await;
        }
        let edits = generation.edits(tag.action);
        let Some(mut link) = self.agent.upstreams.connect(&self.agent, tag.endpoint).await else {
            return self.answer(&answer::unavailable("remote connection failure"), &parsed).await;
        };
        let no_body = parsed.method == "HEAD";
        let done = exchange(&mut self.input, &self.client, &mut link, &head, parsed.body, no_body, Some(edits)).await;
        match done {
            Ok(End::Kept) => {
                self.agent.upstreams.give(&self.agent, tag.endpoint, link);
                None
            }
            other => self.after(other, &parsed).await,
        }
    }

    /// A request that Envoy decides.
    async fn raw(&mut self) -> Option<Ending> {
        let head = loop {
            match message::request(&self.input.bytes) {
                Read::Head(head) => break head,
                Read::Odd => return self.tunnel().await,
                Read::More => match self.input.fill().await {
                    Ok(true) => {}
                    // Envoy knows what to say about the beginning of a head.
                    Ok(false) => return self.tunnel().await,
                    Err(_) => return Some(Ending::Reset),
                },
            }
        };
        self.count_raw();
        let Some((envoy, mut link)) = self.envoy().await else {
            return self.answer(&answer::unavailable("Envoy does not listen"), &head).await;
        };
        let bytes = self.input.bytes[..head.len].to_vec();
        self.input.take(head.len);
        self.client.took(head.len);
        let no_body = head.method == "HEAD";
        let done = exchange(&mut self.input, &self.client, &mut link, &bytes, head.body, no_body, None).await;
        match done {
            Ok(End::Kept) => {
                self.envoy = Some((envoy, link));
                None
            }
            other => self.after(other, &head).await,
        }
    }

    async fn after(&mut self, done: Result<End, Broken>, head: &RequestHead) -> Option<Ending> {
        match done {
            Ok(End::Kept | End::Closed) => None,
            Ok(End::Over) => Some(Ending::Over),
            Err(Broken::BeforeHead) if head.body == Body::Length(0) => {
                self.answer(&answer::unavailable("connection termination"), head).await
            }
            Err(Broken::BeforeHead) => {
                // How much of the body was taken is not known here: the connection ends with the answer.
                let bytes = answer::write(&answer::unavailable("connection termination"), head.method == "HEAD");
                let _ = self.client.writer().await.send(&bytes).await;
                Some(Ending::Over)
            }
            Err(Broken::Request) => self.refuse().await,
            Err(Broken::InBody | Broken::Client) => Some(Ending::Reset),
        }
    }

    /// Answers a body that makes no sense.
    async fn refuse(&self) -> Option<Ending> {
        let _ = self.client.writer().await.send(answer::BAD_REQUEST).await;
        Some(Ending::Over)
    }

    /// Answers a request whose head was taken.
    async fn answer(&mut self, answer: &Answer, head: &RequestHead) -> Option<Ending> {
        let mut follow = Follow::new(head.body);
        loop {
            let Some(taken) = follow.take(&self.input.bytes) else {
                return self.refuse().await;
            };
            self.input.take(taken);
            self.client.took(taken);
            if follow.is_done() {
                break;
            }
            if !matches!(self.input.fill().await, Ok(true)) {
                return Some(Ending::Reset);
            }
        }
        self.client.request_is_done();
        let bytes = answer::write(answer, head.method == "HEAD");
        match self.client.writer().await.send_last(&bytes).await {
            Ok(()) => None,
            Err(_) => Some(Ending::Reset),
        }
    }

    /// A connection to the Envoy of the policies in force.
    async fn envoy(&mut self) -> Option<(Rc<Envoy>, Link)> {
        let current = self.agent.current().envoy.borrow().clone()?;
        if let Some((envoy, link)) = self.envoy.take()
            && Rc::ptr_eq(&envoy, &current)
        {
            return Some((envoy, link));
        }
        let address = current.port_of(SocketAddr::from(self.destination))?;
        let stream = TcpStream::connect(address).await.ok()?;
        let _ = stream.set_nodelay(true);
        Some((current, Link::new(stream)))
    }

    /// From here on, all of the connection is Envoy's.
    async fn tunnel(&mut self) -> Option<Ending> {
        self.count_raw();
        let Some((_envoy, mut link)) = self.envoy().await else { return Some(Ending::Reset) };
        match tunnel(&mut self.input, &self.client, &mut link).await {
            Ok(()) => Some(Ending::Finished),
            Err(_) => Some(Ending::Reset),
        }
    }
}
