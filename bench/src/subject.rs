//! Who is measured: a proxy, plain or under Underdeck, the bare splice relay, or nobody (direct).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use underdeck_lab::proc::CpuTime;
use underdeck_lab::proxy::Proxy;
use underdeck_lab::relay::Relay;
use underdeck_lab::{LabError, engine, proc};

use crate::measure::Cpus;

/// Something in the middle, running.
#[derive(Debug)]
pub enum Subject {
    /// nginx, HAProxy or Envoy.
    Proxy(Box<Proxy>),
    /// The bare splice relay.
    Relay(Relay),
    /// Clients talk to the backend at this address.
    Direct(SocketAddr),
}

/// What a subject has used so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used {
    pub(crate) cpu: Duration,
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    pub(crate) switches: u64,
    pub(crate) anchored: u64,
    pub(crate) copied: u64,
    pub(crate) resets: u64,
    ready: BTreeMap<u32, Duration>,
    softirq: CpuTime,
}

impl Subject {
    /// Where clients connect to.
    pub fn addr(&self) -> Result<SocketAddr, LabError> {
        Ok(match self {
            Self::Proxy(proxy) => proxy.front()?.addr,
            Self::Relay(relay) => relay.addr(),
            Self::Direct(addr) => *addr,
        })
    }

    /// Its processes.
    pub fn pids(&self) -> Vec<u32> {
        match self {
            Self::Proxy(proxy) => proxy.process().pids(),
            Self::Relay(relay) => relay.process().pids(),
            Self::Direct(_) => Vec::new(),
        }
    }

    /// The processes that serve clients.
    pub fn workers(&self) -> Vec<u32> {
        match self {
            Self::Proxy(proxy) => proxy.workers(),
            _ => self.pids(),
        }
    }

    /// The engine's counters come first at the beginning and last at the end: reading them takes longest. `helpers` are
    /// threads of the kernel that work for it alone.
    pub(crate) fn used(&self, helpers: &[u32], beginning: bool) -> Used {
        let mut used = Used::default();
        if beginning {
            self.counters(&mut used);
        }
        used.cpu += helpers.iter().copied().map(proc::cpu).sum::<Duration>();
        for pid in self.pids() {
            used.cpu += proc::cpu(pid);
            let (user, system) = proc::user_and_system(pid);
            (used.user, used.system) = (used.user + user, used.system + system);
            used.ready.append(&mut proc::ready(pid));
            used.switches += proc::switches(pid);
        }
        used.softirq = proc::cpu_time(&Cpus::here().proxy);
        if !beginning {
            self.counters(&mut used);
        }
        used
    }

    fn counters(&self, used: &mut Used) {
        if let Self::Proxy(proxy) = self
            && let Some(snapshot) = engine::snapshot(proxy)
        {
            (used.anchored, used.copied) = engine::anchored_and_copied(&snapshot);
            used.resets = snapshot.resets + snapshot.panics;
        }
    }

    /// Stops it; what is left behind is an error.
    pub fn stop(self) -> Result<(), LabError> {
        match self {
            Self::Proxy(proxy) => proxy.stop(),
            Self::Relay(relay) => relay.stop(),
            Self::Direct(_) => Ok(()),
        }
    }
}

impl Used {
    /// Share of the subject's CPUs that softirqs had; everything if nobody is pinned.
    pub(crate) fn softirq_share(&self, before: &Self) -> f64 {
        let all = self.softirq.all.saturating_sub(before.softirq.all);
        self.softirq.softirq.saturating_sub(before.softirq.softirq) as f64 / all.max(1) as f64
    }

    /// How much of `window` the busiest thread ran or was ready to run: 1 is saturated.
    pub(crate) fn saturation(&self, before: &Self, window: Duration) -> f64 {
        let grown = |(thread, now): (&u32, &Duration)| {
            now.saturating_sub(before.ready.get(thread).copied().unwrap_or_default()).as_secs_f64()
        };
        self.ready.iter().map(grown).fold(0.0, f64::max) / window.as_secs_f64()
    }
}
