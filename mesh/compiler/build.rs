//! Mirrors `abi/underdeck_mesh.h` into Rust.

use std::env;
use std::path::{Path, PathBuf};

/// Where Debian and its relatives put libclang; bindgen looks elsewhere first only if LIBCLANG_PATH is set.
const LIBCLANG: &str = "/usr/lib/llvm-19/lib";

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let header = manifest.join("../../abi/underdeck_mesh.h");
    println!("cargo::rerun-if-changed={}", header.display());
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    if env::var_os("LIBCLANG_PATH").is_none() && Path::new(LIBCLANG).is_dir() {
        // SAFETY: the build script has one thread.
        unsafe { env::set_var("LIBCLANG_PATH", LIBCLANG) };
    }
    bindgen::Builder::default()
        .header(header.to_string_lossy())
        .allowlist_item("(ud|UD)_.*")
        .derive_default(true)
        .generate()
        .unwrap_or_else(|error| panic!("{}: {error}", header.display()))
        .write_to_file(out.join("underdeck_mesh.rs"))
        .expect("OUT_DIR is writable");
}
