//! Pools of connections: of endpoints that a reload takes away, and of endpoints that close what is idle. Needs root and
//! Envoy.

mod support;

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::backend::Backend;
use support::client::Client;
use support::{Agent, POLICIES, Setup, inside};
use underdeck_lab::wait;

/// Connections that the kernel has to an address, in any state but closed.
fn open_connections(to: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let wanted = format!(":{:04X}", to.port());
    let is_open = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        // ESTABLISHED, by the remote port.
        words[2].ends_with(&wanted) && words[3] == "01"
    };
    table.lines().skip(1).filter(is_open).count()
}

fn start_with(name: &str, group: &Path, service: &str, endpoint: SocketAddr, more: &str) -> (Agent, SocketAddr) {
    let service = service.parse().expect("an address");
    let endpoints = [("shop.test||", endpoint)];
    let setup = Setup { name, group, policies: POLICIES, services: &[service], endpoints: &endpoints, more };
    (Agent::start(&setup), service)
}

/// Changes the configuration, in one go: the agent looks at it by itself, too.
fn change(agent: &Agent, parts: &[(&str, &str)]) {
    let path = agent.place.path().join("mesh.yaml");
    let text = std::fs::read_to_string(&path).expect("ours");
    let text = parts.iter().fold(text, |text, (from, to)| text.replace(from, to));
    let before = agent.status().generation;
    std::fs::write(&path, text).expect("ours");
    agent.signal(libc::SIGHUP);
    agent.until("it holds", |status| status.generation > before && status.trouble.is_none());
}

fn change_endpoint(agent: &Agent, from: SocketAddr, to: SocketAddr) {
    change(agent, &[(&from.to_string(), &to.to_string())]);
}

fn connections(agent: &Agent, to: SocketAddr) -> usize {
    agent.status().upstreams.iter().find(|upstream| upstream.address == to).expect("an endpoint").connections
}

fn a_reload_closes(name: &str, service: &str, more: &str) {
    inside(name, |group: &Path| {
        let (first, second) = (Backend::start(), Backend::start());
        let (agent, service) = start_with(name, group, service, first.address, more);
        let mut busy = Client::connect(service);
        let mut idle = Client::connect(service);
        assert_eq!(idle.get("/a").status, 200);
        assert!(open_connections(first.address) >= 8);
        busy.send(b"GET /wait HTTP/1.1\r\nHost: shop.test\r\n\r\n");
        agent.until("it is with the endpoint", |status| status.requests.kernel >= 2);
        change_endpoint(&agent, first.address, second.address);
        // All but the one that has a request.
        wait::until("idle connections are closed", Duration::from_secs(30), || {
            (open_connections(first.address) == 1).then_some(())
        })
        .expect("idle connections are closed");
        agent.until("they are not counted", |status| status.upstreams[0].connections == 1);
        first.let_go();
        let response = busy.receive(false).expect("an answer");
        assert!(response.status == 200 && response.text().starts_with("GET /wait "), "{response:?}");
        wait::until("the last one is closed", Duration::from_secs(30), || {
            (open_connections(first.address) == 0).then_some(())
        })
        .expect("the last one is closed");
        let before = second.requests();
        for client in [&mut busy, &mut idle] {
            assert_eq!(client.get("/a").status, 200);
        }
        assert_eq!(second.requests(), before + 2);
        // It comes back: connections are made again, and used.
        change_endpoint(&agent, second.address, first.address);
        // What the agent noticed by itself of the change before may come first.
        let is_used = || {
            let before = first.requests();
            (idle.get("/a").status == 200 && first.requests() == before + 1).then_some(())
        };
        wait::until("it is used again", Duration::from_secs(60), is_used).expect("it is used again");
        agent.until("there are connections again", |_| connections(&agent, first.address) >= 8);
        let (count, before) = (agent.status().requests.kernel, first.requests());
        assert_eq!(idle.get("/a").status, 200);
        assert!(first.requests() == before + 1 && agent.status().requests.kernel == count + 1, "{:#?}", agent.status());
        agent.stop();
    });
}

#[test]
fn a_reload_closes_connections_to_endpoints_that_are_gone() {
    a_reload_closes("a_reload_closes_connections_to_endpoints_that_are_gone", "127.83.1.1:80", "");
}

#[test]
fn a_reload_closes_connections_by_tcp() {
    a_reload_closes("a_reload_closes_connections_by_tcp", "127.83.1.2:80", "local_bypass: false");
}

/// What runs whenever a socket of the host gets bytes is attached once there is an endpoint of this host to skip TCP for.
#[test]
fn what_only_the_bypass_needs_is_attached_with_it() {
    let name = "what_only_the_bypass_needs_is_attached_with_it";
    inside(name, |group| {
        let (first, second) = (Backend::start(), Backend::start());
        let (agent, service) = start_with(name, group, "127.83.1.4:80", first.address, "local_bypass: false");
        let links = || agent.objects().iter().filter(|(kind, _)| *kind == "link").count();
        assert_eq!((Client::connect(service).get("/a").status, links()), (200, 4));
        let (from, to) = (first.address.to_string(), second.address.to_string());
        change(&agent, &[("local_bypass: false", "local_bypass: true"), (&from, &to)]);
        // Twice: a response by this way is over, too.
        let mut client = Client::connect(service);
        let before = agent.status().responses.kernel;
        assert_eq!((client.get("/a").status, client.get("/a").status, links()), (200, 200, 5));
        assert_eq!(agent.status().responses.kernel, before + 2);
        agent.stop();
    });
}

/// Closes connections that nobody has used yet, all at once, several times.
struct Closer {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    closed: AtomicUsize,
}

impl Closer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let open = Arc::new(Mutex::new(Vec::new()));
        let accepted = open.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                stream.set_nonblocking(true).expect("a socket");
                accepted.lock().expect("no panic").push(stream);
            }
        });
        Self { address, open, closed: AtomicUsize::new(0) }
    }

    /// Drops what the agent closed; how many are left.
    fn open(&self) -> usize {
        let mut open = self.open.lock().expect("no panic");
        let is_open =
            |mut stream: &TcpStream| stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        open.retain(|stream| is_open(stream));
        open.len()
    }

    fn close_all(&self) {
        let gone = std::mem::take(&mut *self.open.lock().expect("no panic"));
        self.closed.fetch_add(gone.len(), Ordering::Relaxed);
    }
}

/// More connections are closed while they are idle than a pool has places: the pool does not fill up with them.
#[test]
fn a_pool_has_room_however_many_connections_were_closed() {
    const MIN: usize = 600;
    const PLACES: usize = 4096;
    let name = "a_pool_has_room_however_many_connections_were_closed";
    inside(name, |group| {
        let closer = Closer::start();
        let (agent, _) = start_with(name, group, "127.83.1.3:80", closer.address, &format!("pool: {{min: {MIN}}}"));
        while closer.closed.load(Ordering::Relaxed) < 2 * PLACES {
            wait::until("the pool is full", Duration::from_secs(60), || (closer.open() >= MIN).then_some(()))
                .expect("the pool is full");
            closer.close_all();
        }
        let full = agent.until("it is full again", |status| status.upstreams[0].connections >= MIN);
        assert_eq!(full.trouble, None);
        assert!(full.upstreams[0].connections < 2 * MIN, "{full:#?}");
        agent.stop();
    });
}
