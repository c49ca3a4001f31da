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

/// A line of which more is to be known.
pub(super) struct Line {
    pub(super) start: usize,
    /// Bytes of its name, a token with a colon behind it; 0 if no such thing was seen.
    pub(super) name: usize,
    /// Where its value ends; nothing valid may be there.
    pub(super) end: usize,
}

/// The lengths of names that are looked at more closely: bit n for n, and for n + 64.
#[derive(Clone, Copy)]
pub(super) struct Lengths(u64);

impl Lengths {
    /// Those that a program wants, and 0.
    #[inline(always)]
    pub(super) fn new(wanted: u64) -> Self {
        Self([8, 24, 40, 56].into_iter().fold(1, |set, shift| set | 1 << (wanted >> shift & 63)))
    }

    #[inline(always)]
    fn may_have(self, length: usize) -> bool {
        self.0 >> (length & 63) & 1 != 0
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::{Avx2, has_avx2, notable_line};

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{CLASS, Lengths, Line, Scan, TOKEN, len};
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

    /// The bytes of the step at `at`, which is at most [`WINDOW`].
    #[inline]
    #[target_feature(enable = "avx2")]
    fn step_at(cut: &ud_cut, at: usize) -> __m256i {
        debug_assert!(at <= WINDOW);
        // SAFETY: at <= WINDOW, so the step ends inside of `cut` (asserted above), all of which is initialised.
        unsafe { _mm256_loadu_si256(std::ptr::from_ref(cut).cast::<u8>().add(at).cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn scan(cut: &ud_cut, from: usize, outside: impl Fn(__m256i) -> __m256i) -> usize {
        let len = len(cut);
        let mut at = from;
        while at < len {
            let found = _mm256_movemask_epi8(outside(step_at(cut, at))) as u32;
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

    /// By the low four bits of a byte: the one that its being below 0x20 says the wrong thing of. 0xff: none.
    static ODD: [u8; STEP] = {
        let mut table = [0xff; STEP];
        (table[b'\t' as usize], table[16 + b'\t' as usize]) = (b'\t', b'\t');
        (table[0x0f], table[0x1f]) = (0x7f, 0x7f);
        table
    };

    /// All ones where a byte is a control character other than tab.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn outside_text(b: __m256i) -> __m256i {
        // SAFETY: the table has the 32 bytes that are read.
        let table = unsafe { _mm256_loadu_si256(ODD.as_ptr().cast()) };
        let low = _mm256_cmpeq_epi8(_mm256_min_epu8(b, _mm256_set1_epi8(0x1f)), b);
        // Bytes from 0x80 on find 0 in the table, which is not what they are.
        _mm256_xor_si256(low, _mm256_cmpeq_epi8(_mm256_shuffle_epi8(table, b), b))
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
        // A shuffle goes by the low four bits, as long as the highest is clear.
        let hit = _mm256_and_si256(_mm256_shuffle_epi8(table, b), _mm256_shuffle_epi8(bits, high));
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

    /// The first line from `line` on (the beginning of one, at most the number of valid bytes) that is not a whole field
    /// line, or whose name may be one of those that are wanted.
    ///
    /// One step shows the name and, of most lines, the end. What a step shows beyond the valid bytes does no harm: a
    /// name ends with a valid byte, and so does a line that is passed over.
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    pub(in super::super) fn notable_line(cut: &ud_cut, mut line: usize, wanted: Lengths) -> Line {
        let len = len(cut);
        let bytes = &cut.window[..len];
        loop {
            let step = step_at(cut, line);
            let name = (_mm256_movemask_epi8(outside_token(step)) as u32).trailing_zeros() as usize;
            if bytes.get(line + name) != Some(&b':') {
                return Line { start: line, name: 0, end: line };
            }
            let (mut at, mut found) = (line, _mm256_movemask_epi8(outside_text(step)) as u32);
            while found == 0 && at + STEP < len {
                at += STEP;
                found = _mm256_movemask_epi8(outside_text(step_at(cut, at))) as u32;
            }
            let end = at + found.trailing_zeros() as usize;
            if wanted.may_have(name) || bytes.get(end..end + 2) != Some(b"\r\n") {
                return Line { start: line, name, end };
            }
            line = end + 2;
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
