//! `abi/underdeck_handoff.h` is what the source says.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is valid");
    config.parse.parse_deps = false;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in ["error.rs", "connection.rs", "steering.rs"] {
        builder = builder.with_src(root.join("src").join(source));
    }
    let mut generated = Vec::new();
    builder.generate().expect("the source can be read").write(&mut generated);
    let generated = String::from_utf8(generated).expect("it is text");
    // What Rust calls safety is in the manual at the top.
    let generated = without_safety(&generated);

    let path = root.join("../../abi/underdeck_handoff.h");
    if std::env::var_os("UNDERDECK_UPDATE").is_some() {
        std::fs::write(&path, &generated).expect("the header can be written");
    }
    let header = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(header == generated, "{}: run this test with UNDERDECK_UPDATE=1", path.display());
}

fn without_safety(header: &str) -> String {
    let mut lines = Vec::new();
    let mut skipping = false;
    for line in header.lines() {
        if line.trim() == "* # Safety" {
            skipping = true;
            while lines.last().is_some_and(|last: &&str| last.trim() == "*") {
                lines.pop();
            }
        }
        skipping &= line.trim() != "*/";
        if !skipping {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}
