//! The pass that reads every response to its last byte and compares it with the source file.

use std::sync::atomic::{AtomicU64, Ordering};

use underdeck_lab::LabError;
use underdeck_lab::client::{Connection, Ending, Expect, Front, Pace, Request};

/// What the pass saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Responses compared.
    pub responses: u64,
    /// Responses that were not the file: a wrong byte, a wrong length, a wrong status, a broken connection.
    pub mismatches: u64,
}

/// Fetches `/size` `each` times over each of `connections` connections at once, and compares every body with the file.
///
/// The file's content is that of the seed `size`, so every response is compared with the file's own bytes; that the
/// file on disk holds them is checked first.
pub fn verify(
    front: &Front,
    file: &std::path::Path,
    size: u64,
    connections: usize,
    each: usize,
) -> Result<Verified, LabError> {
    let mut source = underdeck_lab::content::Checker::new(size, 0);
    source.update(&std::fs::read(file).unwrap_or_default());
    let source = source.finish();
    let (responses, mismatches) = (AtomicU64::new(0), AtomicU64::new(0));
    if source.len != size || source.first_wrong.is_some() {
        mismatches.fetch_add(1, Ordering::Relaxed);
    }
    std::thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let wrong = fetch(front, size, each, &responses).unwrap_or(1);
                mismatches.fetch_add(wrong, Ordering::Relaxed);
            });
        }
    });
    Ok(Verified { responses: responses.into_inner(), mismatches: mismatches.into_inner() })
}

fn fetch(front: &Front, size: u64, each: usize, responses: &AtomicU64) -> Result<u64, LabError> {
    let mut connection = Connection::open(front, &Pace::default())?;
    let request = Request::get(format!("/{size}"));
    let mut wrong = 0;
    for _ in 0..each {
        connection.send(&request)?;
        let reply = connection.receive(&request, Expect { seed: size, from: 0 })?;
        responses.fetch_add(1, Ordering::Relaxed);
        let body = &reply.body;
        let right = reply.head.status() == 200 && body.len == size && body.first_wrong.is_none();
        wrong += u64::from(!right);
        if reply.ending != Ending::Complete {
            break;
        }
    }
    Ok(wrong)
}
