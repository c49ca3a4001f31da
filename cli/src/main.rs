//! The command `underdeck`.

use std::process::ExitCode;

fn main() -> ExitCode {
    underdeck_cli::env::with_real(|env| underdeck_cli::run(std::env::args_os(), env)).into()
}
