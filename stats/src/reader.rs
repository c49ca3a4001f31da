//! The side of `stat`, `metrics` and tests: finds the blocks of other processes under `/proc` and copies them out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::layout::{BLOCK_BYTES, Reason, Role, plain};

const LINK: &str = "/memfd:underdeck-stats (deleted)";
const SLOTS: usize = plain::UD_REASON_SLOTS as usize;

/// Why the counters of one process could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no such process.
    #[error("no process {0}")]
    NoProcess(u32),
    /// The process has no block: the engine is not in it.
    #[error("process {0} has no Underdeck counters: it was not started with `underdeck run`")]
    NoBlock(u32),
    /// The kernel does not let this user look at the descriptors of the process.
    #[error("process {0} belongs to somebody else: run this as root, or as the user who started the process")]
    Denied(u32),
    /// The block is of another version of the layout.
    #[error("process {pid} has counters of version {version}, this program reads version {}", plain::UD_STATS_VERSION)]
    Version {
        /// The process.
        pid: u32,
        /// What its block says.
        version: u64,
    },
    /// Anything else that the kernel answered.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file under /proc.
        path: PathBuf,
        /// The kernel's answer.
        error: std::io::Error,
    },
}

/// The counters of one process at one moment. Fields in the order of `struct ud_stats`; its JSON is schema 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// The process, as this reader's /proc numbers it. 0: a sum over processes.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`).
    pub comm: String,
    /// The protocol program.
    pub protocol: String,
    /// CLOCK_REALTIME when the engine started in it.
    pub started_realtime_ns: u64,
    /// Whether the engine anchors, or is switched off.
    pub enabled: bool,
    /// Anchors that exist now.
    pub anchors_open: u64,
    /// Highest value of the above. In a sum: of the highest values, an upper bound.
    pub anchors_open_max: u64,
    /// Bytes in pipes now.
    pub bytes_held: u64,
    /// Highest value of the above.
    pub bytes_held_max: u64,
    /// Pipes that exist now.
    pub pipes_open: u64,
    /// Highest value of the above.
    pub pipes_open_max: u64,
    /// Connections that the engine had to reset: must be 0.
    pub resets: u64,
    /// Panics caught at the border: must be 0.
    pub panics: u64,
    /// By [`Role`].
    #[serde(serialize_with = "by_role")]
    pub roles: [RoleSnapshot; 2],
    /// Identifies the memory, so that a block that two processes show is counted once.
    #[serde(skip)]
    pub inode: u64,
}

/// The counters of one role: `struct ud_stats_role`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RoleSnapshot {
    /// Connections seen.
    pub connections: u64,
    /// Messages with a body.
    pub messages: u64,
    /// Of these: at least one byte anchored.
    pub messages_anchored: u64,
    /// Of these: every byte copied.
    pub messages_copied: u64,
    /// Payload bytes that stayed in the kernel on receive.
    pub bytes_anchored: u64,
    /// Payload bytes copied to the process on receive.
    pub bytes_copied: u64,
    /// Anchored bytes that left by splice.
    pub bytes_forwarded: u64,
    /// Anchored bytes that had to be copied after all.
    pub bytes_materialised: u64,
    /// Anchored bytes that the process never sent.
    pub bytes_dropped: u64,
    /// Bytes of `bytes_copied`, by slot of [`Reason`].
    #[serde(serialize_with = "by_reason")]
    pub copied_by_reason: [u64; SLOTS],
    /// Bytes of `bytes_materialised`, by slot of [`Reason`].
    #[serde(serialize_with = "by_reason")]
    pub materialised_by_reason: [u64; SLOTS],
}

fn by_role<S: Serializer>(roles: &[RoleSnapshot; 2], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(2))?;
    for role in Role::ALL {
        map.serialize_entry(role.name(), &roles[role as usize])?;
    }
    map.end()
}

fn by_reason<S: Serializer>(slots: &[u64; SLOTS], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(None)?;
    for reason in Reason::ALL {
        map.serialize_entry(reason.name(), &slots[reason as usize])?;
    }
    // A newer engine may know reasons that this reader does not.
    for (slot, bytes) in slots.iter().enumerate().skip(Reason::ALL.len()).filter(|(_, bytes)| **bytes > 0) {
        map.serialize_entry(&format!("reason-{slot}"), bytes)?;
    }
    map.end()
}

impl RoleSnapshot {
    /// Payload bytes that stayed in the kernel all the way, of all that were received: 0 to 1. None without payload.
    pub fn share_anchored(&self) -> Option<f64> {
        let all = self.bytes_anchored.saturating_add(self.bytes_copied);
        let kept = self.bytes_anchored.saturating_sub(self.bytes_materialised);
        (all > 0).then(|| kept as f64 / all as f64)
    }

    fn add(&mut self, other: &Self) {
        add(&mut self.connections, other.connections);
        add(&mut self.messages, other.messages);
        add(&mut self.messages_anchored, other.messages_anchored);
        add(&mut self.messages_copied, other.messages_copied);
        add(&mut self.bytes_anchored, other.bytes_anchored);
        add(&mut self.bytes_copied, other.bytes_copied);
        add(&mut self.bytes_forwarded, other.bytes_forwarded);
        add(&mut self.bytes_materialised, other.bytes_materialised);
        add(&mut self.bytes_dropped, other.bytes_dropped);
        for slot in 0..SLOTS {
            add(&mut self.copied_by_reason[slot], other.copied_by_reason[slot]);
            add(&mut self.materialised_by_reason[slot], other.materialised_by_reason[slot]);
        }
    }
}

/// Any user can make a memory file with our name and any numbers in it: they must not make a sum overflow.
fn add(to: &mut u64, n: u64) {
    *to = to.saturating_add(n);
}

/// Names come from other users' processes: they must not speak to the reader's terminal.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

impl Snapshot {
    /// Reads the block of one process.
    pub fn of_pid(pid: u32) -> Result<Self, ReadError> {
        Self::of_pid_in(Path::new("/proc"), pid)
    }

    /// As [`Snapshot::of_pid`], with another mount point of procfs.
    pub fn of_pid_in(proc: &Path, pid: u32) -> Result<Self, ReadError> {
        let process = proc.join(pid.to_string());
        let directory = process.join("fd");
        let links = std::fs::read_dir(&directory).map_err(|error| match error.kind() {
            ErrorKind::NotFound => ReadError::NoProcess(pid),
            ErrorKind::PermissionDenied => ReadError::Denied(pid),
            _ => ReadError::Io { path: directory.clone(), error },
        })?;
        let link = links
            .flatten()
            .map(|entry| entry.path())
            .find(|path| std::fs::read_link(path).is_ok_and(|to| to == Path::new(LINK)))
            .ok_or(ReadError::NoBlock(pid))?;
        let (page, inode) = read_page(&link).map_err(|error| match error.kind() {
            // The process ended, or the file is shorter than a block.
            ErrorKind::NotFound | ErrorKind::UnexpectedEof => ReadError::NoBlock(pid),
            ErrorKind::PermissionDenied => ReadError::Denied(pid),
            _ => ReadError::Io { path: link.clone(), error },
        })?;
        let comm = std::fs::read(process.join("comm")).unwrap_or_default();
        let comm = String::from_utf8_lossy(&comm);
        Self::parse(&page, pid, comm.trim_end(), inode)
    }

    fn parse(page: &[u8; BLOCK_BYTES], pid: u32, comm: &str, inode: u64) -> Result<Self, ReadError> {
        // SAFETY: words and bytes only, every pattern is valid; the page is at least as long (asserted in layout.rs).
        let raw: plain::ud_stats = unsafe { std::ptr::read_unaligned(page.as_ptr().cast()) };
        if raw.magic != plain::UD_STATS_MAGIC {
            return Err(ReadError::NoBlock(pid));
        }
        if raw.version != u64::from(plain::UD_STATS_VERSION) {
            return Err(ReadError::Version { pid, version: raw.version });
        }
        let name: Vec<u8> = raw.protocol.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        Ok(Self {
            pid,
            comm: printable(comm),
            protocol: printable(&String::from_utf8_lossy(&name)),
            started_realtime_ns: raw.started_realtime_ns,
            enabled: raw.enabled != 0,
            anchors_open: raw.anchors_open,
            anchors_open_max: raw.anchors_open_max,
            bytes_held: raw.bytes_held,
            bytes_held_max: raw.bytes_held_max,
            pipes_open: raw.pipes_open,
            pipes_open_max: raw.pipes_open_max,
            resets: raw.resets,
            panics: raw.panics,
            roles: raw.role.map(role),
            inode,
        })
    }

    /// The sum over processes; `pid` is 0 and `comm` "total".
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Snapshot>) -> Self {
        let mut total = Self { comm: "total".to_owned(), ..Self::default() };
        for one in all {
            total.enabled |= one.enabled;
            add(&mut total.anchors_open, one.anchors_open);
            add(&mut total.anchors_open_max, one.anchors_open_max);
            add(&mut total.bytes_held, one.bytes_held);
            add(&mut total.bytes_held_max, one.bytes_held_max);
            add(&mut total.pipes_open, one.pipes_open);
            add(&mut total.pipes_open_max, one.pipes_open_max);
            add(&mut total.resets, one.resets);
            add(&mut total.panics, one.panics);
            for role in Role::ALL {
                total.roles[role as usize].add(one.role(role));
            }
        }
        total
    }

    /// The counters of one role.
    pub fn role(&self, role: Role) -> &RoleSnapshot {
        &self.roles[role as usize]
    }
}

fn role(raw: plain::ud_stats_role) -> RoleSnapshot {
    RoleSnapshot {
        connections: raw.connections,
        messages: raw.messages,
        messages_anchored: raw.messages_anchored,
        messages_copied: raw.messages_copied,
        bytes_anchored: raw.bytes_anchored,
        bytes_copied: raw.bytes_copied,
        bytes_forwarded: raw.bytes_forwarded,
        bytes_materialised: raw.bytes_materialised,
        bytes_dropped: raw.bytes_dropped,
        copied_by_reason: raw.copied_by_reason,
        materialised_by_reason: raw.materialised_by_reason,
    }
}

fn read_page(link: &Path) -> std::io::Result<([u8; BLOCK_BYTES], u64)> {
    let file = File::open(link)?;
    let mut page = [0; BLOCK_BYTES];
    file.read_exact_at(&mut page, 0)?;
    Ok((page, file.metadata()?.ino()))
}

/// What [`find_all`] found.
#[derive(Debug, Default)]
pub struct Found {
    /// One snapshot per block, by pid.
    pub snapshots: Vec<Snapshot>,
    /// Processes that this user may not look at: there may be more blocks.
    pub denied: usize,
    /// Processes whose block is of another version of the layout.
    pub other_version: Vec<u32>,
}

/// Reads every block on this machine that this user may read.
pub fn find_all() -> Result<Found, ReadError> {
    find_all_in(Path::new("/proc"))
}

/// As [`find_all`], with another mount point of procfs.
pub fn find_all_in(proc: &Path) -> Result<Found, ReadError> {
    let mut pids: Vec<u32> = std::fs::read_dir(proc)
        .map_err(|error| ReadError::Io { path: proc.to_owned(), error })?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut found = Found::default();
    let mut seen = BTreeMap::new();
    for pid in pids {
        match Snapshot::of_pid_in(proc, pid) {
            // A child between fork and its renewal still shows its parent's block; parents mostly come first.
            Ok(snapshot) if seen.insert(snapshot.inode, pid).is_none() => found.snapshots.push(snapshot),
            Ok(_) | Err(ReadError::NoProcess(_) | ReadError::NoBlock(_) | ReadError::Io { .. }) => {}
            Err(ReadError::Denied(_)) => found.denied += 1,
            Err(ReadError::Version { pid, .. }) => found.other_version.push(pid),
        }
    }
    Ok(found)
}
