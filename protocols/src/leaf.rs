//! Native code for the leaf functions of `leaf.bpf.h`: the same results, faster.

use crate::abi::{WINDOW, ud_cut};

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
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Leaf; 6] = [Leaf::Word, Leaf::Text, Leaf::Token, Leaf::Digit, Leaf::Number, Leaf::Fields];

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

    /// Its native code.
    pub(crate) fn native(self) -> NativeLeaf {
        match self {
            Leaf::Word => word,
            Leaf::Text => text,
            Leaf::Token => token,
            Leaf::Digit => digit,
            Leaf::Number => number,
            Leaf::Fields => fields,
        }
    }

    /// Calls its native code.
    pub(crate) fn call(self, cut: &ud_cut, a: u64, b: u64) -> u64 {
        self.native()(cut, a, b)
    }
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
        if byte >= 0x21 && byte <= 0x7e {
            table[b] |= WORD;
        }
        if byte == b'\t' || (byte >= 0x20 && byte != 0x7f) {
            table[b] |= TEXT;
        }
        if byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
        {
            table[b] |= TOKEN;
        }
        b += 1;
    }
    table
};

/// The valid bytes of the window.
fn valid(cut: &ud_cut) -> &[u8] {
    &cut.window[..(cut.len as usize).min(WINDOW)]
}

/// The first index >= from, < len, whose byte is not of `class`; else len.
#[inline]
fn first_not(bytes: &[u8], from: u64, class: u8) -> usize {
    let from = usize::try_from(from).unwrap_or(WINDOW).min(bytes.len());
    let rest = &bytes[from..];
    from + rest.iter().position(|&b| CLASS[usize::from(b)] & class == 0).unwrap_or(rest.len())
}

extern "C" fn word(cut: &ud_cut, from: u64, _: u64) -> u64 {
    first_not(valid(cut), from, WORD) as u64
}

extern "C" fn text(cut: &ud_cut, from: u64, _: u64) -> u64 {
    first_not(valid(cut), from, TEXT) as u64
}

extern "C" fn token(cut: &ud_cut, from: u64, _: u64) -> u64 {
    first_not(valid(cut), from, TOKEN) as u64
}

fn digit_at(bytes: &[u8], i: u64) -> u64 {
    let byte = usize::try_from(i).ok().and_then(|i| bytes.get(i)).copied().unwrap_or_default();
    char::from(byte).to_digit(16).map_or(255, u64::from)
}

extern "C" fn digit(cut: &ud_cut, i: u64, _: u64) -> u64 {
    digit_at(valid(cut), i)
}

extern "C" fn number(cut: &ud_cut, from: u64, base: u64) -> u64 {
    let bytes = valid(cut);
    let most = if base == 16 { 12 } else { 14 };
    let mut at = from.min(bytes.len() as u64);
    let (mut value, mut digits) = (0u64, 0);
    loop {
        let digit = digit_at(bytes, at);
        if digit >= base || digit > 15 {
            return value | at << 48;
        }
        if digits == most {
            return 0;
        }
        value = value.wrapping_mul(base).wrapping_add(digit);
        at += 1;
        digits += 1;
    }
}

const END: u64 = 0;
const WANTED: u64 = 1;
const PART: u64 = 2;
const VALUE: u64 = 3;
const BROKEN: u64 = 4;

fn stop(line: usize, next: usize, why: u64) -> u64 {
    line as u64 | (next as u64) << 16 | why << 32
}

fn is_wanted(letter: u8, length: usize, wanted: u64) -> bool {
    let pair = u64::from(letter | 0x20) | (length as u64) << 8;
    (0..4).any(|i| wanted >> (16 * i) & 0xffff == pair)
}

extern "C" fn fields(cut: &ud_cut, from: u64, wanted: u64) -> u64 {
    let bytes = valid(cut);
    let len = bytes.len();
    let mut line = usize::try_from(from).unwrap_or(WINDOW).min(len);
    loop {
        let colon = first_not(bytes, line as u64, TOKEN);
        if colon >= len {
            return stop(line, len, PART);
        }
        if colon == line {
            return match (bytes[line], bytes.get(line + 1)) {
                (b'\r', None) => stop(line, len, PART),
                (b'\r', Some(b'\n')) => stop(line, line + 2, END),
                (b'\r', Some(_)) => stop(line, line + 2, BROKEN),
                _ => stop(line, len, BROKEN),
            };
        }
        if bytes[colon] != b':' {
            return stop(line, len, BROKEN);
        }
        let hit = is_wanted(bytes[line], colon - line, wanted);
        let end = first_not(bytes, colon as u64 + 1, TEXT);
        match (bytes.get(end), bytes.get(end + 1)) {
            (None, _) | (Some(b'\r'), None) => return stop(line, len, if hit { PART } else { VALUE }),
            (Some(b'\r'), Some(b'\n')) if hit => return stop(line, end + 2, WANTED),
            (Some(b'\r'), Some(b'\n')) => line = end + 2,
            _ => return stop(line, len, BROKEN),
        }
    }
}
