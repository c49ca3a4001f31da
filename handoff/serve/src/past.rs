//! Transfers that are over, and what became of them: for late questions and for replays.

use std::collections::{HashMap, VecDeque};

/// How many are remembered.
const MEMORY: usize = 65_536;

/// The last transfers.
pub struct Past<T> {
    order: VecDeque<u64>,
    outcomes: HashMap<u64, T>,
    memory: usize,
}

impl<T: Copy> Past<T> {
    pub fn new() -> Past<T> {
        Past { order: VecDeque::new(), outcomes: HashMap::new(), memory: MEMORY }
    }

    /// Remembers it, and forgets the oldest.
    pub fn add(&mut self, transfer: u64, outcome: T) {
        if self.outcomes.insert(transfer, outcome).is_none() {
            self.order.push_back(transfer);
        }
        if self.order.len() > self.memory {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.outcomes.remove(&oldest));
        }
    }

    pub fn get(&self, transfer: u64) -> Option<T> {
        self.outcomes.get(&transfer).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut past = Past { memory: 3, ..Past::new() };
        for transfer in [1, 2, 3, 2, 4] {
            past.add(transfer, transfer * 10);
        }
        assert_eq!([1, 2, 3, 4].map(|transfer| past.get(transfer)), [None, Some(20), Some(30), Some(40)]);
        assert_eq!((past.order.len(), past.outcomes.len()), (3, 3));
    }
}
