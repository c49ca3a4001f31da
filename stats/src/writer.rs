//! The engine's side. It runs inside somebody else's process: no panic, no allocation, no call into libc (rustix makes
//! the system calls itself), and after creation nothing but relaxed atomics.

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::ffi::c_char;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{DupFlags, Errno, close, dup3, fcntl_dupfd_cloexec, pread};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Resource, getpid, getrlimit};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::layout::{BLOCK_BYTES, Reason, Role, atomic};

/// Descriptors above this make the kernel's own table large (8 bytes for each number below), so ours stay below it.
const HIGHEST_DESCRIPTOR: u64 = 16 * 1024;
/// Distance from the limit, so that a few more of the engine's descriptors fit above.
const ROOM_ABOVE: u64 = 64;

/// Why there are no counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// `memfd_create` failed: usually no descriptor is left.
    #[error("no memory file for the counters: {0}")]
    Memfd(Errno),
    /// `ftruncate` failed: no memory is left.
    #[error("the counters cannot have their page: {0}")]
    Size(Errno),
    /// `mmap` failed.
    #[error("the counters cannot be mapped: {0}")]
    Map(Errno),
}

/// A block and the descriptor that keeps it visible to readers.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// The counters, mapped until the process ends.
    pub block: &'static Block,
    /// The memfd: high and close-on-exec. Whoever closes it makes the process invisible to `underdeck stat`.
    pub fd: RawFd,
}

/// The counters of this process. Shared by all its threads.
#[repr(transparent)]
pub struct Block(atomic::ud_stats);

/// Counters of one [`Role`], by field name of `struct ud_stats_role`.
pub type RoleCounters = atomic::ud_stats_role;

/// A value that goes up and down and remembers its highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gauge {
    /// Anchors that exist.
    AnchorsOpen,
    /// Bytes in pipes.
    BytesHeld,
    /// Pipes that exist.
    PipesOpen,
}

impl Block {
    /// Makes and maps the block of this process. Call once.
    pub fn create() -> Result<Created, CreateError> {
        let file = memory_file()?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address = unsafe { mmap(core::ptr::null_mut(), BLOCK_BYTES, prot, MapFlags::SHARED, &*file.0, 0) }
            .map_err(CreateError::Map)?;
        // SAFETY: the mapping is page-aligned, one page of zeroes, as long as the block or longer, never unmapped, and
        // all-zero is a valid value of every field.
        let block: &'static Block = unsafe { &*address.cast::<Block>() };
        block.begin();
        Ok(Created { block, fd: file.keep() })
    }

    /// Gives a forked child a block of its own, at the same address: zeroed, except for protocol and switch.
    ///
    /// `fd` is that of [`Created`]. Returns the descriptor of the new block: the same number, unless somebody closed
    /// the old one. Call it in the child of `fork`, never in one of `vfork` (it shares the parent's memory). When it
    /// fails, the child goes on counting into its parent's block.
    pub fn renew_after_fork(&'static self, fd: RawFd) -> Result<RawFd, CreateError> {
        let file = memory_file()?;
        let protocol = self.0.protocol;
        let enabled = self.0.enabled.load(Relaxed);
        let address: *const Block = self;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces, in one step, the mapping that `create` made and that only this block uses; the new one has
        // the same size and protection, so the reference stays valid.
        unsafe {
            mmap(address.cast_mut().cast(), BLOCK_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags, &*file.0, 0)
                .map_err(CreateError::Map)?
        };
        self.write_protocol(&protocol);
        self.0.enabled.store(enabled, Relaxed);
        self.begin();
        Ok(replace(fd, file))
    }

    fn begin(&self) {
        // Not rustix's clock: it reads the vDSO, at an address that is not mapped under valgrind.
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        self.0.version.store(atomic::UD_STATS_VERSION.into(), Relaxed);
        self.0.pid.store(getpid().as_raw_nonzero().get() as u64, Relaxed);
        self.0.started_realtime_ns.store(now_ns, Relaxed);
        // Last: it makes the block one that readers believe.
        self.0.magic.store(atomic::UD_STATS_MAGIC, core::sync::atomic::Ordering::Release);
    }

    /// Names the protocol program; longer names are cut to 15 bytes. Call it before other threads run.
    pub fn set_protocol(&self, name: &[u8]) {
        let mut field = [0; 16];
        for (to, from) in field[..15].iter_mut().zip(name) {
            *to = *from as c_char;
        }
        self.write_protocol(&field);
    }

    fn write_protocol(&self, field: &[c_char; 16]) {
        let to = (&raw const self.0.protocol).cast_mut();
        // SAFETY: inside the mapping, which is writable; nobody in this process reads it but `renew_after_fork`.
        unsafe { to.write_volatile(*field) };
    }

    /// Says whether the engine anchors (true) or is switched off.
    pub fn set_enabled(&self, enabled: bool) {
        self.0.enabled.store(enabled.into(), Relaxed);
    }

    /// The counters of one role; bump them with [`Block::add`] or `fetch_add`.
    pub fn role(&self, role: Role) -> &RoleCounters {
        &self.0.role[role as usize]
    }

    /// Adds to a counter, e.g. `Block::add(&block.role(Role::Connected).messages, 1)`.
    #[inline]
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    /// Payload bytes that were copied on receive, and why.
    #[inline]
    pub fn copied(&self, role: Role, reason: Reason, bytes: u64) {
        let role = self.role(role);
        role.bytes_copied.fetch_add(bytes, Relaxed);
        role.copied_by_reason[reason as usize].fetch_add(bytes, Relaxed);
    }

    /// Anchored bytes that had to be copied after all, and why.
    #[inline]
    pub fn materialised(&self, role: Role, reason: Reason, bytes: u64) {
        let role = self.role(role);
        role.bytes_materialised.fetch_add(bytes, Relaxed);
        role.materialised_by_reason[reason as usize].fetch_add(bytes, Relaxed);
    }

    /// A connection that the engine had to reset.
    pub fn reset(&self) {
        self.0.resets.fetch_add(1, Relaxed);
    }

    /// A panic that was caught at the border.
    pub fn panicked(&self) {
        self.0.panics.fetch_add(1, Relaxed);
    }

    /// Raises a gauge and its high-water mark; returns the new value.
    #[inline]
    pub fn up(&self, gauge: Gauge, n: u64) -> u64 {
        let (value, max) = self.gauge(gauge);
        let now = value.fetch_add(n, Relaxed).wrapping_add(n);
        // Most of the time the mark stands; a plain load is cheaper than the compare-and-swap loop behind fetch_max.
        if max.load(Relaxed) < now {
            max.fetch_max(now, Relaxed);
        }
        now
    }

    /// Lowers a gauge, not below zero: a forked child releases what its parent made.
    #[inline]
    pub fn down(&self, gauge: Gauge, n: u64) {
        let (value, _) = self.gauge(gauge);
        // The closure always gives a value, so this cannot fail.
        let _ = value.fetch_update(Relaxed, Relaxed, |value| Some(value.saturating_sub(n)));
    }

    /// The present value of a gauge.
    #[inline]
    pub fn level(&self, gauge: Gauge) -> u64 {
        self.gauge(gauge).0.load(Relaxed)
    }

    fn gauge(&self, gauge: Gauge) -> (&AtomicU64, &AtomicU64) {
        match gauge {
            Gauge::AnchorsOpen => (&self.0.anchors_open, &self.0.anchors_open_max),
            Gauge::BytesHeld => (&self.0.bytes_held, &self.0.bytes_held_max),
            Gauge::PipesOpen => (&self.0.pipes_open, &self.0.pipes_open_max),
        }
    }
}

impl core::fmt::Debug for Block {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Block").field("pid", &self.0.pid).finish_non_exhaustive()
    }
}

/// A descriptor that closes by a system call of ours: the standard library's would call libc's `close`.
struct Fd(ManuallyDrop<OwnedFd>);

impl Fd {
    fn new(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }

    /// Leaves it open.
    fn keep(self) -> RawFd {
        let raw = self.0.as_raw_fd();
        core::mem::forget(self);
        raw
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: open, owned by this value, and not used after this.
        unsafe { close(self.0.as_raw_fd()) };
    }
}

/// A page of zeroes with the name that readers look for, on a high descriptor.
fn memory_file() -> Result<Fd, CreateError> {
    let low = Fd::new(memfd_create(c"underdeck-stats", MemfdFlags::CLOEXEC).map_err(CreateError::Memfd)?);
    ftruncate(&*low.0, BLOCK_BYTES as u64).map_err(CreateError::Size)?;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST_DESCRIPTOR).min(HIGHEST_DESCRIPTOR);
    // Programs such as HAProxy size tables by descriptor and expect theirs to be low and dense.
    Ok(fcntl_dupfd_cloexec(&*low.0, limit.saturating_sub(ROOM_ABOVE) as RawFd).map_or(low, Fd::new))
}

/// Puts `file` in the place of the parent's block at `fd`, if that is still there.
fn replace(fd: RawFd, file: Fd) -> RawFd {
    if fd < 0 || !holds_block(fd) {
        return file.keep();
    }
    // SAFETY: the descriptor is a block, and blocks are closed by nobody but this function; it is never dropped.
    let mut old = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
    match dup3(&*file.0, &mut old, DupFlags::CLOEXEC) {
        Ok(()) => fd,
        Err(_) => {
            drop(Fd(old));
            file.keep()
        }
    }
}

fn holds_block(fd: RawFd) -> bool {
    // SAFETY: used for one pread only, which says EBADF when the number is not open.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut magic = [0; 8];
    pread(file, &mut magic, 0) == Ok(8) && u64::from_ne_bytes(magic) == atomic::UD_STATS_MAGIC
}
