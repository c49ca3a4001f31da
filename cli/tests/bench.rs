//! `underdeck bench`: becomes the program next to it.

mod common;

use common::World;
use underdeck_cli::exit::Exit;

#[test]
fn it_becomes_the_program_next_to_it_with_all_arguments() {
    let folder = tempfile::tempdir().expect("a directory");
    let program = folder.path().join("underdeck-bench");
    std::fs::write(&program, "").expect("ours");
    let mut world = World { executable: folder.path().join("underdeck"), ..World::default() };
    for args in [&["anchor", "--quick", "--body", "64k,1m"][..], &["anchor", "--help"], &["--help"], &[]] {
        let done = world.underdeck(&[&["bench"], args].concat());
        // The world lets no program start.
        assert_eq!(done.exit, Exit::CannotExecute, "{done:?}");
        let [launch] = &done.launches[..] else { panic!("one launch: {done:?}") };
        assert_eq!(launch.program, program);
        let argv: Vec<&str> = launch.argv.iter().map(|arg| arg.to_str().expect("UTF-8")).collect();
        assert_eq!(argv, [&["underdeck-bench"], args].concat());
    }
}

#[test]
fn without_the_program_it_says_what_to_build() {
    let done = World::default().underdeck(&["bench", "anchor"]);
    assert_eq!((done.exit, done.launches.len()), (Exit::Nothing, 0));
    assert_eq!(
        done.err,
        "underdeck: /nowhere/bin/underdeck-bench is not there; build it (cargo build --release -p underdeck-bench)\n"
    );
}
