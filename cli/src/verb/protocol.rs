//! `underdeck protocol`: protocol programs, shipped ones and a user's own.

mod trial;

use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use underdeck_protocols::{Accepted, AcceptedError, Digest, EngineKind, KernelError, LoadError, Loaded, Program};

use crate::env::Env;
use crate::exit::{Exit, Failure};

/// List, check and accept protocol programs
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Have the kernel verify object files, and run them on a stream
    ///
    /// The stream is cut in one piece and byte by byte: a program that depends on how the stream arrives is bad.
    /// Needs CAP_BPF.
    Check {
        /// Objects, compiled with clang -target bpf
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Bytes to cut, as a client sends them; made-up bytes if not given
        #[arg(long, value_name = "FILE")]
        requests: Option<PathBuf>,
    },
    /// Check objects, and let the engine compile them to machine code from now on
    ///
    /// Their digests are added to /etc/underdeck/protocols.accepted, which only root may write. Without it, a program
    /// of your own runs in the interpreter, which is slower.
    Accept {
        /// Objects, compiled with clang -target bpf
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// List the shipped programs
    List,
}

/// Why a program is not good.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The object, or the stream.
        path: PathBuf,
        /// The kernel's answer.
        error: std::io::Error,
    },
    /// It is no protocol program.
    #[error("{}: {error}", path.display())]
    Load {
        /// The object.
        path: PathBuf,
        /// What is wrong.
        error: LoadError,
    },
    /// The kernel does not take it.
    #[error("{}: {error}", path.display())]
    Kernel {
        /// The object.
        path: PathBuf,
        /// The verifier's answer.
        error: KernelError,
    },
    /// It cuts a stream differently when it arrives in other pieces.
    #[error("{}: {difference}", path.display())]
    Trial {
        /// The object.
        path: PathBuf,
        /// Where it differs.
        difference: trial::Difference,
    },
    /// The list of accepted objects is not usable.
    #[error(transparent)]
    Accepted(#[from] AcceptedError),
    /// The list of accepted objects cannot be written.
    #[error("{}: {error}; accepting programs needs root", path.display())]
    Write {
        /// The list.
        path: PathBuf,
        /// The kernel's answer.
        error: std::io::Error,
    },
}

impl ProtocolError {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Read { error, .. } if error.kind() == std::io::ErrorKind::NotFound => Exit::Nothing,
            Self::Kernel { error: KernelError::Privilege, .. } | Self::Read { .. } | Self::Write { .. } => {
                Exit::Missing
            }
            Self::Load { .. } | Self::Kernel { .. } | Self::Trial { .. } | Self::Accepted(_) => Exit::Bad,
        }
    }
}

/// Does what was asked.
pub fn protocol(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    match &args.verb {
        Verb::List => list(env),
        Verb::Check { files, requests } => {
            let stream = requests.as_deref().map(read).transpose()?;
            for file in files {
                check(file, stream.as_deref(), env)?;
            }
            Ok(Exit::Ok)
        }
        Verb::Accept { files } => {
            for file in files {
                let digest = check(file, None, env)?;
                accept(file, digest, env)?;
            }
            Ok(Exit::Ok)
        }
    }
}

/// The value of UNDERDECK_PROTOCOL: the name of a shipped program, or the absolute path of an object that can be loaded.
pub fn resolve(name: &str) -> Result<String, ProtocolError> {
    if Program::shipped_names().any(|shipped| shipped == name) {
        return Ok(name.to_owned());
    }
    let path = Path::new(name).canonicalize().map_err(|error| ProtocolError::Read { path: name.into(), error })?;
    let elf = read(&path)?;
    Program::from_object(&elf, &Accepted::none()).map_err(|error| ProtocolError::Load { path: path.clone(), error })?;
    Ok(path.display().to_string())
}

fn list(env: &mut Env<'_>) -> Result<Exit, Failure> {
    for name in Program::shipped_names() {
        let digest = Program::shipped_object(name).map(Digest::of);
        writeln!(env.out, "{name:12}  {}", digest.map(|digest| digest.to_string()).unwrap_or_default())?;
    }
    Ok(Exit::Ok)
}

fn read(path: &Path) -> Result<Vec<u8>, ProtocolError> {
    std::fs::read(path).map_err(|error| ProtocolError::Read { path: path.to_owned(), error })
}

fn accepted_path(env: &Env<'_>) -> PathBuf {
    env.etc.join("underdeck/protocols.accepted")
}

fn check(path: &Path, stream: Option<&[u8]>, env: &mut Env<'_>) -> Result<Digest, Failure> {
    let elf = read(path)?;
    let owned = || path.to_owned();
    let program = Program::plain(&elf).map_err(|error| ProtocolError::Load { path: owned(), error })?;
    Loaded::load(&elf).map_err(|error| ProtocolError::Kernel { path: owned(), error })?;
    let trial =
        trial::run(&program, stream).map_err(|difference| ProtocolError::Trial { path: owned(), difference })?;
    let digest = Digest::of(&elf);
    let accepted = Accepted::read(&accepted_path(env)).map_err(ProtocolError::from)?;
    let loaded = Program::from_object(&elf, &accepted).map_err(|error| ProtocolError::Load { path: owned(), error })?;
    let engine = match loaded.engine() {
        EngineKind::Jit => "machine code",
        EngineKind::Interpreter => "interpreter (underdeck protocol accept makes it machine code)",
    };
    writeln!(env.out, "{}: protocol {}", path.display(), program.name())?;
    writeln!(env.out, "  sha256   {digest}")?;
    writeln!(env.out, "  verifier accepted by this kernel")?;
    writeln!(env.out, "  engine   {engine}")?;
    writeln!(env.out, "  trial    {trial}")?;
    Ok(digest)
}

fn accept(object: &Path, digest: Digest, env: &mut Env<'_>) -> Result<(), Failure> {
    let path = accepted_path(env);
    if Accepted::read(&path).map_err(ProtocolError::from)?.contains(&digest) {
        env.say(&format!("{}: accepted already", object.display()));
        return Ok(());
    }
    let wrong = |error| ProtocolError::Write { path: path.clone(), error };
    if let Some(directory) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(wrong)?;
    }
    let mut file = std::fs::OpenOptions::new().append(true).create(true).mode(0o644).open(&path).map_err(wrong)?;
    let name = object.file_name().map(|name| name.to_string_lossy().replace(char::is_control, "?")).unwrap_or_default();
    writeln!(file, "{digest}  {name}").map_err(wrong)?;
    env.say(&format!("{}: accepted, see {}", object.display(), path.display()));
    Ok(())
}
