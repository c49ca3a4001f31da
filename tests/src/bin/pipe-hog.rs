//! Holds pipes until this user has used up `fs.pipe-user-pages-soft`, says `ready`, and takes what others give back until it
//! is killed.

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use rustix::event::Timespec;

/// More than any sensible soft limit asks for.
const MOST: usize = 8000;
/// How often it looks whether there is one to be had again.
const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

fn main() -> ExitCode {
    // Wants a limit of 2 descriptors per pipe, which the tests' own limit allows.
    let mut held: Vec<(OwnedFd, OwnedFd)> = Vec::new();
    let mut met = false;
    while held.len() < MOST {
        let Ok(pair) = rustix::pipe::pipe() else { break };
        let size = rustix::pipe::fcntl_getpipe_size(&pair.0).unwrap_or(0);
        // The kernel gives the smallest size, two pages or one, to a user beyond the limit.
        if size > 2 * 4096 {
            held.push(pair);
            continue;
        }
        drop(pair);
        if !met {
            println!("ready");
            met = true;
        }
        if let Err(error) = rustix::event::poll(&mut [], Some(&STEP)) {
            eprintln!("pipe-hog: {error}");
            return ExitCode::FAILURE;
        }
    }
    eprintln!("pipe-hog: {} pipes and no limit was met: is this root?", held.len());
    ExitCode::FAILURE
}
