//! Directives as a tree, with all includes in place.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::lex::{Lexer, Token, Word};
use crate::error::AuditError;
use crate::position::Position;
use crate::sources::File;

const DEEPEST_INCLUDE: usize = 32;
const DEEPEST_BLOCK: usize = 64;
const DUMP_MARKER: &str = "# configuration file ";

/// One directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) args: Vec<Word>,
    /// The directives between its braces, if it has any.
    pub(super) block: Option<Vec<Directive>>,
    pub(super) at: Position,
}

impl Directive {
    /// The n-th argument, or nothing.
    pub(super) fn arg(&self, n: usize) -> &str {
        self.args.get(n).map_or("", |w| &w.text)
    }

    /// As it is written, without its block.
    pub(super) fn display(&self) -> String {
        let mut text = self.name.clone();
        for arg in &self.args {
            text.push(' ');
            text.push_str(&arg.text);
        }
        text
    }

    pub(super) fn children(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }
}

/// Everything that was read.
pub(super) struct Tree {
    pub(super) directives: Vec<Directive>,
    pub(super) files: Vec<String>,
}

/// Parses a configuration file, or what `nginx -T` printed.
pub(super) fn parse(main: &File) -> Result<Tree, AuditError> {
    let dump = split_dump(&main.text);
    let (path, text) = match dump.first() {
        Some((path, text)) => (path.clone(), text.clone()),
        None => (main.path.clone(), main.text.clone()),
    };
    let prefix = path.parent().unwrap_or(Path::new("")).to_path_buf();
    let dump = (!dump.is_empty()).then(|| dump.into_iter().collect());
    let mut reader = Reader { prefix, dump, files: Vec::new() };
    let directives = reader.file(&path, &text, 0)?;
    Ok(Tree { directives, files: reader.files })
}

/// The files of `nginx -T`; none, if the text is an ordinary file. Before the first one, nginx itself may have spoken.
fn split_dump(text: &str) -> Vec<(PathBuf, String)> {
    let first = text.lines().find(|line| !line.is_empty() && !line.starts_with("nginx: "));
    if !first.is_some_and(|line| line.starts_with(DUMP_MARKER)) {
        return Vec::new();
    }
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    for line in text.split_inclusive('\n') {
        let marker = line.trim_end().strip_prefix(DUMP_MARKER).and_then(|l| l.strip_suffix(':'));
        match (marker, files.last_mut()) {
            (Some(path), _) if path.starts_with('/') => files.push((PathBuf::from(path), String::new())),
            (_, Some((_, text))) => text.push_str(line),
            (_, None) => {}
        }
    }
    files
}

struct Reader {
    /// Relative includes start at the directory of the main file.
    prefix: PathBuf,
    dump: Option<BTreeMap<PathBuf, String>>,
    files: Vec<String>,
}

impl Reader {
    fn file(&mut self, path: &Path, text: &str, depth: usize) -> Result<Vec<Directive>, AuditError> {
        let name: Arc<str> = path.to_string_lossy().into();
        if !self.files.iter().any(|f| **f == *name) {
            self.files.push(name.to_string());
        }
        let mut lexer = Lexer::new(name, text);
        self.block(&mut lexer, depth, 0, None)
    }

    fn block(
        &mut self,
        lexer: &mut Lexer<'_>,
        depth: usize,
        nesting: usize,
        opened: Option<&Position>,
    ) -> Result<Vec<Directive>, AuditError> {
        let mut directives = Vec::new();
        let mut words: Vec<Word> = Vec::new();
        loop {
            let before = lexer.position().clone();
            match (lexer.next()?, opened) {
                (Some(Token::Word(word)), _) => words.push(word),
                (Some(Token::Semicolon), _) => {
                    let directive = directive(std::mem::take(&mut words), &before, ";")?;
                    if directive.name == "include" && directive.args.len() == 1 {
                        directives.extend(self.include(&directive, depth)?);
                    } else {
                        directives.push(directive);
                    }
                }
                (Some(Token::Open), _) => {
                    let mut directive = directive(std::mem::take(&mut words), &before, "{")?;
                    if nesting >= DEEPEST_BLOCK {
                        return Err(AuditError::syntax(&directive.at, "blocks nest too deeply"));
                    }
                    directive.block = Some(if directive.name.ends_with("_by_lua_block") {
                        lexer.skip_lua(&directive.at)?;
                        Vec::new()
                    } else {
                        let at = directive.at.clone();
                        self.block(lexer, depth, nesting + 1, Some(&at))?
                    });
                    directives.push(directive);
                }
                (Some(Token::Close(at)), Some(_)) if words.is_empty() => {
                    let _ = at;
                    return Ok(directives);
                }
                (Some(Token::Close(at)), _) => {
                    let what = if words.is_empty() { "unexpected `}`" } else { "unexpected `}`, expected `;`" };
                    return Err(AuditError::syntax(&at, what));
                }
                (None, None) if words.is_empty() => return Ok(directives),
                (None, Some(opened)) if words.is_empty() => {
                    return Err(AuditError::syntax(opened, "the block is never closed; expected `}`"));
                }
                (None, _) => {
                    let what = "unexpected end of file, expected `;` or `{`";
                    return Err(AuditError::syntax(&words[0].at, what));
                }
            }
        }
    }

    fn include(&mut self, directive: &Directive, depth: usize) -> Result<Vec<Directive>, AuditError> {
        let at = directive.args[0].at.to_string();
        if depth >= DEEPEST_INCLUDE {
            return Err(AuditError::IncludeDepth { at, limit: DEEPEST_INCLUDE });
        }
        let pattern = self.prefix.join(directive.arg(0));
        let mut directives = Vec::new();
        for path in self.matching(&pattern) {
            let text = match &self.dump {
                Some(dump) => dump.get(&path).cloned().ok_or_else(|| std::io::ErrorKind::NotFound.into()),
                None => std::fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            };
            let text = text.map_err(|source| AuditError::Include { at: at.clone(), path: path.clone(), source })?;
            directives.extend(self.file(&path, &text, depth + 1)?);
        }
        Ok(directives)
    }

    /// The files that an include names, in the order of their names; a pattern may match none.
    fn matching(&self, pattern: &Path) -> Vec<PathBuf> {
        let text = pattern.to_string_lossy();
        if !text.contains(['*', '?', '[']) {
            return vec![pattern.to_path_buf()];
        }
        let options = glob::MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: true,
        };
        match &self.dump {
            Some(dump) => glob::Pattern::new(&text).map_or_else(
                |_| Vec::new(),
                |p| dump.keys().filter(|path| p.matches_path_with(path, options)).cloned().collect(),
            ),
            None => glob::glob_with(&text, options).map_or_else(|_| Vec::new(), |paths| paths.flatten().collect()),
        }
    }
}

fn directive(words: Vec<Word>, at: &Position, end: &str) -> Result<Directive, AuditError> {
    let mut words = words.into_iter();
    let Some(name) = words.next() else {
        return Err(AuditError::syntax(at, format!("unexpected `{end}`, expected the name of a directive")));
    };
    Ok(Directive { name: name.text, args: words.collect(), block: None, at: name.at })
}
