//! The priority of the kernel's threads, where the configuration says it. Needs root and Envoy.

mod support;

use std::time::Duration;

use support::backend::Backend;
use support::{Agent, POLICIES, Setup, inside};
use underdeck_lab::wait;

/// Nice values of the kernel's threads of a name.
fn nices(is_meant: impl Fn(&str) -> bool) -> Vec<i64> {
    let pids = std::fs::read_to_string("/proc/2/task/2/children").expect("kernel threads");
    let nice = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (before, after) = stat.rsplit_once(") ")?;
        is_meant(before.split_once('(')?.1).then_some(())?;
        after.split(' ').nth(16)?.parse().ok()
    };
    pids.split_ascii_whitespace().filter_map(nice).collect()
}

/// `kworker/0:1` and the like, without those of other priorities.
fn of_common_queue(name: &str) -> bool {
    let number = name.strip_prefix("kworker/").and_then(|name| name.split_once(':'));
    number.is_some_and(|(cpu, rest)| !cpu.contains('u') && !rest.contains('H'))
}

#[test]
fn threads_of_the_kernel_get_a_priority_and_it_is_taken_back() {
    let name = "threads_of_the_kernel_get_a_priority_and_it_is_taken_back";
    inside(name, |group| {
        let backend = Backend::start();
        let others = || nices(|name| name.starts_with("kworker/u") || name.starts_with("ksoftirqd"));
        let before = others();
        let agent = Agent::start(&Setup {
            name,
            group,
            policies: POLICIES,
            services: &["127.83.3.1:80".parse().expect("an address")],
            endpoints: &[("shop.test||", backend.address)],
            more: "kworker_nice: -1",
        });
        // New ones come at any time.
        let all_are = |nice| {
            wait::until("all have it", Duration::from_secs(60), || {
                let nices = nices(of_common_queue);
                (!nices.is_empty() && nices.iter().all(|it| *it == nice)).then_some(())
            })
        };
        all_are(-1).expect("they get it");
        assert!(before.iter().chain(&others()).all(|nice| *nice != -1));
        agent.stop();
        all_are(0).expect("it is taken back");
    });
}
