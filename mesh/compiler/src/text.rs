//! Comparisons of text with literals, as words of eight bytes.

use std::fmt::Write;

/// Text of the head in C: where it begins, and how long it is.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) at: String,
    pub(crate) len: String,
}

impl Span {
    /// A `struct ud_span`.
    pub(crate) fn of(field: &str) -> Self {
        Self { at: format!("h->{field}.at"), len: format!("h->{field}.len") }
    }

    pub(crate) fn exact(&self, literal: &str, fold: bool) -> String {
        format!("({} == {} && {})", self.len, literal.len(), equals(&self.at, literal, fold))
    }

    pub(crate) fn prefix(&self, literal: &str, fold: bool) -> String {
        if literal.is_empty() {
            return "1".into();
        }
        format!("({} >= {} && {})", self.len, literal.len(), equals(&self.at, literal, fold))
    }

    pub(crate) fn suffix(&self, literal: &str, fold: bool) -> String {
        if literal.is_empty() {
            return "1".into();
        }
        let at = format!("{} + {} - {}", self.at, self.len, literal.len());
        format!("({} >= {} && {})", self.len, literal.len(), equals(&at, literal, fold))
    }
}

/// Whether the bytes at `at` are the literal. The caller knows that there are enough.
pub(crate) fn equals(at: &str, literal: &str, fold: bool) -> String {
    let mut parts = Vec::new();
    for (index, chunk) in literal.as_bytes().chunks(8).enumerate() {
        let (mut value, mut folded, mut mask) = (0u64, 0u64, 0u64);
        for (shift, byte) in chunk.iter().enumerate() {
            let letter = fold && byte.is_ascii_alphabetic();
            let byte = if letter { byte.to_ascii_lowercase() } else { *byte };
            value |= u64::from(byte) << (8 * shift);
            mask |= 0xff << (8 * shift);
            folded |= if letter { 0x20 << (8 * shift) } else { 0 };
        }
        let mut word = format!("word(h, {at} + {})", index * 8);
        if folded != 0 {
            word = format!("({word} | {folded:#x}ULL)");
        }
        if mask != u64::MAX {
            word = format!("({word} & {mask:#x}ULL)");
        }
        parts.push(format!("{word} == {value:#x}ULL"));
    }
    if parts.is_empty() { "1".into() } else { parts.join(" && ") }
}

/// Up to eight bytes as the kernel loads them, and the mask of the bytes that count.
pub(crate) fn word(bytes: &[u8]) -> (u64, u64) {
    bytes.iter().rev().fold((0, 0), |(value, mask), byte| (value << 8 | u64::from(*byte), mask << 8 | 0xff))
}

/// A literal of C.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b' '..=b'~' => out.push(char::from(byte)),
            // Three octal digits cannot run on into what follows.
            _ => {
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
    out.push('"');
    out
}

/// Text that may stand in a comment of C.
pub(crate) fn comment(text: &str) -> String {
    text.replace("*/", "* /").replace("/*", "/ *").replace(['\n', '\r', '\\'], " ")
}
