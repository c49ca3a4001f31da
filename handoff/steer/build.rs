//! Compiles the programs for the traffic control hooks, and mirrors `abi/underdeck_steer.h` into Rust.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian and its relatives put libclang; bindgen looks elsewhere first only if LIBCLANG_PATH is set.
const LIBCLANG: &str = "/usr/lib/llvm-19/lib";

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let abi = manifest.join("../../abi");
    mirror_contract(&abi.join("underdeck_steer.h"), &out.join("underdeck_steer.rs"));
    compile(&manifest.join("steer.bpf.c"), &abi, &out.join("steer.bpf.o"));
}

fn mirror_contract(header: &Path, to: &Path) {
    println!("cargo::rerun-if-changed={}", header.display());
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    if env::var_os("LIBCLANG_PATH").is_none() && Path::new(LIBCLANG).is_dir() {
        // SAFETY: the build script has one thread.
        unsafe { env::set_var("LIBCLANG_PATH", LIBCLANG) };
    }
    bindgen::Builder::default()
        .header(header.to_string_lossy())
        .allowlist_item("(ud|UD)_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .generate()
        .unwrap_or_else(|error| panic!("{}: {error}", header.display()))
        .write_to_file(to)
        .expect("OUT_DIR is writable");
}

fn compile(source: &Path, abi: &Path, object: &Path) {
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-env-changed=UNDERDECK_CLANG");
    let clang = env::var("UNDERDECK_CLANG").unwrap_or_else(|_| "clang-19".into());
    // Set by libbpf-sys, which brings bpf/bpf_helpers.h.
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys is a dependency");
    // asm/types.h of the kernel's headers is not on the search path of the bpf target.
    let asm = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it"));
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c"])
        .arg("-I")
        .arg(abi)
        .args(["-isystem", &libbpf, "-idirafter", &asm])
        .arg(source)
        .arg("-o")
        .arg(object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{}: {clang} said {status}", source.display()),
        Err(error) => panic!(
            "cannot run {clang}: {error}. The programs are compiled by clang 19: on Debian 12, `apt-get install clang-19 \
             libclang1-19 linux-libc-dev`; elsewhere point UNDERDECK_CLANG at a clang with the bpf target"
        ),
    }
}
