//! `underdeck run … -- PROGRAM ARGS`: looks first, then becomes the program.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::check_first;
use crate::env::{Env, Launch};
use crate::exit::{Exit, Failure};
use crate::library::{self, LibraryError};
use crate::program::{Program, Unfit, find};
use crate::size;
use crate::verb::protocol::{self, ProtocolError};

/// Smallest --min-body; below it a placeholder has no room.
const MIN_BODY_BYTES: u64 = 64;
/// What the C library uses when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Start a program with the anchor engine in it and in its children
///
/// Works for any dynamically linked program. Underdeck reads the program's configuration first: listeners and routes
/// whose payload is looked at are left out, and what cannot be served safely is refused. Then it becomes the program
/// (exec): signals, exit code and daemons behave as without it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The protocol program that tells metadata from payload: a shipped one, or the path of an object
    #[arg(long, value_name = "NAME", default_value = "http1")]
    protocol: String,
    /// Copy bodies shorter than N bytes; k, m and g behind the number are understood [default: the engine's own]
    #[arg(long, value_name = "N", value_parser = min_body)]
    min_body: Option<u64>,
    /// Anchor at most N bytes per connection [default: the engine's own, 3m]
    #[arg(long, value_name = "N", value_parser = size::parse)]
    max_anchored: Option<u64>,
    /// Anchor at most N bytes in each process [default: the engine's own]
    #[arg(long, value_name = "N", value_parser = size::parse)]
    max_anchored_total: Option<u64>,
    /// Take up to N bytes from a socket at once when the program asks for less; 0: never [default: the engine's own, 128k]
    #[arg(long, value_name = "N", value_parser = size::parse)]
    read_ahead: Option<u64>,
    /// Start even if the check refuses the configuration; this is logged
    #[arg(long)]
    force: bool,
    /// Do not read the program's configuration
    #[arg(long)]
    no_check: bool,
    /// The engine, if it is not next to this command or in ../lib/underdeck
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    program: Vec<OsString>,
}

/// Why the program was not started.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The engine cannot work in it.
    #[error("not started: {0}")]
    Unfit(#[from] Unfit),
    /// The engine cannot be loaded.
    #[error("not started: {0}")]
    Library(#[from] LibraryError),
    /// There is no such protocol program.
    #[error("not started: --protocol: {0}; `underdeck protocol list` lists the shipped programs")]
    Protocol(#[from] ProtocolError),
    /// The audit refuses the configuration.
    #[error("not started: its configuration cannot be served safely (see above); change it, or add --force")]
    Refused,
    /// `execve` failed.
    #[error("{}: {error}", path.display())]
    Exec {
        /// The program.
        path: PathBuf,
        /// The kernel's answer.
        error: std::io::Error,
    },
}

impl RunError {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Unfit(Unfit::NotFound { .. }) => Exit::NotFound,
            Self::Unfit(Unfit::NotExecutable { .. }) | Self::Exec { .. } => Exit::CannotExecute,
            Self::Unfit(_) | Self::Refused => Exit::Bad,
            Self::Protocol(error) => error.exit(),
            Self::Library(LibraryError::Unreadable { .. }) => Exit::Missing,
            Self::Library(_) => Exit::Nothing,
        }
    }
}

fn min_body(word: &str) -> Result<u64, String> {
    match size::parse(word) {
        Ok(bytes) if bytes < MIN_BODY_BYTES => Err(format!("the smallest is {MIN_BODY_BYTES}")),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks and starts; returns only when the program was not started.
pub fn run(args: Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let search = env.vars.get(OsStr::new("PATH")).cloned().unwrap_or_else(|| DEFAULT_PATH.into());
    let path = find(&args.program[0], &search).map_err(RunError::from)?;
    if switched_off(env) {
        env.say("underdeck: UNDERDECK is off: started without the engine");
        return start(path, args.program, env);
    }
    let program = Program::examine(&path, &search).map_err(RunError::from)?;
    if let Some(interpreter) = &program.interpreter {
        env.say(&format!(
            "underdeck: {} is a script for {}; programs that it starts get the engine too, but are not checked",
            path.display(),
            interpreter.display()
        ));
    }
    let protocol = protocol::resolve(&args.protocol).map_err(RunError::from)?;
    let library = library::find(args.library.as_deref(), &env.executable).map_err(RunError::from)?;
    if let Some(closed) = library::closed_to_others(&library) {
        env.say(&format!(
            "underdeck: warning: other users cannot read {}; if the program starts others under another user, they \
             fail to load the engine (repair: chmod o+rX)",
            closed.display()
        ));
    }
    let leave_out = audit(&args, &program, env)?;
    set_variables(&args, &library, protocol, leave_out, env);
    start(path, args.program, env)
}

/// In the words that the library understands.
fn switched_off(env: &Env<'_>) -> bool {
    let says_off =
        |value: &std::ffi::OsStr| ["off", "0", "no", "false"].iter().any(|word| value.eq_ignore_ascii_case(word));
    env.var("UNDERDECK").is_some_and(says_off)
}

/// Value of UNDERDECK_LEAVE_OUT; refuses what the audit refuses.
fn audit(args: &Args, program: &Program, env: &mut Env<'_>) -> Result<Option<String>, RunError> {
    if args.no_check {
        return Ok(None);
    }
    let mut argv = args.program.clone();
    argv[0] = program.path.clone().into();
    let verdict = check_first::check(&argv, &env.directory, program.links_openssl);
    for message in &verdict.messages {
        env.say(&format!("underdeck: {message}"));
    }
    if verdict.refused && !args.force {
        return Err(RunError::Refused);
    }
    if verdict.refused {
        env.say("underdeck: --force: started although the check refuses this configuration");
    }
    Ok(verdict.leave_out)
}

fn set_variables(args: &Args, library: &Path, protocol: String, leave_out: Option<String>, env: &mut Env<'_>) {
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = env.var("LD_PRELOAD") {
        preload.push(":");
        preload.push(others);
    }
    let mut set = |name: &str, value: OsString| env.vars.insert(name.into(), value);
    set("LD_PRELOAD", preload);
    set("UNDERDECK_PROTOCOL", protocol.into());
    let numbers = [
        ("UNDERDECK_MIN_BODY", args.min_body),
        ("UNDERDECK_MAX_ANCHORED", args.max_anchored),
        ("UNDERDECK_MAX_ANCHORED_TOTAL", args.max_anchored_total),
        ("UNDERDECK_READ_AHEAD", args.read_ahead),
    ];
    for (name, value) in numbers {
        if let Some(value) = value {
            set(name, value.to_string().into());
        }
    }
    if let Some(leave_out) = leave_out {
        set("UNDERDECK_LEAVE_OUT", leave_out.into());
    }
    if args.force {
        set("UNDERDECK_FORCE", "1".into());
    }
}

fn start(path: PathBuf, argv: Vec<OsString>, env: &mut Env<'_>) -> Result<Exit, Failure> {
    // Messages must be out before this process is another one.
    env.out.flush()?;
    let launch = Launch { program: path.clone(), argv, vars: env.vars.clone() };
    let error = (env.exec)(&launch);
    Err(RunError::Exec { path, error }.into())
}
