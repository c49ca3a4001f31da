//! `underdeck completions SHELL`.

use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Print the completion script for a shell
///
/// For bash: underdeck completions bash > /etc/bash_completion.d/underdeck
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

/// Prints the script.
pub fn completions(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    // The generator panics when its output breaks; a buffer cannot.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "underdeck", &mut script);
    env.out.write_all(&script)?;
    Ok(Exit::Ok)
}
