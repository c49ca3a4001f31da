//! Waiting without guessing: poll a condition until it holds or a deadline passes.

use std::time::{Duration, Instant};

use crate::LabError;

/// How often a condition is looked at.
const STEP: Duration = Duration::from_millis(2);

/// Polls `ready` until it returns a value; an error after `within`.
pub fn until<T>(
    what: impl Into<String>,
    within: Duration,
    mut ready: impl FnMut() -> Option<T>,
) -> Result<T, LabError> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(value) = ready() {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            return Err(LabError::Timeout { what: what.into(), within });
        }
        std::thread::sleep(STEP);
    }
}
