//! Bodies whose every byte is known from a seed and an offset, so that a wrong byte is located and not only noticed.

use sha2::{Digest, Sha256};

const WORD: u64 = 8;

/// The eight bytes of the content of `seed` that begin at `index * 8` (splitmix64).
fn word(seed: u64, index: u64) -> [u8; 8] {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Writes the content of `seed` from byte `offset` on into `into`.
pub fn fill(seed: u64, offset: u64, into: &mut [u8]) {
    let mut index = offset / WORD;
    let skip = (offset % WORD) as usize;
    let mut rest = into;
    if skip > 0 {
        let n = rest.len().min(8 - skip);
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(&word(seed, index)[skip..skip + n]);
        rest = tail;
        index += 1;
    }
    for piece in rest.chunks_mut(8) {
        let n = piece.len();
        piece.copy_from_slice(&word(seed, index)[..n]);
        index += 1;
    }
}

/// `len` bytes of the content of `seed` from byte `offset` on.
pub fn bytes(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut all = vec![0; len];
    fill(seed, offset, &mut all);
    all
}

/// Compares a stream with the content of a seed while it arrives.
#[derive(Clone)]
pub struct Checker {
    seed: u64,
    start: u64,
    len: u64,
    first_wrong: Option<u64>,
    sha: Sha256,
    scratch: Vec<u8>,
}

/// What a [`Checker`] saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Bytes seen.
    pub len: u64,
    /// Position, from the start of the stream, of the first byte that is not the content's. None: all right.
    pub first_wrong: Option<u64>,
    /// SHA-256 of all bytes, in hexadecimal.
    pub sha256: String,
}

impl Checker {
    /// Expects the content of `seed` from byte `start` on.
    pub fn new(seed: u64, start: u64) -> Self {
        Self { seed, start, len: 0, first_wrong: None, sha: Sha256::new(), scratch: Vec::new() }
    }

    /// Takes the next bytes of the stream.
    pub fn update(&mut self, data: &[u8]) {
        self.sha.update(data);
        if self.first_wrong.is_none() {
            self.scratch.resize(data.len(), 0);
            fill(self.seed, self.start + self.len, &mut self.scratch);
            if self.scratch != data {
                let at = self.scratch.iter().zip(data).position(|(a, b)| a != b).unwrap_or(0);
                self.first_wrong = Some(self.len + at as u64);
            }
        }
        self.len += data.len() as u64;
    }

    /// The verdict on what was taken so far.
    pub fn finish(&self) -> Checked {
        let sha256 = self.sha.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Checked { len: self.len, first_wrong: self.first_wrong, sha256 }
    }
}

/// A small deterministic generator for randomised tests: splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        u64::from_le_bytes(word(self.0, 0))
    }

    /// A number in `0..below`; `below` must not be 0.
    pub fn below(&mut self, below: u64) -> u64 {
        self.next_u64() % below
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One element of `of`, which must not be empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_the_same_from_every_offset() {
        let whole = bytes(7, 0, 100);
        for offset in 0..40 {
            for len in 0..40 {
                assert_eq!(bytes(7, offset as u64, len), whole[offset..offset + len]);
            }
        }
        assert_ne!(whole, bytes(8, 0, 100));
    }

    #[test]
    fn a_wrong_byte_is_located() {
        let mut data = bytes(3, 1000, 5000);
        data[4321] ^= 1;
        let mut checker = Checker::new(3, 1000);
        for piece in data.chunks(77) {
            checker.update(piece);
        }
        assert_eq!(checker.finish().first_wrong, Some(4321));
        assert_eq!(checker.finish().len, 5000);
    }
}
