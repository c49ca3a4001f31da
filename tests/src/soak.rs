//! Random exchanges: sizes, framings, split points, pauses, aborts, from one seed.

use std::time::Duration;

use underdeck_lab::behaviour::{Behaviour, Delimit, End};
use underdeck_lab::client::{Leave, Upload};
use underdeck_lab::content::Rng;
use underdeck_lab::twin::{Exchange, Manner, Step};

use crate::cases::SIZES;

/// The exchange that `rng` comes to next.
pub fn exchange(name: String, rng: &mut Rng) -> Exchange {
    let steps: Vec<Step> = (0..1 + rng.below(4)).map(|_| step(rng)).collect();
    let mut it = Exchange::new(name, steps);
    it.pace.deadline = Duration::from_secs(30);
    if rng.one_in(4) && it.steps.iter().all(|step| step.upload == Upload::None) {
        it.manner = Manner::Pipelined;
    }
    if rng.one_in(3) {
        it.pace.receive_buffer = Some(4096 << rng.below(6));
    }
    if rng.one_in(4) {
        it.pace.splits = (0..rng.below(6)).map(|_| rng.below(3000) as usize).collect();
    }
    if rng.one_in(6) {
        it.pace.read_rate = Some(200_000 + rng.below(20_000_000));
    }
    if rng.one_in(5) {
        break_it(&mut it, rng);
    } else {
        // Some proxies end the client's connection as the backend did: only the last step may do that.
        let last = it.steps.len() - 1;
        for step in it.steps[..last].iter_mut().filter(|step| step.behaviour.delimit == Delimit::Close) {
            step.behaviour.delimit = Delimit::Length;
        }
    }
    if it.pace.read_rate.is_some() {
        for step in &mut it.steps {
            step.behaviour.len = step.behaviour.len.min(300_000);
        }
    }
    it
}

fn step(rng: &mut Rng) -> Step {
    let len = size(rng);
    let delimit = match rng.below(5) {
        0 | 1 => Delimit::Length,
        2 => Delimit::Chunked(1 + rng.below(200) as usize),
        3 => Delimit::Chunked(1 + rng.below(200_000) as usize),
        _ => Delimit::Close,
    };
    // A body of millions in chunks of a byte tests nothing more and takes minutes.
    let len = if let Delimit::Chunked(..1000) = delimit { len.min(100_000) } else { len };
    let mut behaviour = Behaviour { seed: rng.next_u64() >> 8, ..Behaviour::body(len, delimit) };
    if rng.one_in(3) {
        let count = 1 + rng.below(12);
        behaviour.splits = (0..count).map(|_| rng.below(len + 400)).collect();
        behaviour.pause_us = rng.below(4000);
    }
    behaviour.pad = if rng.one_in(3) { rng.below(2000) as usize } else { 0 };
    behaviour.trailers = rng.one_in(5);
    behaviour.http10 = rng.one_in(12);
    let upload = match rng.below(6) {
        0 => Upload::Length(size(rng)),
        1 => Upload::Chunked(size(rng).min(500_000), 1 + rng.below(60_000) as usize),
        _ => Upload::None,
    };
    match upload {
        Upload::None if rng.one_in(10) => Step { method: "HEAD", ..Step::get(behaviour) },
        Upload::None => Step::get(behaviour),
        upload => Step::post(upload, behaviour),
    }
}

/// Half of the time around a threshold, else anything; small ones more often.
fn size(rng: &mut Rng) -> u64 {
    if rng.one_in(2) {
        let around = *rng.pick(SIZES);
        return (around + rng.below(5)).saturating_sub(2);
    }
    let bits = rng.below(23);
    rng.below(1 << bits)
}

fn break_it(it: &mut Exchange, rng: &mut Rng) {
    it.faulty = true;
    it.pace.deadline = Duration::from_secs(6);
    let last = it.steps.len() - 1;
    let len = it.steps[last].behaviour.len;
    let at = rng.below(len + 300);
    match rng.below(5) {
        0 => it.steps[last].behaviour.end = End::Fin(at),
        1 => it.steps[last].behaviour.end = End::Reset(at),
        2 => it.pace.leave = Some((at, Leave::Close)),
        3 => it.pace.leave = Some((at, Leave::Reset)),
        _ => (it.steps[last].behaviour.early, it.steps[last].behaviour.close) = (true, true),
    }
}
