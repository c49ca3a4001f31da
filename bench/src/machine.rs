//! Where figures come from: without this they mean nothing.

use std::collections::BTreeMap;
use std::process::Command;

use serde::{Deserialize, Serialize};
use underdeck_lab::tools::{self, Tool};

/// The machine and the versions of what ran.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU's name.
    pub cpu: String,
    /// CPUs that may be used.
    pub cpus: usize,
    /// Size of the last-level cache, as the kernel writes it.
    pub last_level_cache: String,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// `uname -srvm`.
    pub kernel: String,
    /// Whether the kernel says that it runs in a virtual machine.
    pub virtual_machine: bool,
    /// Kernel settings that matter.
    pub sysctl: BTreeMap<String, String>,
    /// Programs by name.
    pub versions: BTreeMap<String, String>,
    /// The preload library.
    pub library: String,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim_start_matches([' ', '\t', ':']).trim().to_owned()
}

/// The first line that a program says of itself, on either stream.
fn version(tool: Tool, argument: &str) -> Option<String> {
    let output = Command::new(tool.path().ok()?).arg(argument).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

const SYSCTLS: [&str; 6] = [
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_congestion_control",
    "net.core.default_qdisc",
    "fs.pipe-max-size",
    "fs.pipe-user-pages-soft",
];

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let kib: u64 = field(&read("/proc/meminfo"), "MemTotal:").split(' ').next().unwrap_or("0").parse().unwrap_or(0);
        let caches = (0..8).map(|i| read(&format!("/sys/devices/system/cpu/cpu0/cache/index{i}/size")));
        let sysctl = |name: &&str| {
            let value = read(&format!("/proc/sys/{}", name.replace('.', "/")));
            ((*name).to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let programs =
            [("nginx", Tool::Nginx, "-v"), ("haproxy", Tool::Haproxy, "-v"), ("envoy", Tool::Envoy, "--version")];
        let mut versions: BTreeMap<String, String> =
            programs.into_iter().filter_map(|(name, tool, v)| Some((name.to_owned(), version(tool, v)?))).collect();
        versions.insert("underdeck".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Self {
            cpu: field(&cpuinfo, "model name"),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            last_level_cache: caches.rev().find(|size| !size.is_empty()).unwrap_or_default().trim().to_owned(),
            memory_bytes: kib * 1024,
            kernel: ["ostype", "osrelease", "version"]
                .map(|it| read(&format!("/proc/sys/kernel/{it}")).trim().to_owned())
                .join(" "),
            virtual_machine: field(&cpuinfo, "flags").split(' ').any(|flag| flag == "hypervisor"),
            sysctl: SYSCTLS.iter().map(sysctl).filter(|(_, value)| !value.is_empty()).collect(),
            versions,
            library: tools::library().map_or_else(|error| error.to_string(), |path| path.display().to_string()),
        }
    }
}
