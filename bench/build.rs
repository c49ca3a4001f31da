//! Compiles the bypass, which the demo of the mesh engine compares with.

use std::path::Path;

fn main() {
    underdeck_mesh_build::compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf"), "bypass");
}
