//! What a program is, read from its file: can the engine work in it?

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{self, Machine};
use object::read::elf::{Dyn, ElfFile, ElfFile32, ElfFile64, FileHeader, ProgramHeader};
use object::{FileKind, Object, ReadCache};

/// Scripts that start scripts: as deep as the kernel follows them.
const INTERPRETERS: usize = 5;

/// A program that the engine can work in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// The interpreter that really runs, when the file is a script.
    pub interpreter: Option<PathBuf>,
    /// Whether it is linked with OpenSSL's shared library, whose calls the engine sees.
    pub links_openssl: bool,
}

/// Why the engine cannot work in a program. Each message ends with what to do.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// No such file, on the path or at all.
    #[error("{name}: not found; give its path, or look at PATH")]
    NotFound {
        /// As typed.
        name: String,
    },
    /// The file cannot be read or executed.
    #[error("{}: {why}; make it readable and executable for you", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// What stood in the way.
        why: String,
    },
    /// Neither ELF nor a script.
    #[error("{}: neither an ELF program nor a script with #!; name the program that runs it instead", path.display())]
    NotAProgram {
        /// The file.
        path: PathBuf,
    },
    /// Scripts that name each other.
    #[error("{}: more than {INTERPRETERS} interpreters in a row; name the last one instead", path.display())]
    TooDeep {
        /// The last one looked at.
        path: PathBuf,
    },
    /// Written in Go.
    #[error(
        "{}: a Go program; it makes system calls without libc, so the engine would see only some of them. \
         Start it without Underdeck",
        path.display()
    )]
    Go {
        /// The file.
        path: PathBuf,
    },
    /// No dynamic linker.
    #[error(
        "{}: statically linked; the engine is loaded by the dynamic linker, and this program has none. \
         Use a dynamically linked build of it",
        path.display()
    )]
    Static {
        /// The file.
        path: PathBuf,
    },
    /// Built for another machine.
    #[error("{}: built for {found}; this Underdeck is for {own}. Use a build for {own}", path.display())]
    Architecture {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What we are.
        own: &'static str,
    },
    /// Another libc.
    #[error(
        "{}: its dynamic linker is {}, not that of glibc; the engine's library needs glibc. \
         Use a build for glibc (Debian, Ubuntu, Fedora and most others; not Alpine)",
        path.display(), linker.display()
    )]
    Libc {
        /// The file.
        path: PathBuf,
        /// Its PT_INTERP.
        linker: PathBuf,
    },
    /// Gets more rights than who starts it.
    #[error(
        "{}: {what}; for such programs the dynamic linker ignores LD_PRELOAD. {instead}",
        path.display()
    )]
    MoreRights {
        /// The file.
        path: PathBuf,
        /// The kind of rights.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// ELF, but broken.
    #[error("{}: a damaged ELF file ({error}); install the program again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        error: object::Error,
    },
}

/// Finds a program as a shell does: with a slash it is a path, else along `search` (the value of PATH).
pub fn find(name: &std::ffi::OsStr, search: &std::ffi::OsStr) -> Result<PathBuf, Unfit> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return if path.exists() { Ok(path) } else { Err(Unfit::NotFound { name: path.display().to_string() }) };
    }
    std::env::split_paths(search)
        .map(|directory| if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory }.join(name))
        .find(|path| path.is_file() && executable(path))
        .ok_or_else(|| Unfit::NotFound { name: name.to_string_lossy().into_owned() })
}

impl Program {
    /// Looks at a file; `search` is the value of PATH, for `#!/usr/bin/env`.
    pub fn examine(path: &Path, search: &std::ffi::OsStr) -> Result<Self, Unfit> {
        let mut interpreter: Option<PathBuf> = None;
        for _ in 0..INTERPRETERS {
            let looked_at = interpreter.as_deref().unwrap_or(path);
            let file = open(looked_at)?;
            match script_interpreter(&file, looked_at, search)? {
                Some(next) => interpreter = Some(next),
                None => {
                    let links_openssl = examine_elf(&file, looked_at)?;
                    return Ok(Self { path: path.to_owned(), interpreter, links_openssl });
                }
            }
        }
        Err(Unfit::TooDeep { path: interpreter.unwrap_or_else(|| path.to_owned()) })
    }
}

fn executable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

fn open(path: &Path) -> Result<File, Unfit> {
    let refuse = |why: &str| Unfit::NotExecutable { path: path.to_owned(), why: why.to_owned() };
    let file = File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Unfit::NotFound { name: path.display().to_string() },
        _ => refuse(&error.to_string()),
    })?;
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return Err(refuse("not a regular file"));
    }
    if !executable(path) {
        return Err(refuse("not executable"));
    }
    Ok(file)
}

/// The interpreter of a script, None for anything else.
fn script_interpreter(file: &File, path: &Path, search: &std::ffi::OsStr) -> Result<Option<PathBuf>, Unfit> {
    let mut head = Vec::with_capacity(256);
    file.take(256)
        .read_to_end(&mut head)
        .map_err(|error| Unfit::NotExecutable { path: path.to_owned(), why: error.to_string() })?;
    let Some(line) = head.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
        .filter(|word| !word.is_empty())
        .map(std::ffi::OsStr::from_bytes);
    let first = words.next().ok_or_else(|| Unfit::NotAProgram { path: path.to_owned() })?;
    if Path::new(first).file_name().is_some_and(|name| name == "env") {
        // `env -S python3 -u`, `env LANG=C python3`: the program is the first plain word.
        let is_plain = |word: &&std::ffi::OsStr| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'=');
        return match words.find(is_plain) {
            Some(name) => find(name, search).map(Some),
            None => Err(Unfit::NotAProgram { path: path.to_owned() }),
        };
    }
    Ok(Some(PathBuf::from(first)))
}

/// Whether the program is linked with OpenSSL; or why the engine cannot work in it.
fn examine_elf(file: &File, path: &Path) -> Result<bool, Unfit> {
    refuse_more_rights(file, path)?;
    let cache = ReadCache::new(file);
    let damaged = |error| Unfit::Damaged { path: path.to_owned(), error };
    let facts = match FileKind::parse(&cache) {
        Ok(FileKind::Elf64) => Facts::of(&ElfFile64::parse(&cache).map_err(damaged)?, 64).map_err(damaged)?,
        Ok(FileKind::Elf32) => Facts::of(&ElfFile32::parse(&cache).map_err(damaged)?, 32).map_err(damaged)?,
        _ => return Err(Unfit::NotAProgram { path: path.to_owned() }),
    };
    let links_openssl = facts.openssl;
    facts.judge(path)?;
    Ok(links_openssl)
}

/// What an ELF file says of itself, whatever its class.
struct Facts {
    machine: Machine,
    bits: u32,
    go: bool,
    linker: Option<Vec<u8>>,
    openssl: bool,
}

impl Facts {
    fn of<'data, Elf, R>(file: &ElfFile<'data, Elf, R>, bits: u32) -> Result<Self, object::Error>
    where
        Elf: FileHeader<Endian = Endianness>,
        R: object::ReadRef<'data>,
    {
        let (endian, data) = (file.endian(), file.data());
        let mut linker = None;
        let mut go = [".go.buildinfo", ".note.go.buildid"].iter().any(|name| file.section_by_name(name).is_some());
        for header in file.elf_header().program_headers(endian, data)? {
            if let Some(path) = header.interpreter(endian, data)? {
                linker = Some(path.to_vec());
            }
            // The section table may have been stripped; this note stays.
            if let Some(mut notes) = header.notes(endian, data)? {
                while let Some(note) = notes.next()? {
                    go |= note.name() == b"Go";
                }
            }
        }
        let openssl = needs(file, b"libssl.so")?;
        Ok(Self { machine: file.elf_header().e_machine(endian), bits, go, linker, openssl })
    }

    fn judge(self, path: &Path) -> Result<(), Unfit> {
        let path = path.to_owned();
        if (self.machine, self.bits) != (OWN_MACHINE, usize::BITS) {
            let found = machine_name(self.machine, self.bits);
            return Err(Unfit::Architecture { path, found, own: std::env::consts::ARCH });
        }
        if self.go {
            return Err(Unfit::Go { path });
        }
        let Some(linker) = self.linker else { return Err(Unfit::Static { path }) };
        let linker = PathBuf::from(std::ffi::OsStr::from_bytes(&linker));
        if !linker.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux")) {
            return Err(Unfit::Libc { path, linker });
        }
        Ok(())
    }
}

/// Whether a DT_NEEDED entry begins like this. A program without sections has none that can be read: false.
fn needs<'data, Elf, R>(file: &ElfFile<'data, Elf, R>, library: &[u8]) -> Result<bool, object::Error>
where
    Elf: FileHeader<Endian = Endianness>,
    R: object::ReadRef<'data>,
{
    let (endian, data, sections) = (file.endian(), file.data(), file.elf_section_table());
    let Some((entries, strings)) = sections.dynamic(endian, data)? else { return Ok(false) };
    let strings = sections.strings(endian, data, strings)?;
    Ok(entries
        .iter()
        .filter(|entry| entry.tag(endian) == elf::DT_NEEDED)
        .any(|entry| entry.string(endian, strings).is_ok_and(|name| name.starts_with(library))))
}

#[cfg(target_arch = "x86_64")]
const OWN_MACHINE: Machine = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const OWN_MACHINE: Machine = elf::EM_AARCH64;

fn machine_name(machine: Machine, bits: u32) -> String {
    match (machine, bits) {
        (elf::EM_X86_64, 64) => "x86_64".to_owned(),
        (elf::EM_X86_64, 32) => "x32".to_owned(),
        (elf::EM_386, _) => "i386 (32-bit)".to_owned(),
        (elf::EM_AARCH64, _) => "aarch64".to_owned(),
        (elf::EM_ARM, _) => "arm (32-bit)".to_owned(),
        (elf::EM_RISCV, bits) => format!("riscv ({bits}-bit)"),
        (other, bits) => format!("machine {} ({bits}-bit)", other.0),
    }
}

fn refuse_more_rights(file: &File, path: &Path) -> Result<(), Unfit> {
    let mode = file.metadata().map_or(0, |data| data.mode());
    let path = || path.to_owned();
    if mode & 0o6000 != 0 {
        let what = if mode & 0o4000 != 0 { "setuid" } else { "setgid" };
        let instead = "Start it as the user that it needs, and take the bit off the file (chmod ug-s)";
        return Err(Unfit::MoreRights { path: path(), what, instead });
    }
    if rustix::fs::fgetxattr(file, c"security.capability", &mut [0_u8; 64]).is_ok_and(|length| length > 0) {
        let instead = "Take them off the file (setcap -r) and give them to the service instead \
                       (systemd: AmbientCapabilities=)";
        return Err(Unfit::MoreRights { path: path(), what: "has file capabilities", instead });
    }
    Ok(())
}
