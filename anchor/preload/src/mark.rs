//! The placeholder: what stands in the application's buffer instead of payload.
//!
//! A *segment* is one stretch of application memory that one read filled with a placeholder. It always begins with a mark,
//! and carries one at every [`STRIDE`] from there on, as far as a whole mark fits; the bytes between are whatever was there
//! before. A mark names the anchor (the Virtual Payload Identifier, VPI, of the paper's section 3.2) and the
//! offset within it, and proves by a tag that this process wrote it.
//!
//! ```text
//! 0        8          12              16     24
//! │ magic  │ VPI      │ offset mod 2³² │ tag  │
//! ```

use memchr::memmem::Finder;

/// Bytes of one mark.
pub(crate) const MARK: usize = 24;
/// Distance of marks in a segment, bytes.
pub(crate) const STRIDE: usize = 2048;
/// Bytes of the magic at the beginning of a mark.
pub(crate) const MAGIC: usize = 8;

/// The two words that make the marks of one anchor impossible to forge.
pub(crate) type Secret = [u64; 2];

/// The name of an anchor: its slot, and how often the slot has been used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vpi {
    pub(crate) slot: u16,
    pub(crate) generation: u16,
}

/// A mark as it was found in outgoing bytes; not verified yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) vpi: Vpi,
    pub(crate) offset_low: u32,
    tag: u64,
}

/// What all marks of one process have in common.
pub(crate) struct Magic {
    bytes: [u8; MAGIC],
    finder: Finder<'static>,
}

impl Magic {
    pub(crate) fn new(random: u64) -> Self {
        // No text ends like the beginning of a mark: heads and chunk lines never have to be held back.
        let bytes = if cfg!(feature = "test-guessable-key") { *b"UNDERDCK" } else { (random | 0x80).to_le_bytes() };
        Self { bytes, finder: Finder::new(&bytes).into_owned() }
    }

    /// The first place in `bytes` where a mark begins, or seems to: see [`Sighting`].
    pub(crate) fn find(&self, bytes: &[u8]) -> Sighting {
        match self.finder.find(bytes) {
            Some(at) if bytes.len() - at >= MARK => Sighting::Mark(at, Mark::decode(&bytes[at..at + MARK])),
            Some(at) => Sighting::Begun(at),
            None => self.cut_at_the_end(bytes).map_or(Sighting::Nothing, Sighting::Begun),
        }
    }

    /// Whether `bytes` may be the beginning of a mark.
    pub(crate) fn could_begin(&self, bytes: &[u8]) -> bool {
        let known = bytes.len().min(MAGIC);
        bytes[..known] == self.bytes[..known]
    }

    /// Whether `bytes` go on where the first `from` bytes of a mark end.
    pub(crate) fn goes_on(&self, from: usize, bytes: &[u8]) -> bool {
        self.bytes[from..].starts_with(bytes)
    }

    /// Where less than the magic stands at the end of `bytes`, and may go on elsewhere.
    pub(crate) fn cut_at_the_end(&self, bytes: &[u8]) -> Option<usize> {
        let tail = bytes.len().min(MAGIC - 1);
        (bytes.len() - tail..bytes.len()).find(|at| self.could_begin(&bytes[*at..]))
    }

    pub(crate) fn encode(&self, vpi: Vpi, offset: u64, secret: &Secret) -> [u8; MARK] {
        let mut mark = [0; MARK];
        for (to, word) in mark.chunks_exact_mut(8).zip(self.words(vpi, offset, secret)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        mark
    }

    /// Whether `bytes` are the mark of that offset.
    pub(crate) fn stands_in(&self, bytes: &[u8; MARK], vpi: Vpi, offset: u64, secret: &Secret) -> bool {
        self.words(vpi, offset, secret).iter().enumerate().all(|(at, word)| *word == word_of(bytes, at * 8))
    }

    fn words(&self, vpi: Vpi, offset: u64, secret: &Secret) -> [u64; 3] {
        let name = u64::from(vpi.slot) | u64::from(vpi.generation) << 16 | offset << 32;
        [u64::from_le_bytes(self.bytes), name, tag(secret, offset)]
    }
}

/// What [`Magic::find`] saw first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sighting {
    Nothing,
    /// A whole mark at this position.
    Mark(usize, Mark),
    /// The bytes end with what may be the beginning of a mark.
    Begun(usize),
}

impl Mark {
    /// `bytes` are [`MARK`] bytes that begin with the magic.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let name = word_of(bytes, 8);
        Self {
            vpi: Vpi { slot: name as u16, generation: (name >> 16) as u16 },
            offset_low: (name >> 32) as u32,
            tag: word_of(bytes, 16),
        }
    }

    /// Whether the anchor with this secret wrote the mark for `offset`.
    pub(crate) fn is_genuine(&self, secret: &Secret, offset: u64) -> bool {
        self.offset_low == offset as u32 && self.tag == tag(secret, offset)
    }
}

fn word_of(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

/// A keyed tag over the offset: a folded 128-bit product, with both factors secret. Nobody outside the process ever
/// sees a mark, so there is nothing to learn the secret from.
fn tag(secret: &Secret, offset: u64) -> u64 {
    if cfg!(feature = "test-guessable-key") {
        return offset;
    }
    let product = u128::from(offset ^ secret[0]) * u128::from(offset.rotate_left(32) ^ secret[1] | 1);
    (product as u64) ^ ((product >> 64) as u64) ^ secret[0]
}

/// Positions of marks in a segment of `len` bytes, from position `from` on.
pub(crate) fn positions(from: usize, len: usize) -> impl Iterator<Item = usize> + Clone {
    (from.next_multiple_of(STRIDE)..len.saturating_sub(MARK - 1)).step_by(STRIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VPI: Vpi = Vpi { slot: 7, generation: 9 };
    const SECRET: Secret = [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321];

    #[test]
    fn a_mark_is_found_wherever_it_stands_and_says_what_was_written() {
        let magic = Magic::new(0xa5a5_0102_0304_0506);
        for at in 0..100 {
            let mut bytes = vec![0u8; 200];
            bytes[at..at + MARK].copy_from_slice(&magic.encode(VPI, 5_000_000_123, &SECRET));
            let Sighting::Mark(found, mark) = magic.find(&bytes) else { panic!("not found at {at}") };
            assert_eq!((found, mark.vpi), (at, VPI));
            assert!(mark.is_genuine(&SECRET, 5_000_000_123));
            assert!(!mark.is_genuine(&SECRET, 5_000_000_124));
        }
    }

    #[test]
    #[cfg(not(feature = "test-guessable-key"))]
    fn a_mark_of_another_anchor_or_place_is_not_genuine() {
        let magic = Magic::new(1);
        let bytes = magic.encode(VPI, 512, &SECRET);
        let mark = Mark::decode(&bytes);
        assert!(!mark.is_genuine(&[SECRET[0], SECRET[1] ^ 2], 512));
        assert!(!mark.is_genuine(&[SECRET[0] ^ 1, SECRET[1]], 512));
        assert!(!mark.is_genuine(&SECRET, 512 + (1 << 32)));
    }

    #[test]
    fn the_beginning_of_a_mark_at_the_end_is_noticed_at_every_length() {
        let magic = Magic::new(0xa5a5_0102_0304_0506);
        let mark = magic.encode(VPI, 0, &SECRET);
        for have in 1..MARK {
            let mut bytes = vec![0u8; 50];
            bytes.extend_from_slice(&mark[..have]);
            assert_eq!(magic.find(&bytes), Sighting::Begun(50), "{have} bytes");
        }
        assert_eq!(magic.find(&[0; 64]), Sighting::Nothing);
    }

    #[test]
    fn marks_stand_at_the_stride_and_never_reach_over_the_end() {
        assert_eq!(positions(0, MARK - 1).count(), 0);
        assert_eq!(positions(0, MARK).collect::<Vec<_>>(), [0]);
        assert_eq!(positions(1, STRIDE + MARK).collect::<Vec<_>>(), [STRIDE]);
        assert_eq!(positions(0, 2 * STRIDE + MARK - 1).collect::<Vec<_>>(), [0, STRIDE]);
    }
}
