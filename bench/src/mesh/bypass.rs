//! A bypass for connections within one host, at Layer 4: `bench/bpf/bypass.bpf.c`.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramMut};
use underdeck_lab::LabError;
use underdeck_lab::group::Group;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bypass.bpf.o"));

/// The bypass, in force for all connections within a control group. Dropping it ends it.
pub struct Bypass {
    object: Object,
    _link: Link,
}

fn failed(error: impl Into<std::io::Error>) -> LabError {
    LabError::Io { what: "put the bypass in force".to_owned(), error: error.into() }
}

fn bpf<T>(result: libbpf_rs::Result<T>) -> Result<T, LabError> {
    result.map_err(|error| failed(std::io::Error::other(format!("{error:#}"))))
}

fn map(object: &Object, name: &str) -> Result<MapHandle, LabError> {
    let found = object.maps().find(|map| map.name() == name);
    bpf(MapHandle::try_from(&found.ok_or_else(|| failed(std::io::ErrorKind::NotFound))?))
}

fn program<'a>(object: &'a Object, name: &str) -> Result<ProgramMut<'a>, LabError> {
    let found = object.progs_mut().find(|program| program.name() == name);
    found.ok_or_else(|| failed(std::io::ErrorKind::NotFound))
}

impl Bypass {
    /// Connections that are made from now on take it.
    pub fn start(group: &Group) -> Result<Self, LabError> {
        let object = bpf(ObjectBuilder::default().open_memory(OBJECT))?;
        let object = bpf(object.load())?;
        let folder = File::open(group.path()).map_err(failed)?;
        bpf(program(&object, "sent")?.attach_sockmap(map(&object, "sockets")?.as_fd().as_raw_fd()))?;
        let link = bpf(program(&object, "established")?.attach_cgroup(folder.as_raw_fd()))?;
        Ok(Self { object, _link: link })
    }

    /// Messages that took it.
    pub fn messages(&self) -> u64 {
        let parts = map(&self.object, "redirected").map(|map| map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY));
        let parts = parts.ok().and_then(|parts| parts.ok().flatten()).unwrap_or_default();
        parts.iter().filter_map(|part| Some(u64::from_ne_bytes(part.get(..8)?.try_into().ok()?))).sum()
    }
}
