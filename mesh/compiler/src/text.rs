//! Comparisons of text with literals, as words of eight bytes.

use std::fmt::Write;

use crate::abi;

/// Text of the head in C: where it begins, and how long it is.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) at: String,
    pub(crate) len: String,
    /// Its first words are in `path_words`.
    at_hand: bool,
}

impl Span {
    /// A `struct ud_span`.
    pub(crate) fn of(field: &str) -> Self {
        Self { at: format!("h->{field}.at"), len: format!("h->{field}.len"), at_hand: field == "path" }
    }

    pub(crate) fn exact(&self, literal: &str, fold: bool) -> String {
        format!("({} == {} && {})", self.len, literal.len(), self.begins(literal, fold))
    }

    pub(crate) fn prefix(&self, literal: &str, fold: bool) -> String {
        if literal.is_empty() {
            return "1".into();
        }
        format!("({} >= {} && {})", self.len, literal.len(), self.begins(literal, fold))
    }

    pub(crate) fn suffix(&self, literal: &str, fold: bool) -> String {
        if literal.is_empty() {
            return "1".into();
        }
        let at = format!("{} + {} - {}", self.at, self.len, literal.len());
        format!("({} >= {} && {})", self.len, literal.len(), equals(&at, literal, fold))
    }

    fn begins(&self, literal: &str, fold: bool) -> String {
        compare(literal, fold, |index| {
            if self.at_hand && index < abi::UD_PATH_WORDS as usize {
                format!("h->path_words[{index}]")
            } else {
                format!("word(h, {} + {})", self.at, index * 8)
            }
        })
    }
}

/// Whether the bytes at `at` are the literal. The caller knows that there are enough.
pub(crate) fn equals(at: &str, literal: &str, fold: bool) -> String {
    compare(literal, fold, |index| format!("word(h, {at} + {})", index * 8))
}

fn compare(literal: &str, fold: bool, load: impl Fn(usize) -> String) -> String {
    let mut parts = Vec::new();
    for (index, chunk) in literal.as_bytes().chunks(8).enumerate() {
        let is_letter = |byte: &u8| fold && byte.is_ascii_alphabetic();
        let lower: Vec<u8> = chunk.iter().map(|b| if is_letter(b) { b.to_ascii_lowercase() } else { *b }).collect();
        let bits: Vec<u8> = chunk.iter().map(|b| if is_letter(b) { 0x20 } else { 0 }).collect();
        let ((value, mask), (folded, _)) = (word(&lower), word(&bits));
        let mut text = load(index);
        if folded != 0 {
            text = format!("({text} | {folded:#x}ULL)");
        }
        if mask != u64::MAX {
            text = format!("({text} & {mask:#x}ULL)");
        }
        parts.push(format!("{text} == {value:#x}ULL"));
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
