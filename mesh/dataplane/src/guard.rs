//! Failing closed: two programs that stay attached to the control group and refuse connections to the services while
//! no agent runs. They and two small maps are all that stays; [`find`] shows them, [`release`] takes them away, and
//! they go with the control group.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys::{self, BPF_CGROUP_INET4_CONNECT, BPF_CGROUP_INET6_CONNECT, bpf_prog_info};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, Program};
use serde::Serialize;
use underdeck_mesh_compiler::abi::ud_address;

use crate::kernel::{Kernel, KernelError, Plain, address, bpf, map, open_cgroup, program};

const GUARD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guard.bpf.o"));

/// A program, where it is attached, what it calls while the agent lives.
struct Part {
    name: &'static str,
    at: libbpf_sys::bpf_attach_type,
    alive: &'static str,
    takes_over: &'static str,
}

const PARTS: [Part; 2] = [
    Part { name: "ud_guard4", at: BPF_CGROUP_INET4_CONNECT, alive: "ud_alive4", takes_over: "ud_connect4" },
    Part { name: "ud_guard6", at: BPF_CGROUP_INET6_CONNECT, alive: "ud_alive6", takes_over: "ud_connect6" },
];

/// The guard of a running agent. When this is dropped, or the agent dies, it refuses.
pub(crate) struct Guard {
    object: Object,
    /// Of the agent: it lives as long.
    link: u32,
}

impl Guard {
    /// Attaches one, in the place of one that an earlier agent left: there is no moment without.
    pub(crate) fn attach(cgroup: &Path, kernel: &Kernel, services: &[SocketAddr]) -> Result<Self, KernelError> {
        let open = bpf("the guard", ObjectBuilder::default().open_memory(GUARD))?;
        let guard = Self { object: bpf("the guard", open.load())?, link: kernel.link()? };
        guard.set_services(services)?;
        for part in &PARTS {
            let fd = kernel.connect_program(part.takes_over)?.as_raw_fd();
            let alive = map(&guard.object, part.alive)?;
            bpf(part.alive, alive.update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY))?;
        }
        let folder = open_cgroup(cgroup)?;
        for part in &PARTS {
            let before = attached(&folder, part)?;
            let program = program(&guard.object, part.name)?;
            bpf(part.name, attach(&folder, part, program.as_fd(), before.first().map(AsFd::as_fd)))?;
        }
        Ok(guard)
    }

    /// Connections to these are refused without the agent, and no others.
    pub(crate) fn set_services(&self, services: &[SocketAddr]) -> Result<(), KernelError> {
        let guarded = map(&self.object, "ud_guarded")?;
        let wanted: Vec<ud_address> = services.iter().map(|service| address(*service)).collect();
        for service in &wanted {
            bpf("ud_guarded", guarded.update(service.bytes(), &self.link.to_ne_bytes(), MapFlags::ANY))?;
        }
        let is_wanted = |key: &Vec<u8>| wanted.iter().any(|service| service.bytes() == &key[..]);
        for old in guarded.keys().filter(|key| !is_wanted(key)).collect::<Vec<_>>() {
            bpf("ud_guarded", guarded.delete(&old))?;
        }
        Ok(())
    }
}

/// A guard that is attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The control group.
    pub cgroup: PathBuf,
    /// Connections to these are refused without an agent.
    pub services: Vec<SocketAddr>,
    /// Whether an agent takes them over now.
    pub is_served: bool,
}

/// All guards on this machine.
///
/// # Errors
///
/// If the kernel does not let itself be asked: that needs root.
pub fn find() -> Result<Vec<Found>, KernelError> {
    let mut found = Vec::new();
    let mut folders: Vec<_> = root().into_iter().collect();
    while let Some(folder) = folders.pop() {
        let inside = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        folders.extend(inside.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|of| of.path()));
        // One that was removed meanwhile has none.
        let Ok(file) = File::open(&folder) else { continue };
        let mut guard: Option<Found> = None;
        for part in &PARTS {
            for program in attached(&file, part)? {
                let guard = guard.get_or_insert_with(|| Found {
                    cgroup: folder.clone(),
                    services: Vec::new(),
                    is_served: true,
                });
                // Both parts share the list.
                guard.services.clear();
                guard.is_served &= look(&program, &mut guard.services)?;
            }
        }
        found.extend(guard);
    }
    found.sort_by(|a, b| a.cgroup.cmp(&b.cgroup));
    Ok(found)
}

/// Takes the guard of a control group away. False: there is none.
///
/// # Errors
///
/// If the control group is not there, or the kernel refuses.
pub fn release(cgroup: &Path) -> Result<bool, KernelError> {
    let folder = open_cgroup(cgroup)?;
    let mut was_there = false;
    for part in &PARTS {
        for program in attached(&folder, part)? {
            // SAFETY: both descriptors are open.
            let result = unsafe { libbpf_sys::bpf_prog_detach2(program.as_raw_fd(), folder.as_raw_fd(), part.at) };
            bpf(part.name, checked(result))?;
            was_there = true;
        }
    }
    Ok(was_there)
}

/// Where control groups of version 2 are.
fn root() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let mount = mounts.lines().map(|line| line.split(' ')).find(|words| words.clone().nth(2) == Some("cgroup2"));
    Some(PathBuf::from(mount?.nth(1)?))
}

fn checked(result: i32) -> libbpf_rs::Result<()> {
    if result < 0 { Err(libbpf_rs::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

fn attach(
    folder: &File,
    part: &Part,
    program: BorrowedFd<'_>,
    instead: Option<BorrowedFd<'_>>,
) -> libbpf_rs::Result<()> {
    let mut options = libbpf_sys::bpf_prog_attach_opts {
        sz: size_of::<libbpf_sys::bpf_prog_attach_opts>() as _,
        flags: libbpf_sys::BPF_F_ALLOW_MULTI,
        ..Default::default()
    };
    if let Some(before) = instead {
        options.flags |= libbpf_sys::BPF_F_REPLACE;
        options.__bindgen_anon_1.replace_prog_fd = before.as_raw_fd();
    }
    // SAFETY: the descriptors are open, and the options have their size.
    checked(unsafe {
        libbpf_sys::bpf_prog_attach_opts(program.as_raw_fd(), folder.as_raw_fd(), part.at, &raw const options)
    })
}

/// The programs of this name that are attached to a control group.
fn attached(folder: &File, part: &Part) -> Result<Vec<OwnedFd>, KernelError> {
    let (mut ids, mut count, mut flags) = ([0u32; 64], 64u32, 0u32);
    // SAFETY: the descriptor is open, and there is room for as many numbers as `count` says.
    let result = unsafe {
        let (ids, flags, count) = (ids.as_mut_ptr(), &raw mut flags, &raw mut count);
        libbpf_sys::bpf_prog_query(folder.as_raw_fd(), part.at, 0, flags, ids, count)
    };
    bpf("the programs of a control group", checked(result))?;
    let mut out = Vec::new();
    for id in &ids[..(count as usize).min(ids.len())] {
        // One that was detached meanwhile is none.
        let Ok(fd) = Program::fd_from_id(*id) else { continue };
        let name = info(fd.as_fd(), &mut [])?.name;
        let name: Vec<u8> = name.iter().map(|byte| byte.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
        if name == part.name.as_bytes() {
            out.push(fd);
        }
    }
    Ok(out)
}

fn info(program: BorrowedFd<'_>, maps: &mut [u32]) -> Result<bpf_prog_info, KernelError> {
    let mut info = bpf_prog_info {
        nr_map_ids: u32::try_from(maps.len()).unwrap_or(0),
        map_ids: maps.as_mut_ptr() as u64,
        ..bpf_prog_info::default()
    };
    let mut len = u32::try_from(size_of::<bpf_prog_info>()).unwrap_or(0);
    // SAFETY: `info` has `len` bytes, and room for as many maps as it says.
    let result =
        unsafe { libbpf_sys::bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &raw mut len) };
    bpf("a program's description", checked(result))?;
    Ok(info)
}

/// Adds what it guards; whether an agent stands behind it.
///
/// The program arrays are not looked at: on Linux 6.18 one that is opened and closed twice, while the kernel is still
/// busy emptying it, is never freed.
fn look(program: &OwnedFd, services: &mut Vec<SocketAddr>) -> Result<bool, KernelError> {
    let mut ids = [0u32; 8];
    info(program.as_fd(), &mut ids)?;
    // The list is the first map that the programs use.
    let guarded = bpf("ud_guarded", MapHandle::from_map_id(ids[0]))?;
    if guarded.name() != "ud_guarded" {
        return Err(KernelError::Missing("ud_guarded".into()));
    }
    let mut is_served = false;
    for key in guarded.keys() {
        let link = guarded.lookup(&key, MapFlags::ANY).ok().flatten();
        is_served |= link.and_then(|link| Some(u32::from_ne_bytes(link.try_into().ok()?))).is_some_and(is_link);
        services.extend(<ud_address as Plain>::from(&key).map(|address| SocketAddr::from(address.parts())));
    }
    services.sort_unstable();
    Ok(is_served)
}

/// Whether there is a link of this number. Numbers are not used again.
fn is_link(id: u32) -> bool {
    let mut next = 0;
    // SAFETY: the number is written to `next`.
    let result = unsafe { libbpf_sys::bpf_link_get_next_id(id.saturating_sub(1), &raw mut next) };
    result == 0 && next == id
}
