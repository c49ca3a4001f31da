//! The mesh engine against sidecars: [`plane`] (with [`sidecar`] and [`bypass`]) carries the requests of five services,
//! [`drive`] asks and compares every byte, [`figures`] sums up. [`awake`] keeps CPUs
//! from sleeping meanwhile.

pub mod awake;
pub mod bypass;
pub mod drive;
pub mod figures;
pub mod plane;
pub mod sidecar;
