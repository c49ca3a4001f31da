//! Where `libunderdeck_anchor.so` is, and who can load it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Its file name.
pub const NAME: &str = "libunderdeck_anchor.so";

/// Why the library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// Not where the user said.
    #[error("{}: no such library; look at --library", path.display())]
    NotThere {
        /// The place.
        path: PathBuf,
    },
    /// Not in any of the usual places.
    #[error("{NAME} not found: no {}; build it (cargo build --release -p underdeck-anchor) or name it with --library",
        looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    Nowhere {
        /// The places.
        looked: Vec<PathBuf>,
    },
    /// This user cannot load it.
    #[error("{}: this user cannot read it ({error}); make it and the directories above it readable (chmod o+rX)", path.display())]
    Unreadable {
        /// The library.
        path: PathBuf,
        /// The kernel's answer.
        error: rustix::io::Errno,
    },
    /// LD_PRELOAD has no way to quote.
    #[error("{}: LD_PRELOAD cannot name a path with a space or a colon; put the library elsewhere", path.display())]
    Unnameable {
        /// The library.
        path: PathBuf,
    },
}

/// Finds the library: where the user says, else near the executable (an installation or a build).
pub fn find(asked: Option<&Path>, executable: &Path) -> Result<PathBuf, LibraryError> {
    let path = match asked {
        Some(path) if path.is_file() => path.to_owned(),
        Some(path) => return Err(LibraryError::NotThere { path: path.to_owned() }),
        None => {
            let looked = places(executable);
            match looked.iter().find(|path| path.is_file()) {
                Some(path) => path.clone(),
                None => return Err(LibraryError::Nowhere { looked }),
            }
        }
    };
    // The program may change its directory before it starts its children.
    let path = path.canonicalize().map_err(|_| LibraryError::NotThere { path })?;
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| byte.is_ascii_whitespace() || *byte == b':') {
        return Err(LibraryError::Unnameable { path });
    }
    match rustix::fs::access(&path, rustix::fs::Access::READ_OK) {
        Ok(()) => Ok(path),
        Err(error) => Err(LibraryError::Unreadable { path, error }),
    }
}

fn places(executable: &Path) -> Vec<PathBuf> {
    let beside = executable.parent().unwrap_or(Path::new("/")).to_owned();
    let up = beside.parent().unwrap_or(Path::new("/"));
    // The last one is for a debug build of this command. Never relative to the working directory: root would load
    // whatever lies there.
    vec![beside.join(NAME), up.join("lib/underdeck").join(NAME), up.join("release").join(NAME)]
}

/// The first part of the library's path that other users cannot pass, if any.
pub fn closed_to_others(library: &Path) -> Option<PathBuf> {
    library
        .ancestors()
        .find(|path| {
            let needed = if path.is_dir() { 0o001 } else { 0o004 };
            std::fs::metadata(path).is_ok_and(|data| data.mode() & needed == 0)
        })
        .map(Path::to_owned)
}
