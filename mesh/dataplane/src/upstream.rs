//! Connections to endpoints that the kernel uses. Each is watched by a task, which moves what the kernel does not.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpSocket;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use underdeck_mesh_compiler::abi::{UD_POOL_MAX, UD_RETIRED, ud_upstream};

use crate::agent::Agent;
use crate::answer;
use crate::client::{Client, Writer};
use crate::exchange::{Broken, Input, Link, Moved, relay};

/// A request that the kernel sends on fits in here at once, so that none is cut.
const SEND_BUFFER: usize = 212_992;

/// For a connection attempt.
const CONNECT: Duration = Duration::from_secs(5);

/// From the end of a connection to a new one in its place.
const REFILL: Duration = Duration::from_millis(100);

/// The kernel may be faster than the agent's `accept`.
const ACCEPT: Duration = Duration::from_secs(5);

/// Between looks whether a connection to an endpoint that is not used any more has become idle.
const LEAVE: Duration = Duration::from_millis(50);

/// Connections to one endpoint. A pool has room for as many that are gone.
const MOST: usize = UD_POOL_MAX as usize / 2;

/// One server.
struct Endpoint {
    address: SocketAddr,
    /// Where connections to it come from, if it is on this host.
    source: Option<IpAddr>,
    connections: usize,
    /// Policies in force lead to it.
    is_used: bool,
    /// Connections that were closed while they were in the pool may still be there, by their cookies.
    gone: u32,
}

/// The task that watches a connection.
struct Task {
    endpoint: u32,
    handle: AbortHandle,
    /// The connection was idle and nobody takes it any more.
    leave: Rc<Notify>,
}

/// The address that this host uses towards another one of its own. None: `address` is not its own.
fn source_of(address: SocketAddr) -> Option<IpAddr> {
    UdpSocket::bind((address.ip(), 0)).ok()?;
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(address).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// A socket whose other end the kernel will know, if that is on this host: it needs its address before it connects.
fn socket(agent: &Agent, address: SocketAddr, source: Option<IpAddr>) -> std::io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if agent.config().local_bypass
        && let Some(source) = source
        && socket.bind(SocketAddr::new(source, 0)).is_ok()
    {
        let expected = agent.kernel.expect(SockRef::from(&socket).cookie()?, socket.local_addr()?, address);
        // By TCP, then.
        expected.unwrap_or_else(|error| agent.complain(&error.to_string()));
    }
    Ok(socket)
}

/// All of them, by their numbers.
#[derive(Default)]
pub(crate) struct Upstreams {
    endpoints: RefCell<Vec<Endpoint>>,
    numbers: RefCell<HashMap<SocketAddr, u32>>,
    tasks: RefCell<HashMap<u64, Task>>,
}

impl Upstreams {
    /// The number of an address, which is the same for as long as the agent runs.
    pub(crate) fn number(&self, address: SocketAddr, make: impl FnOnce() -> Option<u32>) -> Option<u32> {
        if let Some(number) = self.numbers.borrow().get(&address) {
            self.endpoints.borrow_mut()[*number as usize].is_used = true;
            return Some(*number);
        }
        let number = make()?;
        self.numbers.borrow_mut().insert(address, number);
        let source = source_of(address);
        self.endpoints.borrow_mut().push(Endpoint { address, source, connections: 0, is_used: true, gone: 0 });
        Some(number)
    }

    /// Connections by address.
    pub(crate) fn counts(&self) -> Vec<(SocketAddr, usize)> {
        self.endpoints.borrow().iter().map(|endpoint| (endpoint.address, endpoint.connections)).collect()
    }

    /// A connection for the agent.
    pub(crate) async fn connect(&self, agent: &Agent, endpoint: u32) -> Option<Link> {
        let (address, source) = self.endpoints.borrow().get(endpoint as usize).map(|it| (it.address, it.source))?;
        let socket = socket(agent, address, source).ok()?;
        let stream = tokio::time::timeout(CONNECT, socket.connect(address)).await.ok()?.ok()?;
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER);
        Some(Link::new(stream))
    }

    /// A connection that the agent has used and the kernel may use from now on. False: it is closed instead.
    pub(crate) fn give(&self, agent: &Rc<Agent>, endpoint: u32, link: Link) -> bool {
        let Ok(cookie) = SockRef::from(link.output.as_ref()).cookie() else { return false };
        if let Some(of) = self.endpoints.borrow_mut().get_mut(endpoint as usize) {
            if !of.is_used || of.connections >= agent.config().pool.max.min(MOST) {
                return false;
            }
            of.connections += 1;
            if of.gone as usize >= MOST {
                agent.kernel.sweep(endpoint);
                of.gone = 0;
            }
        }
        let added = agent.kernel.add_upstream(cookie, link.output.as_ref().as_fd(), endpoint);
        if let Err(error) = added {
            if !error.is_closed() {
                agent.complain(&error.to_string());
            }
            self.uncount(endpoint);
            return false;
        }
        let leave = Rc::new(Notify::new());
        let task = tokio::task::spawn_local(watch(agent.clone(), cookie, endpoint, link, leave.clone()));
        self.tasks.borrow_mut().insert(cookie, Task { endpoint, handle: task.abort_handle(), leave });
        true
    }

    /// Closes connections to all endpoints but these: at once, or when their response is done.
    pub(crate) fn use_only(&self, agent: &Rc<Agent>, endpoints: &BTreeSet<u32>) {
        for (number, endpoint) in (0..).zip(&mut *self.endpoints.borrow_mut()) {
            let was_used = endpoint.is_used;
            endpoint.is_used = endpoints.contains(&number);
            if was_used && !endpoint.is_used {
                tokio::task::spawn_local(leave(agent.clone(), number));
            }
        }
    }

    /// Closes what is idle; whether there is something left to close.
    fn leave_idle(&self, agent: &Agent, endpoint: u32) -> bool {
        let is_left =
            self.endpoints.borrow().get(endpoint as usize).is_some_and(|of| !of.is_used && of.connections > 0);
        if is_left {
            let tasks = self.tasks.borrow();
            let of_endpoint = tasks.iter().filter(|(_, task)| task.endpoint == endpoint);
            of_endpoint
                .filter(|(cookie, _)| agent.kernel.retire(**cookie))
                .for_each(|(_, task)| task.leave.notify_one());
        }
        is_left
    }

    fn uncount(&self, endpoint: u32) {
        if let Some(endpoint) = self.endpoints.borrow_mut().get_mut(endpoint as usize) {
            endpoint.connections -= 1;
            endpoint.gone += 1;
        }
    }

    /// Makes connections until an endpoint has as many as it should have at least.
    pub(crate) async fn fill(&self, agent: &Rc<Agent>, endpoint: u32) {
        loop {
            let pool = agent.config().pool;
            let wants = |of: &Endpoint| of.is_used && of.connections < pool.min.min(pool.max).min(MOST);
            if !self.endpoints.borrow().get(endpoint as usize).is_some_and(wants) {
                return;
            }
            let Some(link) = self.connect(agent, endpoint).await else { return };
            if !self.give(agent, endpoint, link) {
                return;
            }
        }
    }

    /// Closes the connection that has the request of a client that is gone.
    pub(crate) fn kill_of(&self, agent: &Rc<Agent>, client: u64) {
        let Some(conn) = agent.kernel.conn(client) else { return };
        if let Some(upstream) = agent.kernel.upstream(conn.upstream)
            && upstream.client == client
            && let Some(task) = self.tasks.borrow().get(&conn.upstream)
        {
            task.handle.abort();
            tokio::task::spawn_local(refill(agent.clone(), upstream.endpoint));
        }
    }
}

/// What goes with a connection.
struct Guard {
    agent: Rc<Agent>,
    cookie: u64,
    endpoint: u32,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let upstreams = &self.agent.upstreams;
        // A request that it had is over.
        if self.agent.kernel.upstream(self.cookie).is_some_and(|entry| entry.client != 0 && entry.client != UD_RETIRED)
        {
            self.agent.kernel.end_relay(self.cookie, false);
        }
        self.agent.kernel.remove_upstream(self.cookie);
        upstreams.tasks.borrow_mut().remove(&self.cookie);
        upstreams.uncount(self.endpoint);
    }
}

/// Until no connection to an endpoint that is not used any more is left.
async fn leave(agent: Rc<Agent>, endpoint: u32) {
    while agent.upstreams.leave_idle(&agent, endpoint) {
        tokio::time::sleep(LEAVE).await;
    }
}

async fn watch(agent: Rc<Agent>, cookie: u64, endpoint: u32, mut link: Link, leave: Rc<Notify>) {
    let guard = Guard { agent: agent.clone(), cookie, endpoint };
    let mut is_answered = false;
    loop {
        let more = tokio::select! {
            more = link.input.fill() => more,
            () = leave.notified() => break,
        };
        if !matches!(more, Ok(true)) {
            break;
        }
        match agent.kernel.upstream(cookie) {
            Some(entry)
                if entry.relay != 0 && entry.in_body == 0 && entry.client != 0 && entry.client != UD_RETIRED =>
            {
                is_answered = !respond(&agent, cookie, &entry, &mut link.input).await;
                if is_answered {
                    break;
                }
            }
            // Bytes that nobody asked for.
            _ => break,
        }
    }
    let was_idle = agent.kernel.retire(cookie);
    if !was_idle
        && !is_answered
        && let Some(entry) = agent.kernel.upstream(cookie)
    {
        lost(&agent, &entry).await;
    }
    drop(guard);
    drop(link);
    refill(agent, endpoint).await;
}

/// An endpoint that closes connections at once must not keep the agent busy.
async fn refill(agent: Rc<Agent>, endpoint: u32) {
    tokio::time::sleep(REFILL).await;
    agent.upstreams.fill(&agent, endpoint).await;
}

/// The client of a request, even if the agent has not accepted its connection yet.
async fn client_of(agent: &Agent, cookie: u64) -> Option<Rc<Client>> {
    let find = async {
        loop {
            if let Some(client) = agent.clients.borrow().get(&cookie) {
                return Some(client.clone());
            }
            agent.kernel.conn(cookie)?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(ACCEPT, find).await.ok()?
}

/// Moves a response that the kernel does not. False: the connection cannot be used any more.
async fn respond(agent: &Rc<Agent>, cookie: u64, entry: &ud_upstream, input: &mut Input) -> bool {
    let Some(client) = client_of(agent, entry.client).await else { return false };
    let generation = agent.generation(entry.generation);
    let edits = generation.as_ref().map_or(&[][..], |generation| generation.edits(entry.action));
    let mut writer = client.writer().await;
    let before_last = |kept, writer: &Writer<'_>, count| {
        // First: until the upstream is given back, the kernel takes no request of this client.
        writer.announce_last(count);
        agent.kernel.end_relay(cookie, kept);
    };
    let moved = relay(input, &mut writer, entry.no_body != 0, Some(edits), before_last).await;
    drop(writer);
    agent.relayed.set(agent.relayed.get() + 1);
    match moved {
        Ok(Moved::Kept) => return true,
        Ok(Moved::Closed) => {}
        // The client must see the end of its connection.
        Ok(Moved::UntilClose) => client.finish(),
        Err(Broken::BeforeHead) => lost(agent, entry).await,
        Err(Broken::InBody | Broken::Client | Broken::Request) => client.reset(),
    }
    false
}

/// The endpoint closed its connection instead of answering.
async fn lost(agent: &Rc<Agent>, entry: &ud_upstream) {
    let Some(client) = client_of(agent, entry.client).await else { return };
    if entry.in_body != 0 {
        client.reset();
        return;
    }
    let answer = answer::write(&answer::unavailable("connection termination"), entry.no_body != 0);
    let mut writer = client.writer().await;
    if writer.send_last(&answer).await.is_err() {
        client.reset();
    }
}
