//! The pass that reads every response to its last byte and compares it with the source file.

use std::sync::atomic::{AtomicU64, Ordering};

use underdeck_lab::LabError;
use underdeck_lab::client::{Connection, Ending, Expect, Front, Pace, Request};
use underdeck_lab::content::Checker;
use underdeck_lab::files::{names, targets};

use crate::measure::Body;

/// What the pass saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Responses compared.
    pub responses: u64,
    /// Responses that were not the file: a wrong byte, a wrong length, a wrong status, a broken connection.
    pub mismatches: u64,
}

/// Fetches files of a size in turn, sent by the backend as asked, `each` of them over each of `connections` connections at once, and compares every body.
///
/// The files' content is that of the seed `size`, so every response is compared with the file's own bytes; that the
/// files in `folder` hold them is checked first.
pub fn verify(
    front: &Front,
    folder: &std::path::Path,
    Body { size, backend }: Body,
    connections: usize,
    each: usize,
) -> Result<Verified, LabError> {
    let targets: Vec<String> = targets(size, backend.sending()).collect();
    let (responses, mismatches) = (AtomicU64::new(0), AtomicU64::new(0));
    for name in names(size) {
        let mut source = Checker::new(size, 0);
        source.update(&std::fs::read(folder.join(name)).unwrap_or_default());
        let source = source.finish();
        mismatches.fetch_add(u64::from(source.len != size || source.first_wrong.is_some()), Ordering::Relaxed);
    }
    std::thread::scope(|scope| {
        for first in 0..connections {
            let (targets, responses, mismatches) = (&targets, &responses, &mismatches);
            scope.spawn(move || {
                let turn = targets.iter().cycle().skip(first % targets.len()).take(each);
                let wrong = fetch(front, size, turn, responses).unwrap_or(1);
                mismatches.fetch_add(wrong, Ordering::Relaxed);
            });
        }
    });
    Ok(Verified { responses: responses.into_inner(), mismatches: mismatches.into_inner() })
}

fn fetch<'a>(
    front: &Front,
    size: u64,
    targets: impl Iterator<Item = &'a String>,
    responses: &AtomicU64,
) -> Result<u64, LabError> {
    let mut connection = Connection::open(front, &Pace::default())?;
    let mut wrong = 0;
    for target in targets {
        let request = Request::get(target.clone());
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
