//! Finds the first byte that is not of a class: table by table, or 32 bytes at a time.

use crate::abi::{WINDOW, ud_cut};

/// Finds ends of words, text and tokens. All take any `from` and return at most the number of valid bytes.
pub(super) trait Scan {
    /// The first byte that is not visible ASCII.
    fn word(cut: &ud_cut, from: usize) -> usize;
    /// The first control character other than tab.
    fn text(cut: &ud_cut, from: usize) -> usize;
    /// The first byte that is no token character (RFC 9110, section 5.6.2).
    fn token(cut: &ud_cut, from: usize) -> usize;
}

/// How many bytes of the window are valid.
#[inline(always)]
pub(super) fn len(cut: &ud_cut) -> usize {
    (cut.len as usize).min(WINDOW)
}

const WORD: u8 = 1;
const TEXT: u8 = 2;
const TOKEN: u8 = 4;

/// Which of the three classes a byte is in.
static CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut b = 0;
    while b < 256 {
        let byte = b as u8;
        let is_token = byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~');
        table[b] = if byte >= 0x21 && byte <= 0x7e { WORD } else { 0 }
            | if byte == b'\t' || (byte >= 0x20 && byte != 0x7f) { TEXT } else { 0 }
            | if is_token { TOKEN } else { 0 };
        b += 1;
    }
    table
};

/// One byte at a time, on any machine.
pub(super) struct Scalar;

fn first_not(cut: &ud_cut, from: usize, class: u8) -> usize {
    let len = len(cut);
    let rest = cut.window.get(from..len).unwrap_or_default();
    rest.iter().position(|&b| CLASS[usize::from(b)] & class == 0).map_or(len, |at| from + at)
}

impl Scan for Scalar {
    fn word(cut: &ud_cut, from: usize) -> usize {
        first_not(cut, from, WORD)
    }

    fn text(cut: &ud_cut, from: usize) -> usize {
        first_not(cut, from, TEXT)
    }

    fn token(cut: &ud_cut, from: usize) -> usize {
        first_not(cut, from, TOKEN)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::{Avx2, Ends};

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{CLASS, Scan, TOKEN, len};
    use crate::abi::{WINDOW, ud_cut};

    /// 32 bytes at a time. Only to be used where the processor has AVX2.
    pub(in super::super) struct Avx2;

    /// Bytes of one step. A step that begins near the end of the window reads into what follows it in the context.
    const STEP: usize = 32;
    const _: () = assert!(size_of::<ud_cut>() >= WINDOW + STEP);

    /// By the low four bits of a byte: bit h is set if the byte with the high four bits h is a token character.
    static TOKENS: [u8; STEP] = {
        let mut table = [0; STEP];
        let mut b = 0;
        while b < 128 {
            if CLASS[b] & TOKEN != 0 {
                table[b & 15] |= 1 << (b >> 4);
                table[16 + (b & 15)] |= 1 << (b >> 4);
            }
            b += 1;
        }
        table
    };

    #[inline]
    #[target_feature(enable = "avx2")]
    fn scan(cut: &ud_cut, from: usize, outside: impl Fn(__m256i) -> __m256i) -> usize {
        let len = len(cut);
        let mut at = from;
        while at < len {
            // SAFETY: at < len <= WINDOW, so the step ends inside of `cut` (asserted above).
            let bytes = unsafe { _mm256_loadu_si256(std::ptr::from_ref(cut).cast::<u8>().add(at).cast()) };
            let found = _mm256_movemask_epi8(outside(bytes)) as u32;
            if found != 0 {
                return (at + found.trailing_zeros() as usize).min(len);
            }
            at += STEP;
        }
        len
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn word(cut: &ud_cut, from: usize) -> usize {
        scan(cut, from, |b| {
            // Bytes from 0x80 on are negative.
            let low = _mm256_cmpgt_epi8(_mm256_set1_epi8(0x21), b);
            _mm256_or_si256(low, _mm256_cmpeq_epi8(b, _mm256_set1_epi8(0x7f)))
        })
    }

    /// All ones where a byte is a control character other than tab.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn outside_text(b: __m256i) -> __m256i {
        let low = _mm256_cmpeq_epi8(_mm256_min_epu8(b, _mm256_set1_epi8(0x1f)), b);
        let low = _mm256_andnot_si256(_mm256_cmpeq_epi8(b, _mm256_set1_epi8(b'\t' as i8)), low);
        _mm256_or_si256(low, _mm256_cmpeq_epi8(b, _mm256_set1_epi8(0x7f)))
    }

    /// All ones where a byte is no token character.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn outside_token(b: __m256i) -> __m256i {
        // SAFETY: the table has the 32 bytes that are read.
        let table = unsafe { _mm256_loadu_si256(TOKENS.as_ptr().cast()) };
        // By the high four bits of a byte: its bit in the table; none from 8 on.
        let bits = _mm256_set_epi64x(0, 0x8040_2010_0804_0201_u64 as i64, 0, 0x8040_2010_0804_0201_u64 as i64);
        let nibble = _mm256_set1_epi8(15);
        let high = _mm256_and_si256(_mm256_srli_epi16(b, 4), nibble);
        let low = _mm256_and_si256(b, nibble);
        let hit = _mm256_and_si256(_mm256_shuffle_epi8(table, low), _mm256_shuffle_epi8(bits, high));
        _mm256_cmpeq_epi8(hit, _mm256_setzero_si256())
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn text(cut: &ud_cut, from: usize) -> usize {
        scan(cut, from, |b| outside_text(b))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn token(cut: &ud_cut, from: usize) -> usize {
        scan(cut, from, |b| outside_token(b))
    }

    /// Where names and values of the window end, one bit per byte: what a walk over many lines needs at once.
    #[derive(Default)]
    pub(in super::super) struct Ends {
        not_token: [u64; WINDOW / 64],
        not_text: [u64; WINDOW / 64],
    }

    impl Ends {
        /// Looks at the bytes from `from` on; whatever is asked about those before is not answered.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) fn look(&mut self, cut: &ud_cut, from: usize) {
            for block in from / 64..len(cut).div_ceil(64) {
                let Some(bytes) = cut.window.get(block * 64..block * 64 + 64) else { return };
                // SAFETY: both halves are inside of the 64 bytes.
                let (low, high) = unsafe {
                    (_mm256_loadu_si256(bytes.as_ptr().cast()), _mm256_loadu_si256(bytes.as_ptr().add(STEP).cast()))
                };
                self.not_token[block] = mask(outside_token(low), outside_token(high));
                self.not_text[block] = mask(outside_text(low), outside_text(high));
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn mask(low: __m256i, high: __m256i) -> u64 {
        u64::from(_mm256_movemask_epi8(low) as u32) | u64::from(_mm256_movemask_epi8(high) as u32) << 32
    }

    /// The first bit from `from` on that is set; the window's end if there is none.
    #[inline(always)]
    fn next(masks: &[u64; WINDOW / 64], from: usize) -> usize {
        let Some(first) = masks.get(from / 64) else { return WINDOW };
        let found = first >> (from % 64);
        if found != 0 {
            return from + found.trailing_zeros() as usize;
        }
        for (block, mask) in masks.iter().enumerate().skip(from / 64 + 1) {
            if *mask != 0 {
                return block * 64 + mask.trailing_zeros() as usize;
            }
        }
        WINDOW
    }

    impl Ends {
        #[inline(always)]
        pub(in super::super) fn token(&self, len: usize, from: usize) -> usize {
            next(&self.not_token, from).min(len)
        }

        #[inline(always)]
        pub(in super::super) fn text(&self, len: usize, from: usize) -> usize {
            next(&self.not_text, from).min(len)
        }
    }

    impl Scan for Avx2 {
        #[inline(always)]
        fn word(cut: &ud_cut, from: usize) -> usize {
            // SAFETY: whoever uses this type has found AVX2.
            unsafe { word(cut, from) }
        }

        #[inline(always)]
        fn text(cut: &ud_cut, from: usize) -> usize {
            // SAFETY: as above.
            unsafe { text(cut, from) }
        }

        #[inline(always)]
        fn token(cut: &ud_cut, from: usize) -> usize {
            // SAFETY: as above.
            unsafe { token(cut, from) }
        }
    }
}
