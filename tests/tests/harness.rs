//! The harness itself: silent where nothing differs, loud where one byte does.

use std::time::Duration;

use underdeck_lab::backend::Backend;
use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::{Front, Upload};
use underdeck_lab::corrupt::{Damage, relay};
use underdeck_lab::process::Process;
use underdeck_lab::proxy::{Nginx, Spec};
use underdeck_lab::twin::{Exchange, Observation, Side, Step, differences, judge, observe};
use underdeck_lab::{proc, wait};
use underdeck_tests::cases;
use underdeck_tests::matrix::{Lane, compare};

/// Observes an exchange through a relay; an error of the client counts as loud, too.
fn through(exchange: &Exchange, damage: Damage) -> Result<Observation, String> {
    let backend = Backend::start().expect("a backend");
    let front = Front::from(relay(backend.addr(), damage).expect("a relay"));
    observe(exchange, Side { proxy: None, front: &front, backend: &backend }).map_err(|error| error.to_string())
}

fn body(n: u64, delimit: Delimit) -> Exchange {
    let mut it = Exchange::new("body", vec![Step::get(Behaviour::body(n, delimit))]);
    it.pace.deadline = Duration::from_secs(2);
    it
}

#[test]
fn equal_relays_are_silent() {
    for exchange in [cases::bodies(&[0, 1, 5000]), cases::uploads(&[5000]), cases::tunnels()].concat() {
        let a = through(&exchange, Damage::None).expect("observed");
        let b = through(&exchange, Damage::None).expect("observed");
        assert_eq!(judge(&exchange, &a), Vec::<String>::new());
        assert_eq!(differences(&exchange, &a, &b), Vec::<String>::new());
    }
}

#[test]
fn one_damaged_byte_is_found_wherever_it_is() {
    for (n, delimit) in [(5000, Delimit::Length), (300_000, Delimit::Chunked(4096)), (70_000, Delimit::Close)] {
        let exchange = body(n, delimit);
        for at in [300, 1000, 4999] {
            for damage in [Damage::Flip(at), Damage::Drop(at), Damage::Repeat(at)] {
                if let Ok(it) = through(&exchange, damage) {
                    assert_ne!(judge(&exchange, &it), Vec::<String>::new(), "{delimit:?} {damage:?} went unnoticed");
                }
            }
        }
    }
}

#[test]
fn a_wrong_byte_is_found_in_a_broken_exchange_too() {
    let exchange = body(5000, Delimit::Length).faulty();
    let it = through(&exchange, Damage::Flip(1000)).expect("observed");
    assert_ne!(judge(&exchange, &it), Vec::<String>::new());
}

#[test]
fn a_changed_head_is_a_difference() {
    let exchange = body(10, Delimit::Length);
    let a = through(&exchange, Damage::None).expect("observed");
    // Inside the field Content-Type.
    let b = through(&exchange, Damage::Flip(40)).expect("observed");
    assert_ne!(differences(&exchange, &a, &b), Vec::<String>::new());
}

#[test]
fn a_changed_upload_is_a_difference() {
    let step = |n| Step::post(Upload::Length(n), Behaviour::body(5, Delimit::Length));
    let (shorter, longer) = (Exchange::new("up", vec![step(999)]), Exchange::new("up", vec![step(1000)]));
    let a = through(&shorter, Damage::None).expect("observed");
    let b = through(&longer, Damage::None).expect("observed");
    assert_ne!(differences(&longer, &a, &b), Vec::<String>::new());
    assert_ne!(judge(&longer, &a), Vec::<String>::new());
}

#[test]
fn plain_twins_of_nginx_are_silent_and_leave_nothing() {
    let spec = Spec::Nginx(Nginx::default());
    let lanes = [Lane::plain(&spec), Lane::plain(&spec)];
    let pids: Vec<u32> = lanes.iter().flat_map(|lane| lane.proxy.process().pids()).collect();
    assert_eq!(pids.len(), 4, "two masters and two workers");
    for exchange in cases::connections(cases::FEW_SIZES) {
        assert_eq!(compare(&exchange, &lanes), Vec::<String>::new());
    }
    let folders: Vec<_> = lanes.iter().map(|lane| lane.proxy.dir().to_owned()).collect();
    for lane in lanes {
        lane.stop().expect("nothing left behind");
    }
    assert!(pids.into_iter().all(|pid| !proc::alive(pid)));
    assert!(folders.iter().all(|folder| !folder.exists()));
}

#[test]
fn a_panicking_test_leaves_no_process() {
    let spec = Spec::Nginx(Nginx::default());
    let (sender, receiver) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let lane = Lane::plain(&spec);
        sender.send(lane.proxy.process().pids()).expect("somebody listens");
        panic!("as tests do");
    });
    let pids: Vec<u32> = receiver.recv().expect("the proxy's processes");
    assert!(test.join().is_err());
    assert!(!pids.is_empty() && pids.into_iter().all(|pid| !proc::alive(pid)));
}

#[test]
fn a_proxy_that_died_is_reported() {
    let lane = Lane::plain(&Spec::Nginx(Nginx::default()));
    let process: &Process = lane.proxy.process();
    for pid in process.pids() {
        underdeck_lab::process::signal_pid(pid, rustix::process::Signal::KILL).expect("killed");
    }
    let gone = || lane.proxy.process().pids().is_empty().then_some(());
    wait::until("it is gone", Duration::from_secs(20), gone).expect("it is gone");
    assert!(lane.stop().is_err());
}
