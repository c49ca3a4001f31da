//! nginx's words: quotes, escapes, comments, and `${variable}` braces, as `ngx_conf_read_token` takes them.

use std::sync::Arc;

use crate::error::AuditError;
use crate::position::Position;

/// A word of a directive, without its quotes and escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) at: Position,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Word(Word),
    Semicolon,
    Open,
    Close(Position),
}

/// Reads one file, token by token.
pub(super) struct Lexer<'a> {
    chars: std::iter::Peekable<std::str::Chars<'a>>,
    at: Position,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(file: Arc<str>, text: &'a str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { chars: text.chars().peekable(), at: Position { file, line: 1, col: 1 } }
    }

    pub(super) fn position(&self) -> &Position {
        &self.at
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.chars.next()?;
        if c == '\n' {
            self.at.line += 1;
            self.at.col = 1;
        } else {
            self.at.col += 1;
        }
        Some(c)
    }

    /// The next token; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Token>, AuditError> {
        loop {
            let at = self.at.clone();
            let Some(&c) = self.chars.peek() else { return Ok(None) };
            return match c {
                c if c.is_ascii_whitespace() => {
                    self.bump();
                    continue;
                }
                '#' => {
                    while self.chars.peek().is_some_and(|&c| c != '\n') {
                        self.bump();
                    }
                    continue;
                }
                ';' => self.bump().map(|_| Ok(Token::Semicolon)).transpose(),
                '{' => self.bump().map(|_| Ok(Token::Open)).transpose(),
                '}' => self.bump().map(|_| Ok(Token::Close(at))).transpose(),
                '"' | '\'' => self.quoted(c, at).map(|w| Some(Token::Word(w))),
                _ => Ok(Some(Token::Word(self.bare(at)))),
            };
        }
    }

    fn quoted(&mut self, quote: char, at: Position) -> Result<Word, AuditError> {
        self.bump();
        let mut text = String::new();
        loop {
            match self.bump() {
                None => return Err(AuditError::syntax(&at, format!("the quote {quote} is never closed"))),
                Some('\\') => self.escape(&mut text),
                Some(c) if c == quote => break,
                Some(c) => text.push(c),
            }
        }
        match self.chars.peek() {
            Some(&c) if !(c.is_ascii_whitespace() || matches!(c, ';' | '{' | ')')) => {
                Err(AuditError::syntax(&self.at, format!("unexpected `{c}` after a closing quote; expected a space")))
            }
            _ => Ok(Word { text, at }),
        }
    }

    fn bare(&mut self, at: Position) -> Word {
        let mut text = String::new();
        let mut after_dollar = false;
        while let Some(&c) = self.chars.peek() {
            if c.is_ascii_whitespace() || c == ';' || (c == '{' && !after_dollar) {
                break;
            }
            self.bump();
            if c == '\\' {
                self.escape(&mut text);
            } else {
                text.push(c);
            }
            after_dollar = c == '$';
        }
        Word { text, at }
    }

    /// What follows a backslash: only quotes, the backslash itself and \t \r \n are special.
    fn escape(&mut self, text: &mut String) {
        match self.bump() {
            Some(c @ ('"' | '\'' | '\\')) => text.push(c),
            Some('t') => text.push('\t'),
            Some('r') => text.push('\r'),
            Some('n') => text.push('\n'),
            Some(c) => text.extend(['\\', c]),
            None => text.push('\\'),
        }
    }

    /// Skips the rest of a Lua block whose `{` was just read: braces in Lua's strings and comments do not count.
    pub(super) fn skip_lua(&mut self, opened: &Position) -> Result<(), AuditError> {
        let mut depth = 1_u32;
        while let Some(c) = self.bump() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                '"' | '\'' => self.skip_lua_string(c),
                '[' => {
                    self.skip_long_bracket();
                }
                '-' if self.chars.peek() == Some(&'-') => {
                    self.bump();
                    if self.chars.peek() == Some(&'[') {
                        self.bump();
                        if self.skip_long_bracket() {
                            continue;
                        }
                    }
                    while self.chars.peek().is_some_and(|&c| c != '\n') {
                        self.bump();
                    }
                }
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(AuditError::syntax(opened, "the Lua block is never closed; expected `}`"))
    }

    fn skip_lua_string(&mut self, quote: char) {
        while let Some(c) = self.bump() {
            match c {
                '\\' => {
                    self.bump();
                }
                c if c == quote || c == '\n' => return,
                _ => {}
            }
        }
    }

    /// Skips `[==[ … ]==]` whose first bracket was just read; false, if it is no long bracket.
    fn skip_long_bracket(&mut self) -> bool {
        let ahead = self.chars.clone();
        let level = ahead.take_while(|&c| c == '=').count();
        if self.chars.clone().nth(level) != Some('[') {
            return false;
        }
        for _ in 0..=level {
            self.bump();
        }
        let mut closing: Option<usize> = None;
        while let Some(c) = self.bump() {
            closing = match (c, closing) {
                (']', Some(n)) if n == level => return true,
                (']', _) => Some(0),
                ('=', Some(n)) => Some(n + 1),
                _ => None,
            };
        }
        true
    }
}
