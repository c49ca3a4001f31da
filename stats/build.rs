//! Mirrors `abi/underdeck_stats.h`: the structures, twice (plain words for readers, atomics for writers), and the list
//! of reasons as an enum. The header stays the only source.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = "../abi/underdeck_stats.h";
const CLANG: &str = "clang-19";
const LIBCLANG_DIR: &str = "/usr/lib/llvm-19/lib";

fn main() {
    println!("cargo:rerun-if-changed={HEADER}");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    find_libclang();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    write(&out.join("plain.rs"), &layout(true));
    // Same fields, same layout assertions, other cell type.
    write(&out.join("atomic.rs"), &layout(false).replace(": u64,", ": AtomicU64,").replace("[u64;", "[AtomicU64;"));
    write(&out.join("reasons.rs"), &reason_enum(&reasons(&out)));
}

fn find_libclang() {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return;
    }
    let found = std::fs::read_dir(LIBCLANG_DIR).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libclang.so") || name.starts_with("libclang-19.so")
        })
    });
    if !found {
        missing("libclang1-19", &format!("{LIBCLANG_DIR}/libclang.so.1"));
    }
    // SAFETY: a build script has one thread at this point.
    unsafe { std::env::set_var("LIBCLANG_PATH", LIBCLANG_DIR) };
}

fn missing(package: &str, what: &str) -> ! {
    eprintln!("error: {what} not found: install it with `apt-get install {package}` (or set LIBCLANG_PATH)");
    std::process::exit(1);
}

fn layout(copy: bool) -> String {
    bindgen::Builder::default()
        .header(HEADER)
        .allowlist_type("ud_stats|ud_stats_role")
        .allowlist_var("UD_STATS_MAGIC|UD_STATS_VERSION|UD_REASON_SLOTS")
        .use_core()
        .derive_copy(copy)
        .derive_debug(false)
        .formatter(bindgen::Formatter::Prettyplease)
        .generate()
        .unwrap_or_else(|error| panic!("{HEADER} cannot be mirrored: {error}"))
        .to_string()
}

/// (constant, name, text) of every reason, as the preprocessor sees them.
fn reasons(out: &Path) -> Vec<(String, String, String)> {
    let header = std::fs::canonicalize(HEADER).unwrap_or_else(|error| panic!("{HEADER}: {error}"));
    let probe = out.join("reasons.c");
    write(&probe, &format!("#include \"{}\"\n#define ROW(c, n, t) ROW c,n,t,\nUD_REASONS(ROW)\n", header.display()));
    let output = match Command::new(CLANG).args(["-E", "-P"]).arg(&probe).output() {
        Ok(output) => output,
        Err(_) => missing(CLANG, CLANG),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("the header is UTF-8");
    let rows: Vec<_> = text.split("ROW ").skip(1).map(reason).collect();
    assert!(!rows.is_empty(), "{HEADER} has no UD_REASONS");
    rows
}

fn reason(row: &str) -> (String, String, String) {
    let constant = row.split(',').next().unwrap_or_default().trim();
    let mut strings = row.split('"').skip(1).step_by(2);
    let (Some(name), Some(text), None) = (strings.next(), strings.next(), strings.next()) else {
        panic!("{HEADER}: a reason must be X(CONSTANT, \"name\", \"text\"), found {row}");
    };
    (constant.to_owned(), name.to_owned(), text.to_owned())
}

fn reason_enum(rows: &[(String, String, String)]) -> String {
    let mut variants = String::new();
    let (mut all, mut names, mut texts) = (String::new(), String::new(), String::new());
    for (index, (constant, name, text)) in rows.iter().enumerate() {
        let variant = camel(constant);
        writeln!(variants, "    /// `{name}`: {text}.\n    {variant} = {index},").expect("a string takes all");
        writeln!(all, "        Self::{variant},").expect("a string takes all");
        writeln!(names, "            Self::{variant} => {name:?},").expect("a string takes all");
        writeln!(texts, "            Self::{variant} => {text:?},").expect("a string takes all");
    }
    format!(
        "/// Why payload was not anchored, or did not stay anchored; the number is its slot in the counters.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\n#[repr(usize)]\npub enum Reason {{\n{variants}}}\n\
         impl Reason {{\n\
             /// Every reason, in the order of its slot.\n    pub const ALL: [Self; {}] = [\n{all}    ];\n\
             /// The word for command line, metrics and docs.\n    pub const fn name(self) -> &'static str {{\n        match self {{\n{names}        }}\n    }}\n\
             /// One sentence for people.\n    pub const fn text(self) -> &'static str {{\n        match self {{\n{texts}        }}\n    }}\n}}\n",
        rows.len()
    )
}

/// `BELOW_MIN_BODY` -> `BelowMinBody`
fn camel(constant: &str) -> String {
    constant.split('_').map(|word| format!("{}{}", &word[..1], word[1..].to_lowercase())).collect()
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
