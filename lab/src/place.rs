//! Where a program or a thread runs: CPUs and network namespace.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_setaffinity};

use crate::LabError;
use crate::error::While;
use crate::process::pin;

/// CPUs and network namespace; the default is: any CPU, the namespace that we are in.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// CPUs. None given: any.
    pub cpus: Vec<usize>,
    /// Network namespace. None: ours.
    pub namespace: Option<Arc<OwnedFd>>,
    /// The address to listen on there. None: 127.0.0.1.
    pub ip: Option<IpAddr>,
}

impl Place {
    /// On these CPUs.
    pub fn on(cpus: &[usize]) -> Self {
        Self { cpus: cpus.to_vec(), ..Self::default() }
    }

    /// Moves the calling thread there. It cannot leave the namespace: use a thread of its own.
    pub fn enter(&self) -> Result<(), LabError> {
        if !self.cpus.is_empty() {
            let set = cpu_set(&self.cpus);
            sched_setaffinity(None, &set).doing(|| format!("pin a thread to CPUs {:?}", self.cpus))?;
        }
        if let Some(namespace) = &self.namespace {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .doing(|| "enter a network namespace".to_owned())?;
        }
        Ok(())
    }

    /// The address to listen on.
    pub fn ip(&self) -> IpAddr {
        self.ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Does `work` there: in a thread of its own if it is another network namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> Result<T, LabError> + Send) -> Result<T, LabError> {
        if self.namespace.is_none() {
            return work();
        }
        let there = Self { cpus: Vec::new(), ..self.clone() };
        let panicked = |_| LabError::Io {
            what: "work in a network namespace".to_owned(),
            error: std::io::Error::other("the thread panicked"),
        };
        std::thread::scope(|scope| scope.spawn(|| there.enter().and_then(|()| work())).join().map_err(panicked)?)
    }

    /// Lets whatever `command` becomes run there.
    pub fn apply(&self, command: &mut Command) {
        pin(command, &self.cpus);
        if let Some(namespace) = self.namespace.clone() {
            let enter = move || {
                let namespace = namespace.as_fd();
                move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network)).map_err(Into::into)
            };
            // SAFETY: setns is async-signal-safe, and the closure owns the descriptor.
            unsafe { command.pre_exec(enter) };
        }
    }
}

fn cpu_set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu);
    }
    set
}
