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
pub(super) use avx2::{Avx2, first_other_line, has_avx2};

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::super::is_wanted;
    use super::{CLASS, Scan, TOKEN, len};
    use crate::abi::{WINDOW, ud_cut};

    /// Whether the processor has AVX2, and the operations on bits that are as old (Haswell, Zen).
    pub(in super::super) fn has_avx2() -> bool {
        std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
            && std::arch::is_x86_feature_detected!("lzcnt")
    }

    /// 32 bytes at a time. Only to be used where [`has_avx2`].
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

    /// One bit per byte of a block: what a walk over many lines needs to know of each.
    struct Bytes {
        token: u64,
        colon: u64,
        cr: u64,
        lf: u64,
        /// Control characters other than tab; CR and LF too.
        control: u64,
    }

    /// Bytes of one step of [`first_other_line`].
    const BLOCK: usize = u64::BITS as usize;
    const _: () = assert!(WINDOW.is_multiple_of(BLOCK));

    impl Bytes {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn of(block: &[u8; BLOCK]) -> Self {
            // SAFETY: both halves are inside of the block.
            let (low, high) = unsafe {
                (_mm256_loadu_si256(block.as_ptr().cast()), _mm256_loadu_si256(block.as_ptr().add(STEP).cast()))
            };
            let mask = |low, high| {
                u64::from(_mm256_movemask_epi8(low) as u32) | u64::from(_mm256_movemask_epi8(high) as u32) << 32
            };
            let is = |byte: u8| {
                let byte = _mm256_set1_epi8(byte as i8);
                mask(_mm256_cmpeq_epi8(low, byte), _mm256_cmpeq_epi8(high, byte))
            };
            Self {
                token: !mask(outside_token(low), outside_token(high)),
                colon: is(b':'),
                cr: is(b'\r'),
                lf: is(b'\n'),
                control: mask(outside_text(low), outside_text(high)),
            }
        }
    }

    /// The first line from `line` on (the beginning of one, at most `len`) that may be anything but a whole field line
    /// whose name is not one of `wanted` (of less than 64 letters each), without a branch for each line.
    ///
    /// Bit n of a mask is byte n of a block. Lines begin after CR LF; adding their first bits to the mask of token
    /// characters carries through each name to the byte that ends it.
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    pub(in super::super) fn first_other_line(cut: &ud_cut, mut line: usize, wanted: u64) -> usize {
        let len = len(cut);
        let lengths = Lengths::new(wanted);
        let (mut block, first) = (line / BLOCK * BLOCK, line % BLOCK);
        // Of the bytes before: those of other lines do not count; a line begins, a CR stands, a name goes on at bit 0.
        let (mut valid, mut begins, mut after_cr, mut name_goes_on) = (u64::MAX << first, 1 << first, 0, 0);
        let mut starts_before = 0;
        while block < len
            && let Some(bytes) = cut.window[block..].first_chunk()
        {
            if len - block < BLOCK {
                valid &= (1 << (len - block)) - 1;
            }
            let bytes = Bytes::of(bytes);
            let (cr, lf, token) = (bytes.cr & valid, bytes.lf & valid, bytes.token & valid);
            let follows_cr = cr << 1 | after_cr;
            let line_ends = follows_cr & lf;
            let starts = line_ends << 1 | begins;
            let (sum, goes_on) = token.overflowing_add(starts & token | name_goes_on);
            let name_ends = sum & !token;
            let mut others =
                (bytes.control & !(cr | lf) | (follows_cr ^ lf) | name_ends & !bytes.colon | starts & !token) & valid;
            if lengths.are_among(name_ends, starts, starts_before) {
                let mut ends = name_ends;
                while ends != 0 {
                    let (end, before) = (ends.trailing_zeros() as usize, starts & ((ends & ends.wrapping_neg()) - 1));
                    let start = if before == 0 { line } else { block + (BLOCK - 1) - before.leading_zeros() as usize };
                    if is_wanted(cut.window[start], block + end - start, wanted) {
                        others |= ends & ends.wrapping_neg();
                    }
                    ends &= ends - 1;
                }
            }
            let known = if others == 0 { u64::MAX } else { others ^ (others - 1) };
            if starts & known != 0 {
                line = block + (BLOCK - 1) - (starts & known).leading_zeros() as usize;
            }
            if others != 0 {
                return line;
            }
            (valid, begins, after_cr, name_goes_on) = (u64::MAX, line_ends >> 63, cr >> 63, u64::from(goes_on));
            starts_before = starts;
            block += BLOCK;
        }
        if begins == 1 { block } else { line }
    }

    /// The lengths of the names that a program wants to see, less than a block each.
    struct Lengths {
        lengths: __m256i,
        /// What a block and they differ by, less one.
        rests: __m256i,
    }

    impl Lengths {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn new(wanted: u64) -> Self {
            let [first, second, third, fourth] = [8, 24, 40, 56].map(|shift| (wanted >> shift & 0xff) as i64);
            let lengths = _mm256_set_epi64x(fourth, third, second, first);
            Self { lengths, rests: _mm256_sub_epi64(_mm256_set1_epi64x(BLOCK as i64 - 1), lengths) }
        }

        /// Whether a name that begins in this block, or in the one before, may end after so many bytes.
        #[inline]
        #[target_feature(enable = "avx2")]
        fn are_among(&self, name_ends: u64, starts: u64, starts_before: u64) -> bool {
            let here = _mm256_sllv_epi64(_mm256_set1_epi64x(starts.cast_signed()), self.lengths);
            let before = _mm256_srlv_epi64(_mm256_set1_epi64x((starts_before >> 1).cast_signed()), self.rests);
            let ends = _mm256_set1_epi64x(name_ends.cast_signed());
            _mm256_testz_si256(_mm256_or_si256(here, before), ends) == 0
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
