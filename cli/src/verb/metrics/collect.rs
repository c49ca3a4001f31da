//! Counters of all engines, summed by the name of the program.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use underdeck_stats::{Reason, Role, RoleSnapshot, Snapshot, find_all_in};

/// Programs with a series of their own; the rest share the name "other", so that names cannot flood a scraper.
const NAMES: usize = 32;

/// Reads shared memory at scrape time.
#[derive(Debug)]
pub struct Engines {
    proc: PathBuf,
    seen: Mutex<Seen>,
}

/// What earlier scrapes saw.
#[derive(Debug, Default)]
struct Seen {
    /// By memory file (inode and start): processes of the last scrape.
    alive: BTreeMap<(u64, u64), Snapshot>,
    /// By name: the last counters of processes that have ended, so that sums never go down.
    ended: BTreeMap<String, Snapshot>,
}

/// All that one name stands for.
struct Group {
    /// Counters of processes alive and ended.
    total: Snapshot,
    /// Processes alive.
    alive: Vec<Snapshot>,
}

impl Engines {
    /// Reads the processes under this mount point of procfs.
    pub fn new(proc: PathBuf) -> Self {
        Self { proc, seen: Mutex::default() }
    }

    fn groups(&self) -> Result<BTreeMap<String, Group>, fmt::Error> {
        let found = find_all_in(&self.proc).map_err(|_| fmt::Error)?;
        // A thread that panicked here left whole snapshots behind, if old ones.
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        seen.update(found.snapshots);
        Ok(seen.groups())
    }
}

impl Seen {
    fn update(&mut self, now: Vec<Snapshot>) {
        let now: BTreeMap<_, _> = now.into_iter().map(|one| ((one.inode, one.started_realtime_ns), one)).collect();
        for (key, gone) in std::mem::take(&mut self.alive) {
            if !now.contains_key(&key) {
                let name = self.name(&gone.comm);
                let ended = self.ended.entry(name).or_default();
                *ended = Snapshot::sum([&*ended, &gone]);
            }
        }
        self.alive = now;
    }

    fn name(&self, comm: &str) -> String {
        if self.ended.contains_key(comm) || self.ended.len() < NAMES { comm.to_owned() } else { "other".to_owned() }
    }

    fn groups(&self) -> BTreeMap<String, Group> {
        let mut groups: BTreeMap<String, Group> = self
            .ended
            .iter()
            .map(|(name, ended)| (name.clone(), Group { total: ended.clone(), alive: Vec::new() }))
            .collect();
        for one in self.alive.values() {
            let fits = groups.contains_key(&one.comm) || groups.len() < NAMES;
            let name = if fits { one.comm.clone() } else { "other".to_owned() };
            let group = groups.entry(name).or_insert_with(|| Group { total: Snapshot::default(), alive: Vec::new() });
            group.total = Snapshot::sum([&group.total, one]);
            group.alive.push(one.clone());
        }
        groups
    }
}

/// (name without prefix and suffix, help, unit, field)
type Counter = (&'static str, &'static str, Option<Unit>, fn(&RoleSnapshot) -> u64);
type ByReason = (&'static str, &'static str, fn(&RoleSnapshot) -> &[u64]);
type PerName = (&'static str, &'static str, Option<Unit>, fn(&Group) -> u64);

fn counters() -> [Counter; 7] {
    [
        ("connections", "Connections seen", None, |role| role.connections),
        ("messages", "Messages with a body", None, |role| role.messages),
        ("messages_anchored", "Messages of which at least one byte was anchored", None, |role| role.messages_anchored),
        ("messages_copied", "Messages of which every byte was copied", None, |role| role.messages_copied),
        ("anchored", "Payload that stayed in the kernel on receive", Some(Unit::Bytes), |role| role.bytes_anchored),
        ("forwarded", "Anchored payload that left by splice", Some(Unit::Bytes), |role| role.bytes_forwarded),
        ("dropped", "Anchored payload that was never sent", Some(Unit::Bytes), |role| role.bytes_dropped),
    ]
}

fn by_reason() -> [ByReason; 2] {
    [
        ("copied", "Payload copied to the process on receive, by reason", |role| &role.copied_by_reason),
        ("materialised", "Anchored payload copied after all, by reason", |role| &role.materialised_by_reason),
    ]
}

fn per_name() -> [PerName; 9] {
    let bytes = || Some(Unit::Bytes);
    [
        ("processes", "Processes with the engine", None, |group| group.alive.len() as u64),
        ("processes_enabled", "Processes whose engine is switched on", None, |group| {
            group.alive.iter().filter(|one| one.enabled).count() as u64
        }),
        ("anchors_open", "Anchors that exist", None, |group| sum(group, |one| one.anchors_open)),
        ("anchors_open_max", "Most anchors that one process had", None, |group| {
            most(group, |one| one.anchors_open_max)
        }),
        ("held", "Payload in pipes", bytes(), |group| sum(group, |one| one.bytes_held)),
        ("held_max", "Most payload that one process held in pipes", bytes(), |group| {
            most(group, |one| one.bytes_held_max)
        }),
        ("pipes_open", "Pipes that exist", None, |group| sum(group, |one| one.pipes_open)),
        ("pipes_open_max", "Most pipes that one process had", None, |group| most(group, |one| one.pipes_open_max)),
        ("start_time_max", "Latest start of an engine, since the epoch", Some(Unit::Seconds), |group| {
            most(group, |one| one.started_realtime_ns / 1_000_000_000)
        }),
    ]
}

fn sum(group: &Group, field: fn(&Snapshot) -> u64) -> u64 {
    group.alive.iter().map(field).fold(0, u64::saturating_add)
}

fn most(group: &Group, field: fn(&Snapshot) -> u64) -> u64 {
    group.alive.iter().map(field).max().unwrap_or(0)
}

impl Collector for Engines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let groups = self.groups()?;
        for (name, help, unit, field) in counters() {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
            for (comm, group) in &groups {
                for role in Role::ALL {
                    let labels = [("comm", comm.as_str()), ("role", role.name())];
                    ConstCounter::new(field(group.total.role(role))).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        for (name, help, slots) in by_reason() {
            let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Counter)?;
            for (comm, group) in &groups {
                for role in Role::ALL {
                    for reason in Reason::ALL {
                        let labels = [("comm", comm.as_str()), ("role", role.name()), ("reason", reason.name())];
                        let bytes = slots(group.total.role(role))[reason as usize];
                        ConstCounter::new(bytes).encode(family.encode_family(&labels)?)?;
                    }
                }
            }
        }
        for (name, help, field) in [
            (
                "resets",
                "Connections that the engine had to reset: must be 0",
                (|one| one.resets) as fn(&Snapshot) -> u64,
            ),
            ("panics", "Panics caught at the border: must be 0", |one| one.panics),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (comm, group) in &groups {
                ConstCounter::new(field(&group.total)).encode(family.encode_family(&[("comm", comm.as_str())])?)?;
            }
        }
        for (name, help, unit, field) in per_name() {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for (comm, group) in &groups {
                let value = i64::try_from(field(group)).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(&[("comm", comm.as_str())])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(comm: &str, inode: u64, anchored: u64) -> Snapshot {
        let mut one = Snapshot { comm: comm.to_owned(), pid: 1, inode, ..Snapshot::default() };
        one.roles[Role::Connected as usize].bytes_anchored = anchored;
        one
    }

    fn anchored(seen: &Seen, name: &str) -> u64 {
        seen.groups()[name].total.role(Role::Connected).bytes_anchored
    }

    #[test]
    fn a_process_that_ends_does_not_lower_the_sum() {
        let mut seen = Seen::default();
        seen.update(vec![process("nginx", 1, 100), process("nginx", 2, 50)]);
        assert_eq!(anchored(&seen, "nginx"), 150);
        seen.update(vec![process("nginx", 2, 70)]);
        assert_eq!(anchored(&seen, "nginx"), 170);
        assert_eq!(seen.groups()["nginx"].alive.len(), 1);
        seen.update(vec![]);
        assert_eq!(anchored(&seen, "nginx"), 170);
    }

    #[test]
    fn names_are_bounded() {
        let mut seen = Seen::default();
        for round in 0..3 {
            seen.update((0..100).map(|n| process(&format!("p{round}-{n}"), round * 100 + n, 1)).collect());
            let groups = seen.groups();
            assert!(groups.len() <= NAMES + 1, "{} names", groups.len());
            let sum: u64 = groups.values().map(|group| group.total.role(Role::Connected).bytes_anchored).sum();
            assert_eq!(sum, (round + 1) * 100);
        }
    }
}
