//! Compiles the bypass, which the demo of the mesh engine compares with.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let source = manifest.join("bpf/bypass.bpf.c");
    // For the helpers of <linux/bpf.h>.
    let (helpers, abi) = (manifest.join("../mesh/compiler/bpf"), manifest.join("../abi"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("bypass.bpf.o");
    for path in [&source, &helpers, &abi] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    println!("cargo::rerun-if-env-changed=UNDERDECK_CLANG");
    let clang = env::var("UNDERDECK_CLANG").unwrap_or_else(|_| "clang-19".into());
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c"])
        .arg(format!("-I/usr/include/{machine}-linux-gnu"))
        .arg("-I")
        .arg(&helpers)
        .arg("-I")
        .arg(&abi)
        .arg(&source)
        .arg("-o")
        .arg(&out)
        .status()
        .unwrap_or_else(|error| panic!("{clang}: {error}; install clang-19 or set UNDERDECK_CLANG"));
    assert!(status.success(), "{clang} failed on {}", source.display());
}
