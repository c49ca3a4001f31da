//! End-to-end tests: real proxies, plain and under the engine, must be indistinguishable.
//!
//! [`cases`] is the table of exchanges, [`matrix`] sends them through twins, [`payload`] says what
//! the engine must have done with them. The tests themselves are in `tests/`.
//!
//! They need what `lab/setup.sh` installs, and the library and the command of a release build (`UNDERDECK_LIB` and
//! `UNDERDECK_PROGRAM` name others). [`user`] is somebody who has both installed.
//! `UNDERDECK_TEST_LIB=none` runs plain twins against each other: it shows that the harness itself is silent on
//! proxies that are equal. `UNDERDECK_TEST_ONLY=TEXT` keeps only the exchanges whose name contains the text.

pub mod cases;
pub mod download;
pub mod matrix;
pub mod payload;
pub mod soak;
pub mod user;
