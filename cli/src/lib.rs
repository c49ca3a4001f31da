//! The command `underdeck`: one file per verb in `verb/`, every outside effect in [`env::Env`].

pub mod check_first;
pub mod env;
pub mod exit;
pub mod library;
pub mod program;
pub mod size;
pub mod verb;

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

use crate::env::Env;
use crate::exit::Exit;

/// Keeps the payload of Layer-7 traffic in the kernel while an unmodified proxy forwards it.
#[derive(Debug, Parser)]
#[command(name = "underdeck", version, max_term_width = 100, disable_help_subcommand = true, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const AFTER_HELP: &str = "Exit codes: 0 ok; 1 what was asked about is bad; 2 usage; 3 nothing there; 4 a privilege \
or a kernel feature is missing; 70 internal error. `run` ends with the code of the program that it became; 126 and 127 \
as in a shell.";

#[derive(Debug, Subcommand)]
enum Verb {
    Run(verb::run::Args),
    Check(verb::check::Args),
    Protocol(verb::protocol::Args),
    Stat(verb::stat::Args),
    Metrics(verb::metrics::Args),
    Mesh(verb::mesh::Args),
    Handoff(verb::handoff::Args),
    Doctor(verb::doctor::Args),
    Bench(verb::bench::Args),
    Off(verb::switch::OffArgs),
    On(verb::switch::OnArgs),
    Completions(verb::completions::Args),
    Man(verb::man::Args),
}

/// The whole command line, as clap knows it: for completions, man pages and tests.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses `args` (with the program's name first), does it, and says how the process should end.
pub fn run(args: impl IntoIterator<Item = OsString>, env: &mut Env<'_>) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, env),
    };
    let done = match cli.verb {
        Verb::Run(args) => verb::run::run(args, env),
        Verb::Check(args) => verb::check::check(&args, env),
        Verb::Protocol(args) => verb::protocol::protocol(&args, env),
        Verb::Stat(args) => verb::stat::stat(&args, env),
        Verb::Metrics(args) => verb::metrics::metrics(&args, env),
        Verb::Mesh(args) => verb::mesh::mesh(&args, env),
        Verb::Handoff(args) => verb::handoff::handoff(&args, env),
        Verb::Doctor(args) => verb::doctor::doctor(&args, env),
        Verb::Bench(args) => verb::bench::bench(args, env),
        Verb::Off(args) => verb::switch::off(&args, env),
        Verb::On(args) => verb::switch::on(&args, env),
        Verb::Completions(args) => verb::completions::completions(&args, env),
        Verb::Man(args) => verb::man::man(&args, env),
    };
    done.unwrap_or_else(|failure| {
        if !failure.is_broken_pipe() {
            env.say(&format!("underdeck: {failure}"));
        }
        failure.exit()
    })
}

/// Help and version go to stdout with 0, complaints to stderr with 2.
fn usage(error: &clap::Error, env: &mut Env<'_>) -> Exit {
    let (to_stderr, color) = (error.use_stderr(), env.color(error.use_stderr()));
    let text = if color { error.render().ansi().to_string() } else { error.render().to_string() };
    let to: &mut dyn std::io::Write = if to_stderr { &mut *env.err } else { &mut *env.out };
    // Nobody is left to tell when this fails.
    let _ = to.write_all(text.as_bytes());
    if to_stderr { Exit::Usage } else { Exit::Ok }
}
