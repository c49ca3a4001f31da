//! Which objects may be compiled to machine code: those that the kernel's verifier accepted earlier.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::Digest as _;

/// SHA-256 of an object file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of the object file `elf`.
    #[must_use]
    pub fn of(elf: &[u8]) -> Self {
        Digest(sha2::Sha256::digest(elf).into())
    }

    fn parse(hex: &str) -> Option<Self> {
        let mut digest = [0; 32];
        if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(hex.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Digest(digest))
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Digests of a user's own objects that the kernel's verifier accepted on this machine.
///
/// The file has one `DIGEST NAME` per line, as `sha256sum` prints it; lines that begin with `#` are comments.
#[derive(Clone, Debug, Default)]
pub struct Accepted {
    digests: Vec<Digest>,
}

/// Why the file of accepted digests is not used.
#[derive(Debug, thiserror::Error)]
pub enum AcceptedError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Somebody other than root could have written it.
    #[error("{path}: must belong to root and be writable by nobody else (chown root, chmod go-w)")]
    NotRootOnly {
        /// The file.
        path: String,
    },
    /// A line is no digest.
    #[error("{path}:{line}: not a SHA-256 digest in hexadecimal")]
    Line {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
    },
}

impl Accepted {
    /// Where the digests stand by default.
    pub const PATH: &str = "/etc/underdeck/protocols.accepted";

    /// No object but the shipped ones.
    #[must_use]
    pub const fn none() -> Self {
        Accepted { digests: Vec::new() }
    }

    /// Reads the digests from `path`; a file that does not exist is an empty one.
    ///
    /// # Errors
    /// If the file cannot be read, is not root's alone, or has a line that is no digest.
    pub fn read(path: &Path) -> Result<Self, AcceptedError> {
        let name = || path.display().to_string();
        let read = |source| AcceptedError::Read { path: name(), source };
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Accepted::none()),
            Err(error) => return Err(read(error)),
        };
        let metadata = file.metadata().map_err(read)?;
        if metadata.uid() != 0 || metadata.mode() & 0o022 != 0 || !metadata.is_file() {
            return Err(AcceptedError::NotRootOnly { path: name() });
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(read)?;
        Self::parse(&text).map_err(|line| AcceptedError::Line { path: name(), line })
    }

    /// Whether the object with this digest was accepted.
    #[must_use]
    pub fn contains(&self, digest: &Digest) -> bool {
        self.digests.contains(digest)
    }

    /// Adds a digest that the kernel has just accepted.
    pub fn insert(&mut self, digest: Digest) {
        self.digests.push(digest);
    }

    fn parse(text: &str) -> Result<Self, usize> {
        let mut digests = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let first = line.split_whitespace().next().unwrap_or_default();
            digests.push(Digest::parse(first).ok_or(index + 1)?);
        }
        Ok(Accepted { digests })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_sha256sum_prints() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let accepted = Accepted::parse(&format!("# mine\n\n{digest}  abc.bpf.o\n")).unwrap();
        assert!(accepted.contains(&digest));
        assert!(!accepted.contains(&Digest::of(b"abd")));
        assert_eq!(Accepted::parse("# fine\nba78\n").unwrap_err(), 2);
    }

    #[test]
    fn a_file_that_others_may_write_is_refused() {
        let folder = std::env::temp_dir().join(format!("underdeck-accepted-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("accepted");
        assert!(Accepted::read(&path).unwrap().digests.is_empty());
        std::fs::write(&path, "").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&path, mode).unwrap();
        assert!(matches!(Accepted::read(&path), Err(AcceptedError::NotRootOnly { .. })));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
