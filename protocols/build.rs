//! Mirrors `abi/underdeck_protocol.h` into Rust and compiles every protocol program to eBPF.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian and its relatives put libclang; bindgen looks elsewhere first only if LIBCLANG_PATH is set.
const LIBCLANG: &str = "/usr/lib/llvm-19/lib";

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let abi = manifest.join("../abi");

    println!("cargo::rustc-env=UNDERDECK_BPF_OUT={}", out.display());
    mirror_contract(&abi, &out);
    println!("cargo::rerun-if-env-changed=UNDERDECK_CLANG");
    println!("cargo::rerun-if-changed={}", manifest.join("leaf.bpf.h").display());
    for folder in [manifest.clone(), manifest.join("examples"), manifest.join("tests/objects")] {
        for source in bpf_sources(&folder) {
            compile(&source, &manifest, &abi, &out);
        }
    }
}

fn mirror_contract(abi: &Path, out: &Path) {
    let header = abi.join("underdeck_protocol.h");
    println!("cargo::rerun-if-changed={}", header.display());
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    if env::var_os("LIBCLANG_PATH").is_none() && Path::new(LIBCLANG).is_dir() {
        // SAFETY: the build script has one thread.
        unsafe { env::set_var("LIBCLANG_PATH", LIBCLANG) };
    }
    bindgen::Builder::default()
        .header(header.to_string_lossy())
        .allowlist_item("(ud|UD)_.*")
        .default_enum_style(bindgen::EnumVariation::ModuleConsts)
        .derive_default(false)
        .generate()
        .unwrap_or_else(|error| panic!("{}: {error}", header.display()))
        .write_to_file(out.join("underdeck_protocol.rs"))
        .expect("OUT_DIR is writable");
}

fn bpf_sources(folder: &Path) -> Vec<PathBuf> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let mut sources: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    sources.sort();
    sources
}

fn compile(source: &Path, manifest: &Path, abi: &Path, out: &Path) {
    println!("cargo::rerun-if-changed={}", source.display());
    let clang = env::var("UNDERDECK_CLANG").unwrap_or_else(|_| "clang-19".into());
    let name = source.file_name().expect("it is a file").to_string_lossy();
    let object = out.join(name.replace(".bpf.c", ".bpf.o"));
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c"])
        // The object's digest must not depend on where it was built.
        .arg(format!("-ffile-prefix-map={}=protocols", manifest.display()))
        .arg(format!("-ffile-prefix-map={}=abi", abi.display()))
        .arg("-fdebug-compilation-dir=.")
        .arg("-I")
        .arg(abi)
        .arg("-I")
        .arg(manifest)
        .arg(source)
        .arg("-o")
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{}: {clang} said {status}", source.display()),
        Err(error) => panic!(
            "cannot run {clang}: {error}. Protocol programs are compiled by clang 19: on Debian 12, \
             `apt-get install clang-19 libclang1-19`; elsewhere point UNDERDECK_CLANG at a clang with the bpf target"
        ),
    }
}
