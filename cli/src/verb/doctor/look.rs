//! The things that doctor looks at, in the order in which it prints them.

use std::ffi::OsStr;
use std::path::Path;

use super::{DoctorError, Finding};
use crate::env::Env;
use crate::library;
use crate::program::{Program, find};
use crate::size;

/// Slots of a pipe as the engine makes it, and after it was full once. On an ordinary network a slot holds one received
/// piece, about 1448 bytes.
const PIPE_SLOTS: [u64; 2] = [64, 256];
/// The oldest kernel that Underdeck is made for: that of Debian 12.
const KERNEL: (u32, u32) = (6, 1);
/// Descriptors below which a proxy with anchors soon has none left: each message under way holds a pipe, which is two.
const FEW_DESCRIPTORS: u64 = 4096;
const PROXIES: [(&str, &str); 3] =
    [("programs.nginx", "nginx"), ("programs.haproxy", "haproxy"), ("programs.envoy", "envoy")];

/// Bits of CapEff, from linux/capability.h.
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;
const CAP_BPF: u32 = 39;

/// Looks at everything.
pub fn all(env: &Env<'_>) -> Result<Vec<Finding>, DoctorError> {
    let status = env.proc.join("self/status");
    let status = std::fs::read_to_string(&status).map_err(|error| DoctorError::NoProc { path: status, error })?;
    let capabilities = effective_capabilities(&status);
    let has = |bit: u32| capabilities >> bit & 1 == 1;
    let above_limits = has(CAP_SYS_RESOURCE) || has(CAP_SYS_ADMIN);

    let mut findings = vec![kernel(env), architecture(), libc()];
    findings.push(pages_soft(env, above_limits));
    findings.extend(pages_hard(env, above_limits));
    findings.push(pipe_max_size(env, above_limits));
    findings.push(descriptors(env));
    findings.push(see_others(env, has(CAP_SYS_PTRACE)));
    findings.push(verify_programs(has(CAP_BPF) || has(CAP_SYS_ADMIN)));
    findings.extend(yama(env));
    findings.extend(engine(env));
    findings.push(switch(env));
    findings.extend(PROXIES.iter().map(|(id, name)| proxy(id, name, env)));
    Ok(findings)
}

fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

fn sysctl(env: &Env<'_>, name: &str) -> Option<u64> {
    std::fs::read_to_string(env.proc.join("sys").join(name)).ok()?.trim().parse().ok()
}

fn kernel(env: &Env<'_>) -> Finding {
    const ID: &str = "machine.kernel";
    let release = std::fs::read_to_string(env.proc.join("sys/kernel/osrelease")).unwrap_or_default();
    let release = release.trim();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|word| word.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= KERNEL => Finding::ok(ID, format!("Linux {release}")),
        (Some(_), Some(_)) => Finding::warn(
            ID,
            format!("Linux {release}"),
            "Underdeck is made for Linux 6.1 and later; older kernels are not tested",
            "use a newer kernel, or run the test suite on this one first",
        ),
        _ => Finding::warn(ID, "the kernel's version is unknown", "nobody knows what works", "is procfs complete?"),
    }
}

fn architecture() -> Finding {
    const ID: &str = "machine.architecture";
    let own = std::env::consts::ARCH;
    if own == "x86_64" {
        return Finding::ok(ID, own);
    }
    Finding::warn(ID, own, "only x86_64 is tested", "run the test suite on this machine first")
}

#[cfg(target_env = "gnu")]
fn libc() -> Finding {
    unsafe extern "C" {
        fn gnu_get_libc_version() -> *const std::ffi::c_char;
    }
    // SAFETY: no arguments; returns a constant string.
    let version = unsafe { std::ffi::CStr::from_ptr(gnu_get_libc_version()) };
    Finding::ok("machine.libc", format!("glibc {}", version.to_string_lossy()))
}

#[cfg(not(target_env = "gnu"))]
fn libc() -> Finding {
    Finding::bad("machine.libc", "this command is not built for glibc", "the engine needs glibc", "use a glibc build")
}

fn pages_soft(env: &Env<'_>, above_limits: bool) -> Finding {
    const ID: &str = "pipes.user-pages-soft";
    const REPAIR: &str = "sysctl -w fs.pipe-user-pages-soft=0 (no limit), or 256 times the bodies that are under way \
                          at once; keep it in /etc/sysctl.d/";
    let Some(pages) = sysctl(env, "fs/pipe-user-pages-soft") else {
        return Finding::warn(ID, "not readable", "the limit of this user is unknown", "is procfs complete?");
    };
    if pages == 0 {
        return Finding::ok(ID, "0: no limit on the pipes of a user");
    }
    let [small, large] = PIPE_SLOTS;
    let (most, least) = (pages / small, pages / large);
    let found = format!(
        "{pages} pages: {most} pipes of {small} slots, or {least} of {large}, for all processes of an ordinary user"
    );
    if above_limits {
        return Finding::ok(ID, format!("{found} (you have CAP_SYS_RESOURCE or CAP_SYS_ADMIN: no limit for you)"));
    }
    let cost = format!(
        "at most {least} to {most} bodies are anchored at once; the rest is copied (reasons no-pipe, pipe-full)"
    );
    Finding::warn(ID, found, &cost, REPAIR)
}

fn pages_hard(env: &Env<'_>, above_limits: bool) -> Option<Finding> {
    const ID: &str = "pipes.user-pages-hard";
    let pages = sysctl(env, "fs/pipe-user-pages-hard")?;
    Some(match pages {
        0 => Finding::ok(ID, "0: no hard limit"),
        pages if above_limits => Finding::ok(ID, format!("{pages} pages (no limit for you)")),
        pages => Finding::warn(
            ID,
            format!("{pages} pages"),
            "beyond it this user cannot make any pipe, in any of its programs",
            "sysctl -w fs.pipe-user-pages-hard=0",
        ),
    })
}

fn pipe_max_size(env: &Env<'_>, above_limits: bool) -> Finding {
    const ID: &str = "pipes.max-size";
    let wanted = PIPE_SLOTS[1] * rustix::param::page_size() as u64;
    match sysctl(env, "fs/pipe-max-size") {
        Some(bytes) if bytes >= wanted || above_limits => Finding::ok(ID, size::show(bytes)),
        Some(bytes) => Finding::warn(
            ID,
            size::show(bytes),
            "pipes are smaller than the engine wants, so large bodies take more system calls",
            &format!("sysctl -w fs.pipe-max-size={wanted}"),
        ),
        None => Finding::warn(ID, "not readable", "the limit is unknown", "is procfs complete?"),
    }
}

fn descriptors(env: &Env<'_>) -> Finding {
    const ID: &str = "limits.nofile";
    let limits = std::fs::read_to_string(env.proc.join("self/limits")).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
    match line.split_whitespace().next() {
        Some("unlimited") => Finding::ok(ID, "no limit on open files"),
        Some(soft) => match soft.parse::<u64>() {
            Ok(soft) if soft >= FEW_DESCRIPTORS => Finding::ok(ID, format!("{soft} open files")),
            _ => Finding::warn(
                ID,
                format!("{soft} open files in this shell"),
                "each anchored body under way holds two descriptors more, and the program's own connections need the \
                 rest; without any left, bodies are copied (reason no-pipe)",
                "ulimit -n 65536; systemd: LimitNOFILE=65536; nginx: worker_rlimit_nofile; HAProxy raises it itself",
            ),
        },
        None => Finding::warn(ID, "not readable", "the limit is unknown", "is procfs complete?"),
    }
}

fn see_others(env: &Env<'_>, ptrace: bool) -> Finding {
    const ID: &str = "privilege.see-others";
    if env.uid == 0 || ptrace {
        return Finding::ok(ID, "you may read the counters of every process");
    }
    Finding::warn(
        ID,
        format!("user {}", env.uid),
        "`stat` and `metrics` show your own processes only, and no worker that has changed its user",
        "run `underdeck stat` and `underdeck metrics` as root (or with CAP_SYS_PTRACE)",
    )
}

fn verify_programs(bpf: bool) -> Finding {
    const ID: &str = "privilege.bpf";
    if bpf {
        return Finding::ok(ID, "you may have the kernel verify protocol programs of your own");
    }
    Finding::ok(ID, "no CAP_BPF: needed only to accept protocol programs of your own (`underdeck protocol accept`)")
}

fn yama(env: &Env<'_>) -> Option<Finding> {
    let scope = sysctl(env, "kernel/yama/ptrace_scope")?;
    Some(Finding::ok("privilege.yama", format!("ptrace_scope {scope}: does not hinder `stat`, which only reads")))
}

fn engine(env: &Env<'_>) -> Vec<Finding> {
    let path = match library::find(None, &env.executable) {
        Ok(path) => path,
        Err(error) => {
            let repair =
                "build it (cargo build --release -p underdeck-anchor), or name it: underdeck run --library PATH";
            return vec![Finding::bad("engine.library", error.to_string(), "nothing can be anchored", repair)];
        }
    };
    let mut findings = vec![Finding::ok("engine.library", path.display().to_string())];
    findings.push(match (env.try_preload)(&path) {
        Ok(()) => Finding::ok("engine.loads", "the dynamic linker loads it into /bin/true"),
        Err(why) => Finding::bad("engine.loads", why, "nothing can be anchored", "build it on this machine"),
    });
    findings.push(readable(&path));
    findings
}

fn readable(path: &Path) -> Finding {
    const ID: &str = "engine.readable";
    match library::closed_to_others(path) {
        None => Finding::ok(ID, "every user can load it"),
        Some(closed) => Finding::warn(
            ID,
            format!("other users cannot read {}", closed.display()),
            "programs that are started under another user run without it",
            "chmod o+rX, or install it below /usr/lib/underdeck",
        ),
    }
}

fn switch(env: &Env<'_>) -> Finding {
    const ID: &str = "engine.switch";
    let own = env.var("XDG_RUNTIME_DIR").map(|directory| Path::new(directory).join("underdeck/off"));
    let places = [Some(env.run.join("underdeck/off")), own];
    match places.into_iter().flatten().find(|path| path.exists()) {
        None => Finding::ok(ID, "on"),
        Some(path) => {
            let found = format!("off: {} is there", path.display());
            Finding::warn(ID, found, "engines copy everything", "underdeck on")
        }
    }
}

fn proxy(id: &'static str, name: &str, env: &Env<'_>) -> Finding {
    // Proxies often live in sbin, which is not on everybody's path.
    let mut search = env.var("PATH").unwrap_or_default().to_owned();
    search.push(":/usr/sbin:/usr/local/sbin");
    let Ok(path) = find(OsStr::new(name), &search) else { return Finding::ok(id, "not on PATH") };
    match Program::examine(&path, &search) {
        Ok(_) => Finding::ok(id, format!("{}: dynamically linked, can be accelerated", path.display())),
        Err(unfit) => Finding::warn(id, unfit.to_string(), "it runs without Underdeck only", "use another build of it"),
    }
}
