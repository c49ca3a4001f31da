//! HAProxy's words: quotes, backslashes, comments (configuration manual, "Quoting and escaping").

use std::sync::Arc;

use crate::error::AuditError;
use crate::position::Position;

/// One line that is neither empty nor a comment. Environment variables stay as they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) words: Vec<String>,
    pub(super) at: Position,
    /// It stands between `.if` and `.endif`: it may count or not.
    pub(super) conditional: bool,
}

impl Line {
    /// The n-th word, or nothing.
    pub(super) fn word(&self, n: usize) -> &str {
        self.words.get(n).map_or("", String::as_str)
    }

    pub(super) fn display(&self) -> String {
        self.words.join(" ")
    }

    pub(super) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|w| w == word)
    }

    /// The word behind `name`, as in `proto h2`.
    pub(super) fn value_of(&self, name: &str) -> Option<&str> {
        let at = self.words.iter().position(|w| w == name)?;
        self.words.get(at + 1).map(String::as_str)
    }
}

/// All lines of a file, without the conditional directives themselves.
pub(super) fn lines(file: &Arc<str>, text: &str) -> Result<Vec<Line>, AuditError> {
    let mut lines = Vec::new();
    let mut open_ifs: Vec<Position> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line_number = u32::try_from(number + 1).unwrap_or(u32::MAX);
        let at = |col: usize| Position {
            file: file.clone(),
            line: line_number,
            col: u32::try_from(col + 1).unwrap_or(u32::MAX),
        };
        let indent = line.chars().take_while(|c| c.is_whitespace()).count();
        let words = words(line).map_err(|col| AuditError::syntax(&at(col), "the quote is never closed"))?;
        let Some(first) = words.first() else { continue };
        match first.as_str() {
            ".if" => open_ifs.push(at(indent)),
            ".elif" | ".else" | ".endif" if open_ifs.is_empty() => {
                return Err(AuditError::syntax(&at(indent), format!("`{first}` without `.if`")));
            }
            ".endif" => drop(open_ifs.pop()),
            ".elif" | ".else" | ".notice" | ".warning" | ".alert" | ".diag" => {}
            _ => lines.push(Line { words, at: at(indent), conditional: !open_ifs.is_empty() }),
        }
    }
    match open_ifs.first() {
        Some(at) => Err(AuditError::syntax(at, "`.if` without `.endif`")),
        None => Ok(lines),
    }
}

/// Splits a line; the error is the column of a quote that is never closed.
fn words(line: &str) -> Result<Vec<String>, usize> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars().enumerate().peekable();
    while let Some((col, c)) = chars.next() {
        match c {
            '#' => break,
            '"' | '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        None => return Err(col),
                        Some((_, q)) if q == c => break,
                        Some((_, '\\')) if c == '"' => word.extend(chars.next().map(|(_, c)| c)),
                        Some((_, other)) => word.push(other),
                    }
                }
            }
            '\\' => word.get_or_insert_default().extend(chars.next().map(|(_, c)| c)),
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}
