//! Positions in a list of the application's buffers.

use core::mem::MaybeUninit;

use libc::iovec;

/// Most slices that one internal call passes on; a longer list is worked through in several.
pub(crate) const MOST: usize = 64;

/// Bytes in all slices.
pub(crate) fn total(iov: &[iovec]) -> usize {
    iov.iter().fold(0, |sum, slice| sum.saturating_add(slice.iov_len))
}

/// The slices of bytes `from..from + len`: (address, length), none of them empty.
pub(crate) fn pieces(iov: &[iovec], from: usize, len: usize) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
    let mut skip = from;
    let mut left = len;
    iov.iter().filter_map(move |slice| {
        let skipped = skip.min(slice.iov_len);
        skip -= skipped;
        let taken = (slice.iov_len - skipped).min(left);
        left -= taken;
        // `wrapping_add`: the address of an empty slice may be anything.
        (taken > 0).then(|| (slice.iov_base.cast::<u8>().wrapping_add(skipped), taken))
    })
}

/// Whether byte `at` is the first of a slice.
pub(crate) fn begins_slice(iov: &[iovec], mut at: usize) -> bool {
    for slice in iov {
        if at < slice.iov_len {
            break;
        }
        at -= slice.iov_len;
    }
    at == 0
}

/// A part of a list, to be handed to the kernel.
#[expect(clippy::large_enum_variant, reason = "lives on the stack of one call, and a heap is too slow there")]
pub(crate) enum Part<'a> {
    /// All of the application's list.
    All(&'a [iovec], usize),
    Some(Slices),
}

/// Slices of a part that does not begin or end where the application's do.
pub(crate) struct Slices {
    slices: [MaybeUninit<iovec>; MOST],
    count: usize,
    bytes: usize,
}

impl<'a> Part<'a> {
    /// Bytes `from..from + len` of `iov`, which has `size` bytes in all.
    #[inline]
    pub(crate) fn new(iov: &'a [iovec], size: usize, from: usize, len: usize) -> Self {
        if from == 0 && len >= size && iov.len() <= MOST {
            Self::All(iov, size)
        } else {
            Self::Some(Slices::new(iov, from, len))
        }
    }

    #[inline]
    pub(crate) fn slices(&self) -> &[iovec] {
        match self {
            Self::All(iov, _) => iov,
            // SAFETY: the first `count` are initialised.
            Self::Some(some) => unsafe { core::slice::from_raw_parts(some.slices.as_ptr().cast(), some.count) },
        }
    }

    /// Bytes in the part; less than was asked for when the list has too many slices.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::All(_, size) => *size,
            Self::Some(some) => some.bytes,
        }
    }
}

impl Slices {
    fn new(iov: &[iovec], from: usize, len: usize) -> Self {
        let mut part = Self { slices: [const { MaybeUninit::uninit() }; MOST], count: 0, bytes: 0 };
        for (address, bytes) in pieces(iov, from, len).take(MOST) {
            part.slices[part.count].write(iovec { iov_base: address.cast(), iov_len: bytes });
            part.count += 1;
            part.bytes += bytes;
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_begins_and_ends_anywhere() {
        let mut a = *b"abc";
        let mut b = *b"defgh";
        let iov = [
            iovec { iov_base: a.as_mut_ptr().cast(), iov_len: 3 },
            iovec { iov_base: core::ptr::null_mut(), iov_len: 0 },
            iovec { iov_base: b.as_mut_ptr().cast(), iov_len: 5 },
        ];
        for from in 0..8 {
            assert_eq!(begins_slice(&iov, from), from == 0 || from == 3);
            for len in 0..=8 - from {
                let mut seen = Vec::new();
                for (address, bytes) in pieces(&iov, from, len) {
                    // SAFETY: within `a` or `b`.
                    seen.extend_from_slice(unsafe { core::slice::from_raw_parts(address, bytes) });
                }
                assert_eq!(seen, b"abcdefgh"[from..from + len]);
                let part = Part::new(&iov, 8, from, len);
                assert_eq!((part.bytes(), total(part.slices())), (len, len));
            }
        }
    }
}
