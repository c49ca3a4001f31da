//! A user who has no pipe left: everything is copied, and the counters say why. In a program of its own: it takes the pipes
//! of all whom that user runs.

use std::time::Duration;

use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::engine::{Reason, Role};
use underdeck_lab::process::Process;
use underdeck_lab::proxy::{Envoy, Haproxy, Nginx, Spec};
use underdeck_lab::twin::{Exchange, Step};
use underdeck_lab::wait;
use underdeck_tests::matrix::{Lane, compare};
use underdeck_tests::payload::Must;

const MIB: u64 = 1 << 20;

#[test]
fn pipes_run_out() {
    if !rustix::process::getuid().is_root() {
        // Workers then run as this user, whose own pipes the tests need.
        panic!("this test needs root: it exhausts the pipes of www-data");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let hog = dir.path().join("pipe-hog");
    // Under a home directory, another user could not execute it.
    std::fs::copy(env!("CARGO_BIN_EXE_pipe-hog"), &hog).expect("copied");
    open_to_all(dir.path());
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=www-data", "--regid=www-data", "--clear-groups"]).arg(&hog);
    let holder = Process::spawn("pipe-hog", dir.path(), command).expect("started");
    let ready = || (std::fs::read(dir.path().join("pipe-hog.stdout")).ok()?.starts_with(b"ready")).then_some(());
    wait::until("www-data has no pipes left", Duration::from_secs(30), ready)
        .unwrap_or_else(|error| panic!("{error}: {}", holder.stderr_tail()));
    for (name, spec) in [
        ("nginx", Spec::Nginx(Nginx::default())),
        ("nginx-large", Spec::Nginx(Nginx::large())),
        ("haproxy", Spec::Haproxy(Haproxy { threads: 2, ..Haproxy::default() })),
        ("envoy", Spec::Envoy(Envoy { unprivileged: true, ..Envoy::default() })),
    ] {
        let lanes = [Lane::plain(&spec), Lane::underdeck(&spec), Lane::underdeck_tiny(&spec)];
        let mut wrong = Vec::new();
        for n in [300, 5000, 70_000, 300_000, 4 * MIB] {
            for delimit in [Delimit::Length, Delimit::Chunked(9000), Delimit::Close] {
                let exchange = Exchange::new(
                    format!("no-pipes-{n}-{delimit:?}").replace(['(', ')'], "-"),
                    vec![Step::get(Behaviour::body(n, delimit))],
                );
                wrong.extend(compare(&exchange, &lanes));
            }
        }
        assert_eq!(wrong, Vec::<String>::new(), "{name}");
        for lane in lanes {
            let musts = [Must::CopyFor(Role::Connected, Reason::NoPipe)];
            assert_eq!(lane.check_counters(&musts), Vec::<String>::new(), "{name}");
            lane.stop().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    holder.stop().expect("the pipes are free again");
}

fn open_to_all(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
}
