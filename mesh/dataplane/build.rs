//! Compiles the fixed programs to eBPF.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let sources = manifest.join("bpf");
    let shared = manifest.join("../compiler/bpf");
    let abi = manifest.join("../../abi");
    for path in [&sources, &shared, &abi] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    println!("cargo::rerun-if-env-changed=UNDERDECK_CLANG");
    let clang = env::var("UNDERDECK_CLANG").unwrap_or_else(|_| "clang-19".into());
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    for name in ["entry", "guard"] {
        let source = sources.join(format!("{name}.bpf.c"));
        let object = out.join(format!("{name}.bpf.o"));
        let status = Command::new(&clang)
            .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c"])
            .arg(format!("-I/usr/include/{machine}-linux-gnu"))
            .arg("-I")
            .arg(&abi)
            .arg("-I")
            .arg(&shared)
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .status()
            .unwrap_or_else(|error| panic!("{clang}: {error}; install clang-19 or set UNDERDECK_CLANG"));
        assert!(status.success(), "{clang} failed on {}", source.display());
    }
}
