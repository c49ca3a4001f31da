//! The C example is compiled against the header and the library, and run as root in a network namespace of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the shared library, beside this test's program.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let deps = program.parent().expect("it is in a folder");
    [deps, deps.parent().expect("the profile's folder")]
        .into_iter()
        .find(|folder| folder.join("libunderdeck_handoff.so").exists())
        .expect("cargo has built the library")
        .to_path_buf()
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_example_hands_a_connection_over() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (library, program) = (library(), Path::new(env!("CARGO_TARGET_TMPDIR")).join("handoff-example"));
    run(Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root.join("../../abi"))
        .arg(root.join("tests/example.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&library)
        .args(["-lunderdeck_handoff"]));
    // A namespace without a name, which goes with the process.
    let printed = run(Command::new("unshare")
        .args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\""])
        .arg(&program)
        .env("LD_LIBRARY_PATH", &library));
    assert_eq!(printed, "handed over\n");
}
