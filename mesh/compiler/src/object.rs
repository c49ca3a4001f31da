//! From C to an object, or out of the cache.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// What the generated source includes, and the contract.
const INCLUDED: &[(&str, &str)] = &[
    ("underdeck_mesh.h", include_str!("../../../abi/underdeck_mesh.h")),
    ("helpers.bpf.h", include_str!("../bpf/helpers.bpf.h")),
    ("maps.bpf.h", include_str!("../bpf/maps.bpf.h")),
    ("head.bpf.h", include_str!("../bpf/head.bpf.h")),
    ("policy.bpf.h", include_str!("../bpf/policy.bpf.h")),
    ("forward.bpf.h", include_str!("../bpf/forward.bpf.h")),
    ("trial.bpf.h", include_str!("../bpf/trial.bpf.h")),
    ("automaton.bpf.h", include_str!("../bpf/automaton.bpf.h")),
    ("decision.bpf.h", include_str!("../bpf/decision.bpf.h")),
];

const FLAGS: &[&str] = &[
    "-target",
    "bpf",
    "-mcpu=v4",
    "-O2",
    "-g",
    "-Wall",
    "-Werror",
    "-Wno-unused-function",
    "-Wno-parentheses-equality",
];

/// Why there is no object.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// clang cannot be started.
    #[error("{clang}: {source}; install clang-19 or set UNDERDECK_CLANG")]
    Clang {
        /// The program.
        clang: String,
        /// Why.
        source: std::io::Error,
    },
    /// clang does not take the source: a fault of this compiler.
    #[error("clang refuses the generated program: {0}")]
    Refused(String),
    /// A file cannot be read or written.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Where objects are kept, by the hash of all that went into them.
#[derive(Debug, Clone)]
pub struct Cache(pub Option<PathBuf>);

/// An object.
#[derive(Debug, Clone)]
pub struct Object {
    /// ELF.
    pub bytes: Vec<u8>,
    /// It was in the cache.
    pub cached: bool,
    /// SHA-256 of all that went into it, in hexadecimal.
    pub hash: String,
}

/// The files that a source of this compiler includes, for those who want to read or compile it themselves.
pub fn include_files() -> impl Iterator<Item = (&'static str, &'static str)> {
    INCLUDED.iter().copied()
}

/// Compiles a source.
///
/// # Errors
///
/// See [`BuildError`]. A cache that cannot be written is no error.
pub fn build(source: &str, cache: &Cache) -> Result<Object, BuildError> {
    let hash = hash(source);
    let kept = cache.0.as_ref().map(|folder| folder.join(format!("{hash}.bpf.o")));
    if let Some(bytes) = kept.as_ref().and_then(|path| std::fs::read(path).ok()) {
        return Ok(Object { bytes, cached: true, hash });
    }
    let place = tempfile::tempdir().map_err(|source| BuildError::Io { path: std::env::temp_dir(), source })?;
    let write = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).map_err(|source| BuildError::Io { path, source })
    };
    for (name, text) in INCLUDED {
        write(name, text)?;
    }
    write("policy.bpf.c", source)?;
    let bytes = compile(place.path())?;
    if let (Some(path), Some(folder)) = (kept, &cache.0) {
        // Whole or not at all: another process may read it now.
        let made = std::fs::create_dir_all(folder).and_then(|()| tempfile::NamedTempFile::new_in(folder));
        if let Ok(file) = made
            && std::fs::write(file.path(), &bytes).is_ok()
        {
            let _ = file.persist(path);
        }
    }
    Ok(Object { bytes, cached: false, hash })
}

fn clang() -> String {
    std::env::var("UNDERDECK_CLANG").unwrap_or_else(|_| "clang-19".into())
}

fn compile(place: &Path) -> Result<Vec<u8>, BuildError> {
    let clang = clang();
    let output = Command::new(&clang)
        .args(FLAGS)
        .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
        .arg("-ffile-prefix-map=.=policy")
        .args(["-c", "policy.bpf.c", "-o", "policy.bpf.o"])
        .current_dir(place)
        .output()
        .map_err(|source| BuildError::Clang { clang, source })?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(BuildError::Refused(text.lines().take(12).collect::<Vec<_>>().join("\n")));
    }
    let path = place.join("policy.bpf.o");
    std::fs::read(&path).map_err(|source| BuildError::Io { path, source })
}

fn hash(source: &str) -> String {
    let mut hash = Sha256::new();
    for part in INCLUDED.iter().flat_map(|(name, text)| [*name, *text]).chain([source]).chain(FLAGS.iter().copied()) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.update(clang());
    hash.finalize().iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}
