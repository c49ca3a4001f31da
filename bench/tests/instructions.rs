//! Instructions of the engine's hot paths, counted by callgrind: time is noise on a shared machine, these are not.
//!
//! The release build of the library and of `hot-paths` is measured (`make build`), as it is shipped. A figure that grew
//! is a regression, or a price that somebody decided to pay: then the pin moves with the commit that says why.

use std::path::{Path, PathBuf};
use std::process::Command;

use underdeck_lab::tools;

/// How much more than its pin a figure may be: another compiler or C library moves it a little.
const TOLERANCE: f64 = 1.03;

/// What one more of it costs.
struct Pin {
    name: &'static str,
    /// Arguments of `hot-paths` for less and for more, and how many more the latter are.
    less: &'static [&'static str],
    more: &'static [&'static str],
    count: f64,
    /// Whether the library is preloaded, and only its own `read`, `recv` and `send` count.
    preload: bool,
    instructions: f64,
}

const PINS: [Pin; 4] = [
    Pin {
        name: "descriptor look-up: a read of a descriptor that is no connection",
        less: &["lookup", "1000"],
        more: &["lookup", "2000"],
        count: 1000.0,
        preload: true,
        instructions: 30.0,
    },
    Pin {
        name: "cut of the heads of a typical request and its response",
        less: &["cut", "1000"],
        more: &["cut", "2000"],
        count: 1000.0,
        preload: false,
        instructions: 2560.0,
    },
    Pin {
        name: "an exchange with a body of 1 KiB through a proxy: two heads in, two heads out, body copied",
        less: &["forward", "10", "1024"],
        more: &["forward", "20", "1024"],
        count: 10.0,
        preload: true,
        instructions: 7030.0,
    },
    Pin {
        name: "64 KiB anchored: marks written, found and verified, two splices",
        less: &["forward", "10", "1048576"],
        more: &["forward", "10", "2097152"],
        count: 160.0,
        preload: true,
        instructions: 3800.0,
    },
];

/// Instructions of one run.
fn instructions(program: &Path, library: Option<&Path>, arguments: &[&str]) -> f64 {
    let folder = tempfile::tempdir().expect("a directory");
    let out = folder.path().join("callgrind.out");
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", out.display()));
    command.env_remove("LD_PRELOAD");
    if let Some(library) = library {
        command.args(["read", "recv", "send"].map(|call| format!("--toggle-collect={call}")));
        command.env("LD_PRELOAD", library).env("UNDERDECK_PROTOCOL", "http1").env("UNDERDECK_FORCE", "1");
        command.env("UNDERDECK_MIN_BODY", "65536");
    }
    let done = command.arg(program).args(arguments).output().expect("valgrind runs");
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    let text = std::fs::read_to_string(&out).expect("callgrind writes its counts");
    let totals = text.lines().find_map(|line| line.strip_prefix("totals:"));
    totals.and_then(|count| count.trim().parse().ok()).expect("a total")
}

/// Library and program of the release build, or what is missing.
fn subjects() -> Result<(PathBuf, PathBuf), String> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Err("valgrind is not installed".to_owned());
    }
    if !rustix::process::getuid().is_root() {
        return Err("large socket buffers need root".to_owned());
    }
    let library = tools::library().map_err(|error| error.to_string())?;
    let program = library.with_file_name("hot-paths");
    match program.is_file() {
        true => Ok((library, program)),
        false => Err(format!("{} is not there: cargo build --release -p underdeck-bench", program.display())),
    }
}

#[test]
fn hot_paths_take_no_more_instructions_than_pinned() {
    let (library, program) = match subjects() {
        Ok(subjects) => subjects,
        Err(missing) => return eprintln!("skipped: {missing}"),
    };
    let mut worse = Vec::new();
    for pin in PINS {
        let library = pin.preload.then_some(library.as_path());
        let grown = instructions(&program, library, pin.more) - instructions(&program, library, pin.less);
        let each = grown / pin.count;
        eprintln!("{:>8.0} instructions (pinned {:.0}): {}", each, pin.instructions, pin.name);
        // Nothing at all would mean that the library was not in the way, and the test could not fail.
        assert!(each > 1.0, "{}: nothing was counted", pin.name);
        if each > pin.instructions * TOLERANCE {
            worse.push(pin.name);
        }
        if each < pin.instructions * 0.9 {
            eprintln!("         better than its pin by a tenth: move the pin");
        }
    }
    assert!(worse.is_empty(), "more instructions than pinned: {worse:?}");
}
