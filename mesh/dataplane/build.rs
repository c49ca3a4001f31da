//! Compiles the fixed programs to eBPF.

use std::path::Path;

fn main() {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
    for name in ["entry", "guard"] {
        underdeck_mesh_build::compile(&programs, name);
    }
}
