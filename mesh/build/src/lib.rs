//! Compiles fixed eBPF programs, those that use the mesh engine's headers and contract, for build scripts.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `NAME.bpf.c` of a folder to `OUT_DIR/NAME.bpf.o`, with the headers of `mesh/compiler/bpf` and `abi`, by
/// `clang-19` or what `UNDERDECK_CLANG` names. Cargo is told of everything that it depends on.
///
/// # Panics
/// If there is no such compiler or it complains: a build script has nobody else to tell.
pub fn compile(folder: &Path, name: &str) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (headers, abi) = (here.join("../compiler/bpf"), here.join("../../abi"));
    for path in [folder, &headers, &abi] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    println!("cargo::rerun-if-env-changed=UNDERDECK_CLANG");
    let clang = env::var("UNDERDECK_CLANG").unwrap_or_else(|_| "clang-19".into());
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let source = folder.join(format!("{name}.bpf.c"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c"])
        .arg(format!("-I/usr/include/{machine}-linux-gnu"))
        .arg("-I")
        .arg(&abi)
        .arg("-I")
        .arg(&headers)
        .arg(&source)
        .arg("-o")
        .arg(out.join(format!("{name}.bpf.o")))
        .status()
        .unwrap_or_else(|error| panic!("{clang}: {error}; install clang-19 or set UNDERDECK_CLANG"));
    assert!(status.success(), "{clang} failed on {}", source.display());
}
