//! The command `underdeck`.
fn main() {}
