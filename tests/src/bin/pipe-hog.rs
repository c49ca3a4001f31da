//! Holds pipes until this user has used up `fs.pipe-user-pages-soft`, says `ready`, and waits to be killed.

use std::os::fd::OwnedFd;
use std::process::ExitCode;

/// More than any sensible soft limit asks for.
const MOST: usize = 8000;

fn main() -> ExitCode {
    // Wants a limit of 2 descriptors per pipe, which the tests' own limit allows.
    let mut held: Vec<(OwnedFd, OwnedFd)> = Vec::new();
    while held.len() < MOST {
        let Ok(pair) = rustix::pipe::pipe() else { break };
        let size = rustix::pipe::fcntl_getpipe_size(&pair.0).unwrap_or(0);
        held.push(pair);
        // The kernel gives the smallest size, two pages or one, to a user beyond the limit.
        if size <= 2 * 4096 {
            println!("ready");
            let forever = rustix::event::poll(&mut [], None);
            eprintln!("pipe-hog: poll returned {forever:?}");
            return ExitCode::FAILURE;
        }
    }
    eprintln!("pipe-hog: {} pipes and no limit was met: is this root?", held.len());
    ExitCode::FAILURE
}
