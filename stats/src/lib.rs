//! Counters in shared memory.
