//! The programs and maps in the kernel. Nothing is pinned: all of it goes when the agent goes.

use std::cell::{OnceCell, RefCell};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, ProgramInput};
use underdeck_mesh_compiler::abi::{
    self, ud_address, ud_cluster, ud_conn, ud_counters, ud_pool_call, ud_progress, ud_upstream,
};

const ENTRY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/entry.bpf.o"));

/// Why the kernel does not do it.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A program or map is refused.
    #[error("the kernel refuses {what}: {source}")]
    Bpf {
        /// What was asked for.
        what: String,
        /// Why.
        source: libbpf_rs::Error,
    },
    /// The control group cannot be opened.
    #[error("control group {path}: {source}", path = .path.display())]
    Cgroup {
        /// Its folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// An object does not have what it should have.
    #[error("there is no {0} in the object")]
    Missing(String),
}

impl KernelError {
    /// A socket map takes established connections only: this one ended meanwhile.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Bpf { source, .. } if source.kind() == libbpf_rs::ErrorKind::Unsupported)
    }
}

pub(crate) fn bpf<T>(what: &str, result: libbpf_rs::Result<T>) -> Result<T, KernelError> {
    result.map_err(|source| KernelError::Bpf { what: what.to_owned(), source })
}

/// A structure of the contract as bytes, and back.
///
/// # Safety
///
/// Only for structures of integers without padding.
pub(crate) unsafe trait Plain: Copy + Default {
    fn bytes(&self) -> &[u8] {
        // SAFETY: there is no padding, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    fn from(bytes: &[u8]) -> Option<Self> {
        let mut value = Self::default();
        if bytes.len() < size_of::<Self>() {
            return None;
        }
        // SAFETY: any bytes make a value, and there are enough of them.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast(), size_of::<Self>()) };
        Some(value)
    }
}

// SAFETY: integers without padding, all of them.
unsafe impl Plain for ud_conn {}
// SAFETY: as above.
unsafe impl Plain for ud_progress {}
// SAFETY: as above.
unsafe impl Plain for ud_upstream {}
// SAFETY: as above.
unsafe impl Plain for ud_cluster {}
// SAFETY: as above.
unsafe impl Plain for ud_counters {}
// SAFETY: as above.
unsafe impl Plain for ud_pool_call {}
// SAFETY: as above.
unsafe impl Plain for ud_address {}
// SAFETY: as above.
unsafe impl Plain for u64 {}

/// The fixed programs, attached.
pub(crate) struct Kernel {
    object: Object,
    sockets: MapHandle,
    conns: MapHandle,
    progresses: MapHandle,
    upstreams: MapHandle,
    servers: MapHandle,
    by_peer: MapHandle,
    expected: MapHandle,
    pools: RefCell<Vec<MapHandle>>,
    links: Vec<Link>,
    /// Of what runs whenever a socket of the host gets bytes: only once there is an endpoint on this host.
    arrived: OnceCell<Link>,
}

/// The program of one set of policies.
pub(crate) struct Program {
    object: Object,
}

pub(crate) fn map(object: &Object, name: &str) -> Result<MapHandle, KernelError> {
    let found = object.maps().find(|map| map.name() == name);
    let found = found.ok_or_else(|| KernelError::Missing(name.into()))?;
    bpf(name, MapHandle::try_from(&found))
}

pub(crate) fn address(of: SocketAddr) -> ud_address {
    ud_address::new(of.ip(), of.port())
}

pub(crate) fn open_cgroup(path: &Path) -> Result<File, KernelError> {
    File::open(path).map_err(|source| KernelError::Cgroup { path: path.to_owned(), source })
}

impl Kernel {
    /// The number of a link that goes with the agent.
    pub(crate) fn link(&self) -> Result<u32, KernelError> {
        let link = self.links.first().ok_or_else(|| KernelError::Missing("link".into()))?;
        Ok(bpf("a link", link.info())?.id)
    }

    /// A program that takes connections over.
    pub(crate) fn connect_program(&self, name: &str) -> Result<BorrowedFd<'_>, KernelError> {
        let found = self.object.progs().find(|program| program.name() == name);
        let found = found.ok_or_else(|| KernelError::Missing(name.into()))?;
        // SAFETY: the program is open for as long as the object.
        Ok(unsafe { BorrowedFd::borrow_raw(found.as_fd().as_raw_fd()) })
    }

    /// Loads and attaches; nothing is taken over until [`Self::take_over`]. `guarded`: a [`crate::guard`] calls the
    /// programs that take connections over, so they are not attached here.
    pub(crate) fn load(cgroup: &Path, guarded: bool) -> Result<Self, KernelError> {
        let open = bpf("the fixed programs", ObjectBuilder::default().open_memory(ENTRY))?;
        let object = bpf("the fixed programs", open.load())?;
        let folder = open_cgroup(cgroup)?;
        let mut links = Vec::new();
        let attached = [
            ("ud_request", "ud_clients"),
            ("ud_from_agent", "ud_clients"),
            ("ud_response", "ud_servers"),
            ("ud_reply", "ud_locals"),
            ("ud_to_local", "ud_locals"),
        ];
        for (name, of) in attached {
            let map = map(&object, of)?;
            bpf(name, program(&object, name)?.attach_sockmap(map.as_fd().as_raw_fd()))?;
        }
        links.push(bpf("ud_ending", program(&object, "ud_ending")?.attach())?);
        // The order matters: a connection must not be taken over before it can be known.
        let attached = ["ud_established", "ud_connect4", "ud_connect6"];
        for name in &attached[..if guarded { 1 } else { 3 }] {
            links.push(bpf(name, program(&object, name)?.attach_cgroup(folder.as_raw_fd()))?);
        }
        Ok(Self {
            sockets: map(&object, "ud_clients")?,
            conns: map(&object, "ud_conns")?,
            progresses: map(&object, "ud_progresses")?,
            upstreams: map(&object, "ud_upstreams")?,
            servers: map(&object, "ud_servers")?,
            by_peer: map(&object, "ud_by_peer")?,
            expected: map(&object, "ud_expected")?,
            pools: RefCell::default(),
            links,
            arrived: OnceCell::new(),
            object,
        })
    }

    /// Connections to `service` come to `agent` from now on.
    pub(crate) fn take_over(&self, service: SocketAddr, agent: SocketAddr) -> Result<(), KernelError> {
        let services = map(&self.object, "ud_services")?;
        bpf("ud_services", services.update(address(service).bytes(), address(agent).bytes(), MapFlags::ANY))
    }

    /// Connections to `service` go there from now on.
    pub(crate) fn leave(&self, service: SocketAddr) -> Result<(), KernelError> {
        bpf("ud_services", map(&self.object, "ud_services")?.delete(address(service).bytes()))
    }

    /// Another endpoint, with an empty pool: its number.
    pub(crate) fn add_endpoint(&self) -> Result<u32, KernelError> {
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let pool = MapHandle::create(MapType::Stack, Some("ud_pool"), 0, 8, abi::UD_POOL_MAX, &options);
        let pool = bpf("ud_pool", pool)?;
        let index = u32::try_from(self.pools.borrow().len()).unwrap_or(u32::MAX);
        let fd = pool.as_fd().as_raw_fd().to_ne_bytes();
        bpf("ud_pools", map(&self.object, "ud_pools")?.update(&index.to_ne_bytes(), &fd, MapFlags::ANY))?;
        self.pools.borrow_mut().push(pool);
        Ok(index)
    }

    /// Loads the program of a set of policies beside the one in force.
    pub(crate) fn load_program(&self, object: &[u8], generation: u32) -> Result<Program, KernelError> {
        let what = "the program of the policies";
        let mut open = bpf(what, ObjectBuilder::default().open_memory(object))?;
        for mut theirs in open.maps_mut() {
            let name = theirs.name().to_string_lossy().into_owned();
            if name == ".rodata.generation"
                && let Some(value) = theirs.initial_value_mut().and_then(|value| value.get_mut(..4))
            {
                value.copy_from_slice(&generation.to_ne_bytes());
            }
            if let Some(ours) = self.object.maps().find(|map| map.name().to_string_lossy() == name)
                && name.starts_with("ud_")
            {
                bpf(&name, theirs.reuse_fd(ours.as_fd()))?;
            }
        }
        Ok(Program { object: bpf(what, open.load())? })
    }

    /// Requests from now on are decided by this program.
    pub(crate) fn switch(&self, program: &Program) -> Result<(), KernelError> {
        let fd = self::program(&program.object, "ud_policy")?.as_fd().as_raw_fd();
        let programs = map(&self.object, "ud_programs")?;
        bpf("ud_programs", programs.update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY))
    }

    /// The cookie of the application's socket, by its address.
    pub(crate) fn cookie_of(&self, peer: SocketAddr) -> Option<u64> {
        let found = self.by_peer.lookup(address(peer).bytes(), MapFlags::ANY).ok()??;
        Plain::from(&found)
    }

    /// What the kernel knows of a connection.
    pub(crate) fn conn(&self, client: u64) -> Option<ud_conn> {
        Plain::from(&self.conns.lookup(client.bytes(), MapFlags::ANY).ok()??)
    }

    /// Says how far the agent is.
    pub(crate) fn set_progress(&self, client: u64, progress: ud_progress) {
        // If it fails, the connection is busy for ever: slow, not wrong.
        let _ = self.progresses.update(client.bytes(), progress.bytes(), MapFlags::ANY);
    }

    /// Whether the application's socket is still there.
    pub(crate) fn is_open(&self, client: u64) -> bool {
        matches!(self.sockets.lookup(client.bytes(), MapFlags::ANY), Ok(Some(_)))
    }

    /// The connection is gone.
    pub(crate) fn forget_client(&self, client: u64, peer: SocketAddr) {
        let _ = self.conns.delete(client.bytes());
        let _ = self.progresses.delete(client.bytes());
        let _ = self.by_peer.delete(address(peer).bytes());
    }

    pub(crate) fn upstream(&self, cookie: u64) -> Option<ud_upstream> {
        Plain::from(&self.upstreams.lookup(cookie.bytes(), MapFlags::ANY).ok()??)
    }

    /// Whether an upstream has, or may still get, the request of this connection, or its response has not arrived.
    pub(crate) fn in_flight(&self, client: u64) -> bool {
        let Some(conn) = self.conn(client) else { return false };
        let has = conn.upstream != 0 && self.upstream(conn.upstream).is_some_and(|upstream| upstream.client == client);
        // In this order: who moves the end of a response says so before he gives the upstream back.
        has || self.conn(client).is_some_and(|conn| conn.mover != 0)
    }

    /// Gives an established, idle connection to the kernel.
    pub(crate) fn add_upstream(&self, cookie: u64, socket: BorrowedFd<'_>, endpoint: u32) -> Result<(), KernelError> {
        let entry = ud_upstream { endpoint, ..ud_upstream::default() };
        bpf("ud_upstreams", self.upstreams.update(cookie.bytes(), entry.bytes(), MapFlags::ANY))?;
        let fd = u64::try_from(socket.as_raw_fd()).unwrap_or(u64::MAX);
        let added = self.servers.update(cookie.bytes(), fd.bytes(), MapFlags::ANY);
        let added =
            added.and_then(|()| self.pools.borrow()[endpoint as usize].update(&[], cookie.bytes(), MapFlags::ANY));
        if added.is_err() {
            self.remove_upstream(cookie);
        }
        bpf("ud_servers", added)
    }

    /// Takes the connections that are gone out of a pool. Who wants one meanwhile may find none.
    pub(crate) fn sweep(&self, endpoint: u32) {
        let pools = self.pools.borrow();
        let pool = &pools[endpoint as usize];
        let taken = std::iter::from_fn(|| pool.lookup_and_delete(&[]).ok().flatten());
        let taken: Vec<_> = taken.take(abi::UD_POOL_MAX as usize).collect();
        // The one that was used last is on top.
        for cookie in
            taken.iter().rev().filter(|cookie| matches!(self.upstreams.lookup(cookie, MapFlags::ANY), Ok(Some(_))))
        {
            // If it fails, this connection stays idle.
            let _ = pool.update(&[], cookie, MapFlags::ANY);
        }
    }

    /// The agent is about to connect from `ours` to an endpoint of this host: bytes go to its socket, and come from it,
    /// without TCP, if its process is in the control group.
    pub(crate) fn expect(&self, cookie: u64, ours: SocketAddr, endpoint: SocketAddr) -> Result<(), KernelError> {
        // First: without it a response that skips TCP would never be over.
        if self.arrived.get().is_none() {
            let link = bpf("ud_arrived", program(&self.object, "ud_arrived")?.attach())?;
            let _ = self.arrived.set(link);
        }
        let pair = [address(ours).bytes(), address(endpoint).bytes()].concat();
        // If it fails, they take the way through TCP.
        let _ = self.expected.update(&pair, cookie.bytes(), MapFlags::ANY);
        Ok(())
    }

    /// Nobody takes it from now on. True: it was idle.
    pub(crate) fn retire(&self, cookie: u64) -> bool {
        self.pool_call(ud_pool_call { cookie, what: abi::UD_POOL_RETIRE, keep: 0 }) == 1
    }

    /// The agent has moved the response.
    pub(crate) fn end_relay(&self, cookie: u64, keep: bool) {
        self.pool_call(ud_pool_call { cookie, what: abi::UD_POOL_DONE, keep: keep.into() });
    }

    fn pool_call(&self, mut call: ud_pool_call) -> u32 {
        let Ok(program) = program(&self.object, "ud_pool") else { return 0 };
        // SAFETY: a structure of integers without padding, which outlives the slice.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut call).cast::<u8>(), size_of::<ud_pool_call>()) };
        let input = ProgramInput { context_in: Some(bytes), ..ProgramInput::default() };
        program.test_run(input).map_or(0, |done| done.return_value)
    }

    /// It is being closed.
    pub(crate) fn remove_upstream(&self, cookie: u64) {
        let _ = self.servers.delete(cookie.bytes());
        let _ = self.upstreams.delete(cookie.bytes());
    }

    /// The counters, summed over CPUs.
    pub(crate) fn counters(&self) -> ud_counters {
        let mut sum = ud_counters::default();
        let Ok(Some(parts)) = map(&self.object, "ud_counts")
            .map(|map| map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten())
        else {
            return sum;
        };
        for part in parts.iter().filter_map(|part| <ud_counters as Plain>::from(part)) {
            sum.kernel += part.kernel;
            sum.agent += part.agent;
            sum.answered += part.answered;
            sum.responses_kernel += part.responses_kernel;
            sum.responses_agent += part.responses_agent;
            sum.empty_pool += part.empty_pool;
            for (sum, part) in sum.envoy.iter_mut().zip(part.envoy) {
                *sum += part;
            }
        }
        sum
    }
}

impl Program {
    /// Says what a cluster consists of.
    pub(crate) fn set_cluster(&self, index: u32, cluster: ud_cluster) -> Result<(), KernelError> {
        let clusters = map(&self.object, "ud_clusters")?;
        bpf("ud_clusters", clusters.update(&index.to_ne_bytes(), cluster.bytes(), MapFlags::ANY))
    }

    /// Requests of an action.
    pub(crate) fn count(&self, action: u32) -> u64 {
        let parts = map(&self.object, "ud_action_counts")
            .map(|map| map.lookup_percpu(&action.to_ne_bytes(), MapFlags::ANY).ok().flatten());
        parts.ok().flatten().iter().flatten().filter_map(|part| <u64 as Plain>::from(part)).sum()
    }
}

pub(crate) fn program<'a>(object: &'a Object, name: &str) -> Result<libbpf_rs::ProgramMut<'a>, KernelError> {
    let found = object.progs_mut().find(|program| program.name() == name);
    found.ok_or_else(|| KernelError::Missing(name.into()))
}
