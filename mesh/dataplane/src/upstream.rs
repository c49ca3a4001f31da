//! Connections to endpoints that the kernel uses. Each is watched by a task, which moves what the kernel does not.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpSocket;
use tokio::task::AbortHandle;
use underdeck_mesh_compiler::abi::{UD_RETIRED, ud_upstream};

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

/// One server.
struct Endpoint {
    address: SocketAddr,
    /// Where connections to it come from, if it is on this host.
    source: Option<IpAddr>,
    connections: usize,
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
        agent.kernel.expect(SockRef::from(&socket).cookie()?, socket.local_addr()?, address);
    }
    Ok(socket)
}

/// All of them, by their numbers.
#[derive(Default)]
pub(crate) struct Upstreams {
    endpoints: RefCell<Vec<Endpoint>>,
    numbers: RefCell<HashMap<SocketAddr, u32>>,
    tasks: RefCell<HashMap<u64, AbortHandle>>,
}

impl Upstreams {
    /// The number of an address, which is the same for as long as the agent runs.
    pub(crate) fn number(&self, address: SocketAddr, make: impl FnOnce() -> Option<u32>) -> Option<u32> {
        if let Some(number) = self.numbers.borrow().get(&address) {
            return Some(*number);
        }
        let number = make()?;
        self.numbers.borrow_mut().insert(address, number);
        self.endpoints.borrow_mut().push(Endpoint { address, source: source_of(address), connections: 0 });
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

    /// A connection that the agent has used and the kernel may use from now on.
    pub(crate) fn give(&self, agent: &Rc<Agent>, endpoint: u32, link: Link) {
        if let Some(endpoint) = self.endpoints.borrow_mut().get_mut(endpoint as usize) {
            if endpoint.connections >= agent.config().pool.max {
                return;
            }
            endpoint.connections += 1;
        }
        let Ok(cookie) = SockRef::from(link.output.as_ref()).cookie() else { return };
        let added = agent.kernel.add_upstream(cookie, link.output.as_ref().as_fd(), endpoint);
        if let Err(error) = added {
            agent.complain(&error.to_string());
            self.uncount(endpoint);
            return;
        }
        let task = tokio::task::spawn_local(watch(agent.clone(), cookie, endpoint, link));
        self.tasks.borrow_mut().insert(cookie, task.abort_handle());
    }

    fn uncount(&self, endpoint: u32) {
        if let Some(endpoint) = self.endpoints.borrow_mut().get_mut(endpoint as usize) {
            endpoint.connections -= 1;
        }
    }

    /// Makes connections until an endpoint has as many as it should have at least.
    pub(crate) async fn fill(&self, agent: &Rc<Agent>, endpoint: u32) {
        loop {
            let has = self.endpoints.borrow().get(endpoint as usize).map_or(usize::MAX, |of| of.connections);
            if has >= agent.config().pool.min {
                return;
            }
            let Some(link) = self.connect(agent, endpoint).await else { return };
            self.give(agent, endpoint, link);
        }
    }

    /// Closes the connection that has the request of a client that is gone.
    pub(crate) fn kill_of(&self, agent: &Rc<Agent>, client: u64) {
        let Some(conn) = agent.kernel.conn(client) else { return };
        if let Some(upstream) = agent.kernel.upstream(conn.upstream)
            && upstream.client == client
            && let Some(task) = self.tasks.borrow().get(&conn.upstream)
        {
            task.abort();
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

async fn watch(agent: Rc<Agent>, cookie: u64, endpoint: u32, mut link: Link) {
    let guard = Guard { agent: agent.clone(), cookie, endpoint };
    let mut is_answered = false;
    while matches!(link.input.fill().await, Ok(true)) {
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
