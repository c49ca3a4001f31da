//! `underdeck man`.

use std::path::PathBuf;

use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Write the manual pages
///
/// Without --out, the page of underdeck itself goes to stdout: underdeck man | man -l -
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write one page for underdeck and one for each verb into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints one page, or writes them all.
pub fn man(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    match &args.out {
        None => clap_mangen::Man::new(crate::command()).render(&mut env.out)?,
        Some(directory) => {
            std::fs::create_dir_all(directory)?;
            clap_mangen::generate_to(crate::command(), directory)?;
            env.say(&format!("manual pages are in {}", directory.display()));
        }
    }
    Ok(Exit::Ok)
}
