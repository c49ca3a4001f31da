//! One run: load on one subject, and what it cost the subject.

use std::time::Duration;

use underdeck_lab::LabError;
use underdeck_lab::load::{Edge, Load, Measured, Source};
use underdeck_lab::proc;

use crate::measure::Cpus;
use crate::subject::{Subject, Used};

/// A subject whose busiest thread was idle for more than this is not the bottleneck.
pub const SATURATED: f64 = 0.95;

/// What one run showed.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the load generator saw.
    pub load: Measured,
    /// CPU time of the subject's processes in the window, user and system, with the softirqs that ran in them and in the
    /// kernel's own thread for those of the subject's CPU.
    pub cpu: Duration,
    /// Of this: in user mode, in ticks of 10 ms.
    pub user: Duration,
    /// Of this: in the kernel, in ticks of 10 ms.
    pub system: Duration,
    /// Share of the window in which the subject's busiest thread ran or was ready to.
    pub saturation: f64,
    /// Share of the subject's CPUs that went to softirqs in the window, whoever they were charged to.
    pub softirq_share: f64,
    /// Context switches of the subject's threads.
    pub switches: u64,
    /// Payload bytes that the engine kept in the kernel.
    pub bytes_anchored: u64,
    /// Payload bytes copied to the subject, as the engine counts; without the engine 0.
    pub bytes_copied: u64,
    /// Connections that the engine reset.
    pub resets: u64,
    /// Resident memory at its peak above that before the run.
    pub memory: u64,
}

impl Run {
    /// Puts `load` on a subject.
    pub fn of(subject: &Subject, load: &Load, source: &Source) -> Result<Self, LabError> {
        let pids = subject.workers();
        pids.iter().copied().for_each(proc::reset_peak);
        let resident: u64 = pids.iter().copied().map(proc::resident).sum();
        // Nobody else has that CPU: its softirqs are the subject's traffic.
        let cpus = Cpus::here().proxy;
        let helpers = if pids.is_empty() || cpus.is_empty() { Vec::new() } else { proc::softirq_threads(&cpus) };
        let (mut before, mut after) = (Used::default(), Used::default());
        let load = load.run(source, |edge| match edge {
            Edge::Begin => before = subject.used(&helpers, true),
            Edge::End => after = subject.used(&helpers, false),
        })?;
        let peak: u64 = pids.iter().copied().map(proc::resident_peak).sum();
        Ok(Self {
            cpu: after.cpu.saturating_sub(before.cpu),
            user: after.user.saturating_sub(before.user),
            system: after.system.saturating_sub(before.system),
            saturation: after.saturation(&before, load.window),
            softirq_share: after.softirq_share(&before),
            switches: after.switches.saturating_sub(before.switches),
            bytes_anchored: after.anchored.saturating_sub(before.anchored),
            bytes_copied: after.copied.saturating_sub(before.copied),
            resets: after.resets.saturating_sub(before.resets),
            memory: peak.saturating_sub(resident),
            load,
        })
    }

    /// GB (10^9 bytes) of payload per second of the subject's CPU.
    pub fn gb_per_cpu_s(&self) -> f64 {
        self.load.payload_bytes as f64 / 1e9 / self.cpu.as_secs_f64().max(1e-9)
    }

    /// Microseconds of the subject's CPU per request.
    pub fn cpu_us_per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.load.requests.max(1) as f64
    }
}

/// Rounds in which every subject has its turn once, each round beginning with another one, so that drift of the machine
/// hits all. Element `[round][subject]`.
pub fn rounds<T>(
    rounds: usize,
    subjects: usize,
    mut run: impl FnMut(usize) -> Result<T, LabError>,
) -> Result<Vec<Vec<T>>, LabError> {
    let mut all = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let mut seen: Vec<Option<T>> = (0..subjects).map(|_| None).collect();
        for turn in 0..subjects {
            let subject = (round + turn) % subjects;
            seen[subject] = Some(run(subject)?);
        }
        all.push(seen.into_iter().flatten().collect());
    }
    Ok(all)
}

/// The median, the smallest and the largest of some figures; None of none.
pub fn spread(figures: impl IntoIterator<Item = f64>) -> Option<(f64, f64, f64)> {
    let mut all: Vec<f64> = figures.into_iter().collect();
    all.sort_by(f64::total_cmp);
    let (first, last) = (*all.first()?, *all.last()?);
    let middle = all.len() / 2;
    let median = if all.len() % 2 == 1 { all[middle] } else { (all[middle - 1] + all[middle]) / 2.0 };
    Some((median, first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(spread([3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread([4.0, 1.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread([]), None);
    }

    #[test]
    fn every_subject_begins_in_turn() {
        let mut order = Vec::new();
        let all = rounds(3, 3, |subject| {
            order.push(subject);
            Ok(subject * 10)
        });
        assert_eq!(order, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
        assert_eq!(all.expect("rounds"), vec![vec![0, 10, 20]; 3]);
    }
}
