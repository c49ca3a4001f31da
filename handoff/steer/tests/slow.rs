//! The slow tier with a device that takes as long as the test wants.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use underdeck_handoff_steer::{Flow, Slow, SlowError, SlowTier, Target};

/// A device that works on a rule when it is told to.
struct Device {
    rules: Arc<Mutex<HashSet<Flow>>>,
    starts: Sender<Flow>,
    go: Receiver<bool>,
}

struct Remote {
    rules: Arc<Mutex<HashSet<Flow>>>,
    starts: Receiver<Flow>,
    go: Sender<bool>,
}

impl SlowTier for Device {
    fn insert(&mut self, flow: &Flow, _: &Target) -> Result<(), SlowError> {
        let _ = self.starts.send(*flow);
        if !self.go.recv().unwrap_or(true) {
            return Err(SlowError::Refused("the test says so".to_owned()));
        }
        assert!(self.rules.lock().unwrap().insert(*flow));
        Ok(())
    }

    fn remove(&mut self, flow: &Flow) -> Result<(), SlowError> {
        match self.rules.lock().unwrap().remove(flow) {
            true => Ok(()),
            false => Err(SlowError::Refused("there is no such rule".to_owned())),
        }
    }
}

fn device() -> (Box<Device>, Remote) {
    let rules = Arc::new(Mutex::new(HashSet::new()));
    let ((starts, started), (go, gone)) = (channel(), channel());
    (Box::new(Device { rules: Arc::clone(&rules), starts, go: gone }), Remote { rules, starts: started, go })
}

fn flow(port: u16) -> Flow {
    Flow { local: "10.0.0.2:80".parse().unwrap(), peer: SocketAddr::new([10, 0, 0, 1].into(), port) }
}

fn target() -> Target {
    Target { address: "10.0.0.3:80".parse().unwrap(), interface: 2 }
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn what_waits_is_cancelled_and_what_is_under_way_is_removed() {
    let (device, remote) = device();
    let slow = Slow::start(device, 2);
    assert!(slow.insert(&flow(1), &target()));
    assert_eq!(remote.starts.recv().unwrap(), flow(1), "the device works on it");
    assert!(slow.insert(&flow(2), &target()) && slow.insert(&flow(3), &target()));
    assert!(!slow.insert(&flow(4), &target()), "the queue is bounded");
    assert!(slow.withdraw(&flow(2)), "at once, although the device is busy");
    assert_eq!(slow.counters().cancelled, 1);
    std::thread::scope(|scope| {
        let withdrawal = scope.spawn(|| slow.withdraw(&flow(1)));
        // For flow 1, and for flow 3, which the device may begin before the withdrawal of flow 1 is asked for.
        remote.go.send(true).unwrap();
        remote.go.send(true).unwrap();
        assert!(withdrawal.join().unwrap());
    });
    assert!(!remote.rules.lock().unwrap().contains(&flow(1)));
    assert_eq!(remote.starts.recv().unwrap(), flow(3), "flow 2 never came");
    eventually("flow 3 is installed", || slow.is_installed(&flow(3)));
    let counters = slow.counters();
    assert_eq!((counters.installed, counters.full, counters.waiting, counters.present), (2, 1, 0, 1));
    drop(slow);
    assert!(remote.rules.lock().unwrap().is_empty(), "nothing stays in the device");
}

#[test]
fn a_refused_rule_can_be_asked_for_again() {
    let (device, remote) = device();
    let slow = Slow::start(device, 2);
    remote.go.send(false).unwrap();
    assert!(slow.insert(&flow(1), &target()));
    eventually("it is refused", || slow.counters().refused == 1);
    remote.go.send(true).unwrap();
    eventually("the queue has forgotten it", || slow.insert(&flow(1), &target()) && slow.is_installed(&flow(1)));
    assert!(slow.withdraw(&flow(1)) && slow.withdraw(&flow(1)), "withdrawing twice is no error");
}
