//! Native code for the leaf functions of `leaf.bpf.h`: the same results, faster.

mod scan;

use crate::abi::{WINDOW, ud_cut};
use scan::{Scalar, Scan, len};

/// A function of `leaf.bpf.h`; see there for what each one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaf {
    Word,
    Text,
    Token,
    Digit,
    Number,
    Fields,
}

/// The signature of all leaves in machine code: context and two numbers.
pub(crate) type NativeLeaf = extern "C" fn(&ud_cut, u64, u64) -> u64;

impl Leaf {
    /// The leaf that a function of this name is.
    pub(crate) fn named(name: &[u8]) -> Option<Leaf> {
        Some(match name {
            b"ud_word" => Leaf::Word,
            b"ud_text" => Leaf::Text,
            b"ud_token" => Leaf::Token,
            b"ud_digit" => Leaf::Digit,
            b"ud_number" => Leaf::Number,
            b"ud_fields" => Leaf::Fields,
            _ => return None,
        })
    }

    /// The fastest native code for it on this processor.
    pub(crate) fn native(self) -> NativeLeaf {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            return self.avx2();
        }
        self.scalar()
    }

    fn scalar(self) -> NativeLeaf {
        match self {
            Leaf::Word => word::<Scalar>,
            Leaf::Text => text::<Scalar>,
            Leaf::Token => token::<Scalar>,
            Leaf::Digit => digit,
            Leaf::Number => number,
            Leaf::Fields => fields_scalar,
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2(self) -> NativeLeaf {
        match self {
            Leaf::Word => word::<scan::Avx2>,
            Leaf::Text => text::<scan::Avx2>,
            Leaf::Token => token::<scan::Avx2>,
            Leaf::Digit => digit,
            Leaf::Number => number,
            Leaf::Fields => fields_avx2,
        }
    }
}

/// An index that a program gave, no further than the window's end.
#[inline(always)]
fn index(i: u64) -> usize {
    usize::try_from(i).unwrap_or(WINDOW).min(WINDOW)
}

extern "C" fn word<S: Scan>(cut: &ud_cut, from: u64, _: u64) -> u64 {
    S::word(cut, index(from)) as u64
}

extern "C" fn text<S: Scan>(cut: &ud_cut, from: u64, _: u64) -> u64 {
    S::text(cut, index(from)) as u64
}

extern "C" fn token<S: Scan>(cut: &ud_cut, from: u64, _: u64) -> u64 {
    S::token(cut, index(from)) as u64
}

/// The digit's value, or 255.
#[inline(always)]
fn digit_at(cut: &ud_cut, i: usize) -> u64 {
    let byte = cut.window[..len(cut)].get(i).copied().unwrap_or_default();
    char::from(byte).to_digit(16).map_or(255, u64::from)
}

extern "C" fn digit(cut: &ud_cut, i: u64, _: u64) -> u64 {
    digit_at(cut, index(i))
}

extern "C" fn number(cut: &ud_cut, from: u64, base: u64) -> u64 {
    let most = if base == 16 { 12 } else { 14 };
    let from = index(from).min(len(cut));
    let mut value = 0u64;
    for at in from..=from + most {
        let digit = digit_at(cut, at);
        if digit >= base || digit > 15 {
            return value | (at as u64) << 48;
        }
        value = value.wrapping_mul(base).wrapping_add(digit);
    }
    0
}

/// `enum ud_fields_stop`.
mod stop {
    pub(super) const END: u64 = 0;
    pub(super) const WANTED: u64 = 1;
    pub(super) const PART: u64 = 2;
    pub(super) const VALUE: u64 = 3;
    pub(super) const BROKEN: u64 = 4;
}

#[inline(always)]
fn stopped(line: usize, next: usize, why: u64) -> u64 {
    line as u64 | (next as u64) << 16 | why << 32
}

#[inline(always)]
fn is_wanted(letter: u8, length: usize, wanted: u64) -> bool {
    let pair = u64::from(letter | 0x20) | (length as u64) << 8;
    (wanted & 0xffff == pair)
        | (wanted >> 16 & 0xffff == pair)
        | (wanted >> 32 & 0xffff == pair)
        | (wanted >> 48 == pair)
}

extern "C" fn fields_scalar(cut: &ud_cut, from: u64, wanted: u64) -> u64 {
    fields(cut, from, wanted, |line| Scalar::token(cut, line), |value| Scalar::text(cut, value))
}

#[cfg(target_arch = "x86_64")]
extern "C" fn fields_avx2(cut: &ud_cut, from: u64, wanted: u64) -> u64 {
    #[target_feature(enable = "avx2")]
    fn with_avx2(cut: &ud_cut, from: u64, wanted: u64) -> u64 {
        let mut ends = scan::Ends::default();
        ends.look(cut, index(from));
        fields(cut, from, wanted, |line| ends.token(len(cut), line), |value| ends.text(len(cut), value))
    }
    // SAFETY: chosen only where the processor has AVX2.
    unsafe { with_avx2(cut, from, wanted) }
}

/// `token` and `text` say where the name, and the value, that begins at an index ends.
#[inline(always)]
fn fields(cut: &ud_cut, from: u64, wanted: u64, token: impl Fn(usize) -> usize, text: impl Fn(usize) -> usize) -> u64 {
    let len = len(cut);
    let bytes = &cut.window[..len];
    let mut line = index(from).min(len);
    loop {
        let colon = token(line);
        let Some(&mark) = bytes.get(colon) else { return stopped(line, len, stop::PART) };
        if colon == line {
            return match (mark, bytes.get(line + 1)) {
                (b'\r', None) => stopped(line, len, stop::PART),
                (b'\r', Some(b'\n')) => stopped(line, line + 2, stop::END),
                (b'\r', Some(_)) => stopped(line, line + 2, stop::BROKEN),
                _ => stopped(line, len, stop::BROKEN),
            };
        }
        if mark != b':' {
            return stopped(line, len, stop::BROKEN);
        }
        let end = text(colon + 1);
        let hit = is_wanted(bytes[line], colon - line, wanted);
        match (bytes.get(end), bytes.get(end + 1)) {
            (Some(b'\r'), Some(b'\n')) if hit => return stopped(line, end + 2, stop::WANTED),
            (Some(b'\r'), Some(b'\n')) => line = end + 2,
            (None, _) | (Some(b'\r'), None) => {
                return stopped(line, len, if hit { stop::PART } else { stop::VALUE });
            }
            _ => return stopped(line, len, stop::BROKEN),
        }
    }
}

#[cfg(test)]
mod tests;
