use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libbpf_sys as sys;

use crate::abi::{self, ud_rule};
use crate::attach::{self, Attached, Attachment, Owner};
use crate::flow::{Action, counters, octets};
use crate::program::{Hook, Program};
use crate::{Counters, Error, Flow, Rule, Target, netlink};

/// How steering is put in place.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most connections that can have rules at a time.
    pub capacity: u32,
    /// Which hook.
    pub attachment: Attachment,
    /// A folder in a BPF file system (such as `/sys/fs/bpf/underdeck/web`), made if it is missing. With it, the rules
    /// outlive the process, and the next process that names the folder takes them over. Needs tcx.
    pub pin: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options { capacity: 65_536, attachment: Attachment::Auto, pin: None }
    }
}

/// One at each hook.
const RULES_PER_FLOW: u32 = 2;

/// The programs at the hooks of some interfaces, and their rules. All rules hold on all of these interfaces.
///
/// Each call is one or two system calls and takes effect for the next packet. Dropping it takes everything back, unless
/// [`Options::pin`] is set; then only [`Steer::detach`] does. If the process dies, tcx detaches by itself, and
/// [`Steer::sweep`] (which [`Steer::attach`] also calls) clears up after clsact. With clsact, drop it in the network
/// namespace in which it was attached.
#[derive(Debug)]
pub struct Steer {
    attached: Vec<Attached>,
    program: Program,
    owner: u64,
    pin: Option<PathBuf>,
    _alive: Option<Owner>,
}

impl Steer {
    /// Attaches to the hooks of `interfaces`, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Without privilege, if an interface is missing or unsuited, or if the kernel lacks what is needed. Nothing is left
    /// behind.
    pub fn attach<I: AsRef<str>>(interfaces: &[I], options: &Options) -> Result<Steer, Error> {
        let interfaces = interfaces.iter().map(|name| interface(name.as_ref())).collect::<Result<Vec<_>, _>>()?;
        for interface in &interfaces {
            attach::sweep(*interface)?;
        }
        let pin = options.pin.as_deref();
        if let Some(folder) = pin {
            fs::create_dir_all(folder).map_err(|source| Error::Pin { path: folder.display().to_string(), source })?;
        }
        let map = pin.map(|folder| folder.join("rules"));
        let inherited = map.as_deref().filter(|map| map.exists());
        let program = Program::load(options.capacity.max(1).saturating_mul(RULES_PER_FLOW), inherited)?;
        if let (Some(map), None) = (&map, inherited)
            && let Err(error) = program.pin_map(map)
        {
            // Only if it is empty.
            let _ = pin.map(fs::remove_dir);
            return Err(error);
        }
        let mut steer = Steer { attached: Vec::new(), program, owner: owner(), pin: options.pin.clone(), _alive: None };
        steer.attach_all(&interfaces, options)?;
        Ok(steer)
    }

    fn attach_all(&mut self, interfaces: &[u32], options: &Options) -> Result<(), Error> {
        if options.attachment == Attachment::Clsact {
            self._alive = Some(Owner::new()?);
        }
        for interface in interfaces {
            for hook in Hook::BOTH {
                let attached = self.attach_one(*interface, hook, options)?;
                self.attached.push(attached);
            }
        }
        Ok(())
    }

    fn attach_one(&mut self, interface: u32, hook: Hook, options: &Options) -> Result<Attached, Error> {
        if let Some(owner) = &self._alive {
            return Attached::clsact(&self.program, interface, hook, owner.handle);
        }
        let pin = options.pin.as_deref().map(|folder| link_pin(folder, interface, hook));
        let tcx = Attached::tcx(&self.program, interface, hook, pin.as_deref());
        let may_fall_back = options.attachment == Attachment::Auto && pin.is_none() && self.attached.is_empty();
        match tcx {
            // Before Linux 6.6 the kernel does not know the hook.
            Err(Error::Call { source, .. }) if may_fall_back && source.raw_os_error() == Some(libc::EINVAL) => {
                let owner = Owner::new()?;
                let attached = Attached::clsact(&self.program, interface, hook, owner.handle);
                let attached = attached.map_err(|error| match error {
                    Error::Call { source, .. } => Error::NoHook(source),
                    error => error,
                })?;
                self._alive = Some(owner);
                Ok(attached)
            }
            result => result,
        }
    }

    /// Which kind of hook is in use.
    pub fn attachment(&self) -> Attachment {
        if self._alive.is_some() { Attachment::Clsact } else { Attachment::Tcx }
    }

    /// Silences a flow: drops the peer's packets before they reach a socket, and packets to the peer unless they have a
    /// source rule. Takes the place of a redirection of the flow.
    ///
    /// Packets that other processors handle at this moment may still pass the hook and find the socket, or none. The
    /// former is why `underdeck_handoff_tcp::freeze` reads until nothing moves; the reset that the latter would cause is
    /// why both directions are silenced.
    ///
    /// # Errors
    /// [`Error::Full`], or a family mismatch.
    pub fn block(&self, flow: &Flow) -> Result<(), Error> {
        self.set_ingress(flow, Action::Block)
    }

    /// Sends the peer's packets to `target` from now on. Takes the place of a block, without a gap. Packets to the peer
    /// stay blocked: this host's kernel knows nothing of the connection and could only reset it.
    ///
    /// # Errors
    /// As [`block`](Self::block).
    pub fn redirect(&self, flow: &Flow, target: &Target) -> Result<(), Error> {
        self.set_ingress(flow, Action::Redirect(*target))
    }

    /// Gives packets to the peer the source `source` from now on: the address and port that the peer knows.
    ///
    /// # Errors
    /// As [`block`](Self::block); [`Error::Exists`] if the flow has such a rule already.
    pub fn rewrite_source(&self, flow: &Flow, source: SocketAddr) -> Result<(), Error> {
        self.set(flow, Hook::Egress, Action::Source(source), sys::BPF_NOEXIST)
    }

    /// Lets packets through again: ends a block or a redirection, in both directions. None if there was none.
    ///
    /// # Errors
    /// Only if the kernel fails.
    pub fn remove_ingress(&self, flow: &Flow) -> Result<Option<Counters>, Error> {
        if self.program.get(&flow.egress()).is_some_and(|rule| rule.action == abi::UD_ACTION_BLOCK) {
            self.unset(flow, Hook::Egress)?;
        }
        self.unset(flow, Hook::Ingress)
    }

    /// Leaves the source of packets to the peer alone again. None if it was. When a connection has gone back to the
    /// balancer, call this before the frozen socket is released: what this host's kernel may still say to the peer is
    /// then not said in the balancer's name.
    ///
    /// # Errors
    /// Only if the kernel fails.
    pub fn remove_source(&self, flow: &Flow) -> Result<Option<Counters>, Error> {
        match self.source_counters(flow) {
            Some(_) => self.unset(flow, Hook::Egress),
            None => Ok(None),
        }
    }

    /// Removes all rules of a flow. True if there were any.
    ///
    /// # Errors
    /// Only if the kernel fails.
    pub fn remove(&self, flow: &Flow) -> Result<bool, Error> {
        let source = self.remove_source(flow)?;
        Ok(self.remove_ingress(flow)?.is_some() || source.is_some())
    }

    /// What a flow's block or redirection has done.
    pub fn ingress_counters(&self, flow: &Flow) -> Option<Counters> {
        self.program.get(&flow.ingress()).as_ref().map(counters)
    }

    /// What a flow's source rule has done.
    pub fn source_counters(&self, flow: &Flow) -> Option<Counters> {
        let rule = self.program.get(&flow.egress()).filter(|rule| rule.action == abi::UD_ACTION_SOURCE);
        rule.as_ref().map(counters)
    }

    /// All rules, those of earlier processes too. The outgoing half of a block or a redirection is not listed.
    pub fn rules(&self) -> Vec<Rule> {
        let keys = self.program.keys();
        keys.iter().filter_map(|key| Rule::from_map(key, &self.program.get(key)?, self.owner)).collect()
    }

    /// Removes rules that an earlier process left in the pinned map, and that no packet has used for `idle` (since they
    /// were taken over, if never). Returns the flows.
    ///
    /// # Errors
    /// Only if the kernel fails.
    pub fn sweep_inherited(&self, idle: Duration) -> Result<Vec<Flow>, Error> {
        let now = monotonic();
        let mut swept = Vec::new();
        for rule in self.rules().into_iter().filter(|rule| rule.inherited) {
            let quiet = rule.counters.last.is_none_or(|last| now.saturating_sub(last) >= idle);
            if quiet && self.remove(&rule.flow)? {
                swept.push(rule.flow);
            }
        }
        Ok(swept)
    }

    /// Removes what processes that are gone have left at the hooks of `interfaces` (clsact only: tcx leaves nothing).
    /// Returns how many programs that were.
    ///
    /// # Errors
    /// If an interface does not exist.
    pub fn sweep<I: AsRef<str>>(interfaces: &[I]) -> Result<usize, Error> {
        let mut swept = 0;
        for name in interfaces {
            swept += attach::sweep(interface(name.as_ref())?)?;
        }
        Ok(swept)
    }

    /// Takes everything back, pins too. Without pins this is what dropping does.
    pub fn detach(mut self) {
        for attached in &mut self.attached {
            attached.unpin();
        }
        if let Some(folder) = self.pin.take() {
            let _ = fs::remove_file(folder.join("rules"));
            let _ = fs::remove_dir(folder);
        }
    }

    fn set_ingress(&self, flow: &Flow, action: Action) -> Result<(), Error> {
        let silenced = match self.set(flow, Hook::Egress, Action::Block, sys::BPF_NOEXIST) {
            Ok(()) => true,
            // Silent already, or with a source rule.
            Err(Error::Exists(_)) => false,
            Err(error) => return Err(error),
        };
        let result = self.set(flow, Hook::Ingress, action, sys::BPF_ANY);
        if result.is_err() && silenced {
            self.unset(flow, Hook::Egress)?;
        }
        result
    }

    fn set(&self, flow: &Flow, hook: Hook, action: Action, flags: u32) -> Result<(), Error> {
        let (number, to, interface) = match action {
            Action::Block => (abi::UD_ACTION_BLOCK, flow.local, 0),
            Action::Redirect(target) => (abi::UD_ACTION_REDIRECT, target.address, target.interface),
            Action::Source(source) => (abi::UD_ACTION_SOURCE, source, 0),
        };
        for (one, other) in [(flow.local, flow.peer), (flow.local, to)] {
            if one.is_ipv4() != other.is_ipv4() {
                return Err(Error::Family(one, other));
            }
        }
        let rule = ud_rule {
            action: number,
            ifindex: interface,
            address: octets(to.ip()),
            port: to.port().to_be(),
            owner: self.owner,
            ..Default::default()
        };
        let key = key(flow, hook);
        self.program.set(&key, &rule, flags).map_err(|source| match source.raw_os_error() {
            Some(libc::E2BIG | libc::ENOSPC) => Error::Full { limit: self.program.capacity() / RULES_PER_FLOW },
            Some(libc::EEXIST) => Error::Exists(*flow),
            _ => Error::call("bpf_map_update_elem", source),
        })
    }

    fn unset(&self, flow: &Flow, hook: Hook) -> Result<Option<Counters>, Error> {
        let key = key(flow, hook);
        let Some(rule) = self.program.get(&key) else { return Ok(None) };
        let removed = self.program.remove(&key).map_err(|source| Error::call("bpf_map_delete_elem", source))?;
        Ok(removed.then(|| counters(&rule)))
    }
}

impl Target {
    /// Looks up which interface leads to `address`, once: keep the target of a backend.
    ///
    /// # Errors
    /// If there is no route, or the address is this host's own.
    pub fn resolve(address: SocketAddr) -> Result<Target, Error> {
        let route = netlink::route(address.ip()).map_err(|source| Error::NoRoute { target: address, source })?;
        if route.local {
            return Err(Error::LocalTarget(address));
        }
        Ok(Target { address, interface: route.interface })
    }
}

fn key(flow: &Flow, hook: Hook) -> abi::ud_flow {
    match hook {
        Hook::Ingress => flow.ingress(),
        Hook::Egress => flow.egress(),
    }
}

fn link_pin(folder: &Path, interface: u32, hook: Hook) -> PathBuf {
    folder.join(format!("{interface}-{}", hook.name()))
}

fn interface(name: &str) -> Result<u32, Error> {
    let none = || Error::NoInterface(name.to_owned());
    let c_name = std::ffi::CString::new(name).map_err(|_| none())?;
    // SAFETY: a C string.
    let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
    if index == 0 {
        return Err(none());
    }
    // ARPHRD_ETHER and ARPHRD_LOOPBACK have a header of 14 bytes. SIOCGIFHWADDR tells the type.
    match hardware_type(name).map_err(|source| Error::call("SIOCGIFHWADDR", source))? {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(index),
        _ => Err(Error::NotEthernet(name.to_owned())),
    }
}

fn hardware_type(name: &str) -> io::Result<u16> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("[::1]:0"))?;
    // SAFETY: all zero is an empty request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, byte) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = byte.cast_signed();
    }
    // SAFETY: the kernel reads the name and writes a hardware address.
    match unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCGIFHWADDR, &raw mut request) } {
        // SAFETY: the call has written this member.
        0 => Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Different for each process, and for each time it attaches.
fn owner() -> u64 {
    u64::from(std::process::id()) << 32 ^ monotonic().as_nanos() as u64
}

fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}
