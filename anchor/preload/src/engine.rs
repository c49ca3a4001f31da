//! What one process needs once: settings, counters, the protocol program, pipes, what was learnt.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

use underdeck_protocols::{Accepted, Program};
use underdeck_stats::{Block, Created};

use crate::config::Config;
use crate::mark::{Magic, Secret};
use crate::pipe::Pool;
use crate::probes::Probes;
use crate::routes::Routes;
use crate::{anchor, socket, sys, table};

/// Everything that is shared by the threads of one process. Made at the first connection, never freed.
pub(crate) struct Engine {
    pub(crate) config: &'static Config,
    pub(crate) stats: &'static Block,
    pub(crate) program: Program,
    pub(crate) magic: Magic,
    pub(crate) pipes: Pool,
    pub(crate) routes: Routes,
    pub(crate) probes: Probes,
    /// The process this is for; differs from the running one in the child of `vfork`.
    pub(crate) pid: u32,
    secrets: RandomState,
    secrets_given: AtomicU64,
    switched_on: AtomicBool,
    switch_looked_at: AtomicU64,
}

static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(core::ptr::null_mut());
/// There is none and there will be none: switched off, or it could not be made.
static NEVER: AtomicBool = AtomicBool::new(true);
static MAKING: Mutex<()> = Mutex::new(());

/// The engine, if it runs already.
#[inline]
pub(crate) fn running() -> Option<&'static Engine> {
    // SAFETY: engines are leaked boxes that are never freed.
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

/// The engine; made at the first call. None when it is switched off for good.
pub(crate) fn get() -> Option<&'static Engine> {
    if let Some(engine) = running() {
        return Some(engine);
    }
    if NEVER.load(Ordering::Relaxed) {
        return None;
    }
    let _making = MAKING.lock().ok()?;
    if let Some(engine) = running() {
        return Some(engine);
    }
    match Engine::new() {
        Ok(engine) => {
            let engine: &'static Engine = Box::leak(Box::new(engine));
            ENGINE.store(core::ptr::from_ref(engine).cast_mut(), Ordering::Release);
            Some(engine)
        }
        Err(message) => {
            NEVER.store(true, Ordering::Relaxed);
            eprintln!("underdeck: {message}; this process forwards as without underdeck");
            None
        }
    }
}

/// Lets the engine be made when it is needed. Called once, before the program's own code runs.
pub(crate) fn allow() {
    NEVER.store(false, Ordering::Relaxed);
}

/// No more payload is anchored in this process: it does something that the engine cannot follow.
pub(crate) fn never() {
    NEVER.store(true, Ordering::Relaxed);
    if let Some(engine) = running() {
        engine.retire();
    }
}

/// In the child of a fork: the parent's connections, anchors and counters are not the child's.
pub(crate) fn after_fork_in_child() {
    let Some(old) = running() else { return };
    ENGINE.store(core::ptr::null_mut(), Ordering::Release);
    table::forget_all();
    socket::forget_counts();
    anchor::abandon_all();
    old.pipes.abandon();
}

impl Engine {
    fn new() -> Result<Self, String> {
        let config = crate::config::get();
        let program = load_program(config)?;
        let Created { block: stats, fd } = Block::create().map_err(|error| error.to_string())?;
        table::claim(fd);
        stats.set_protocol(program.name().as_bytes());
        stats.set_enabled(true);
        let secrets = RandomState::new();
        let engine = Self {
            config,
            stats,
            program,
            magic: Magic::new(secrets.hash_one(u64::MAX)),
            pipes: Pool::default(),
            routes: Routes::default(),
            probes: Probes::default(),
            pid: sys::getpid(),
            secrets,
            secrets_given: AtomicU64::new(0),
            switched_on: AtomicBool::new(true),
            switch_looked_at: AtomicU64::new(0),
        };
        engine.is_on();
        keep_freed_memory();
        Ok(engine)
    }

    /// A secret that no anchor of this process had before.
    pub(crate) fn secret(&self) -> Secret {
        let number = self.secrets_given.fetch_add(1, Ordering::Relaxed) * 2;
        [self.secrets.hash_one(number), self.secrets.hash_one(number + 1)]
    }

    /// Whether new payload may be anchored. Looks for the switch file at most once a second.
    pub(crate) fn is_on(&self) -> bool {
        if self.config.retired.load(Ordering::Relaxed) {
            return false;
        }
        let now = sys::seconds();
        if self.switch_looked_at.swap(now, Ordering::Relaxed) != now {
            let on = !self.config.off_files.iter().any(|path| sys::exists(path));
            if self.switched_on.swap(on, Ordering::Relaxed) != on {
                self.stats.set_enabled(on);
            }
        }
        self.switched_on.load(Ordering::Relaxed)
    }

    /// Stops anchoring in this process for good: it does something that the engine cannot follow.
    pub(crate) fn retire(&self) {
        self.config.retired.store(true, Ordering::Relaxed);
        self.switched_on.store(false, Ordering::Relaxed);
        self.stats.set_enabled(false);
    }
}

/// Lets malloc keep up to 16 MiB of freed memory instead of giving it back to the kernel after each message.
///
/// Received payload costs next to nothing any more, so that a proxy takes and frees all its buffers (1 MiB for nginx with 16
/// of 64 KiB) in one go; with glibc's first trim threshold of 128 KiB each page would be faulted in again for every message. The
/// threshold follows the largest block that was ever freed (mallopt(3), M_MMAP_THRESHOLD): this frees one, never touched.
fn keep_freed_memory() {
    const BLOCK: usize = 8 << 20;
    // SAFETY: a block of our own, freed at once.
    unsafe { libc::free(core::hint::black_box(libc::malloc(BLOCK))) };
}

fn load_program(config: &Config) -> Result<Program, String> {
    let name = config.protocol.as_str();
    if let Some(shipped) = Program::shipped(name) {
        return shipped.map_err(|error| format!("protocol {name}: {error}"));
    }
    let object = std::fs::read(name)
        .map_err(|error| format!("UNDERDECK_PROTOCOL={name} is neither shipped nor a file: {error}"))?;
    let accepted = Accepted::read(std::path::Path::new(Accepted::PATH)).map_err(|error| error.to_string())?;
    Program::from_object(&object, &accepted).map_err(|error| format!("protocol {name}: {error}"))
}
