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
        if scan::has_avx2() {
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
            Leaf::Fields => fields::<Scalar>,
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

/// The value of a digit, or 255.
static DIGIT: [u8; 256] = {
    let mut table = [255; 256];
    let mut value = 0;
    while value < 16 {
        let digits = b"0123456789abcdef0123456789ABCDEF";
        table[digits[value] as usize] = value as u8;
        table[digits[16 + value] as usize] = value as u8;
        value += 1;
    }
    table
};

extern "C" fn digit(cut: &ud_cut, i: u64, _: u64) -> u64 {
    u64::from(cut.window[..len(cut)].get(index(i)).map_or(255, |&byte| DIGIT[usize::from(byte)]))
}

extern "C" fn number(cut: &ud_cut, from: u64, base: u64) -> u64 {
    let most = if base == 16 { 12 } else { 14 };
    let from = index(from).min(len(cut));
    let bytes = &cut.window[from..len(cut)];
    let beyond = base.min(16);
    let (mut value, mut digits) = (0u64, 0);
    while let Some(&byte) = bytes.get(digits) {
        let digit = u64::from(DIGIT[usize::from(byte)]);
        if digit >= beyond {
            break;
        }
        value = value.wrapping_mul(base).wrapping_add(digit);
        digits += 1;
        if digits > most {
            return 0;
        }
    }
    value | ((from + digits) as u64) << 48
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

#[cfg(target_arch = "x86_64")]
extern "C" fn fields_avx2(cut: &ud_cut, from: u64, wanted: u64) -> u64 {
    let bytes = &cut.window[..len(cut)];
    let from = index(from).min(bytes.len());
    // SAFETY: chosen only where the processor has what it needs.
    let scan::Line { start, name, end } = unsafe { scan::notable_line(cut, from, scan::Lengths::new(wanted)) };
    if name == 0 {
        return match bytes.get(start..start + 2) {
            Some(b"\r\n") => stopped(start, start + 2, stop::END),
            _ => hard_fields(cut, start as u64, wanted),
        };
    }
    let is_whole = bytes.get(end..end + 2) == Some(b"\r\n");
    let hit = is_wanted(bytes[start], name, wanted);
    if is_whole && !hit {
        return further_fields(cut, end as u64 + 2, wanted);
    }
    last_of(bytes, start, end, hit)
}

/// After a line whose name is only as long as one that is wanted. Apart, so that no loop is made of it that has much to
/// prepare.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
fn further_fields(cut: &ud_cut, from: u64, wanted: u64) -> u64 {
    fields_avx2(cut, from, wanted)
}

/// Where one step does not show the name.
#[cfg(target_arch = "x86_64")]
#[cold]
#[inline(never)]
fn hard_fields(cut: &ud_cut, from: u64, wanted: u64) -> u64 {
    fields::<scan::Avx2>(cut, from, wanted)
}

extern "C" fn fields<S: Scan>(cut: &ud_cut, from: u64, wanted: u64) -> u64 {
    let len = len(cut);
    let bytes = &cut.window[..len];
    let mut line = index(from).min(len);
    loop {
        let colon = S::token(cut, line);
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
        let end = S::text(cut, colon + 1);
        let hit = is_wanted(bytes[line], colon - line, wanted);
        let is_whole = bytes.get(end..end + 2) == Some(b"\r\n");
        if !is_whole || hit {
            return last_of(bytes, line, end, hit);
        }
        line = end + 2;
    }
}

/// What is said of the line whose value ends at `end`, or goes on beyond the `bytes`: it is wanted, or not just another field.
#[inline(always)]
fn last_of(bytes: &[u8], line: usize, end: usize, hit: bool) -> u64 {
    match bytes.get(end..).unwrap_or_default() {
        [b'\r', b'\n', ..] => stopped(line, end + 2, stop::WANTED),
        [] | [b'\r'] => stopped(line, bytes.len(), if hit { stop::PART } else { stop::VALUE }),
        _ => stopped(line, bytes.len(), stop::BROKEN),
    }
}

#[cfg(test)]
mod tests;
