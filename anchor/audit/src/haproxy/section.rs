//! Sections, and what `defaults` give to the others.

use super::lex::Line;
use crate::error::AuditError;
use crate::position::Position;

const SECTIONS: &[&str] = &[
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "userlist",
    "peers",
    "resolvers",
    "mailers",
    "namespace_list",
    "cache",
    "program",
    "http-errors",
    "ring",
    "log-forward",
    "fcgi-app",
    "crt-store",
    "traces",
    "log-profile",
    "acme",
    "healthcheck",
];

/// A section with its own lines.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) at: Position,
    own: Vec<Line>,
    /// The defaults section that it takes from, as an index.
    from: Option<usize>,
}

/// Groups lines; `from NAME`, or else the last defaults section, is where a proxy takes its defaults from.
pub(super) fn sections(lines: Vec<Line>) -> Result<Vec<Section>, AuditError> {
    let mut sections: Vec<Section> = Vec::new();
    for line in lines {
        if SECTIONS.contains(&line.word(0)) {
            let section = begin(&line, &sections)?;
            sections.push(section);
        } else if let Some(section) = sections.last_mut() {
            section.own.push(line);
        } else {
            let what = format!("`{}` stands before the first section (global, defaults, frontend, …)", line.word(0));
            return Err(AuditError::syntax(&line.at, what));
        }
    }
    Ok(sections)
}

fn begin(line: &Line, sections: &[Section]) -> Result<Section, AuditError> {
    let kind = line.word(0).to_owned();
    let takes_defaults = matches!(kind.as_str(), "defaults" | "frontend" | "backend" | "listen");
    let named = line.words.iter().skip(1).position(|w| w == "from").map(|n| line.word(n + 2));
    let defaults = || sections.iter().enumerate().rev().filter(|(_, s)| s.kind == "defaults");
    let from = match named.filter(|_| takes_defaults) {
        Some(name) => {
            let found = defaults().find(|(_, s)| s.name == name);
            let what = || format!("there is no `defaults {name}` above this line");
            Some(found.ok_or_else(|| AuditError::syntax(&line.at, what()))?.0)
        }
        None if takes_defaults && kind != "defaults" => defaults().next().map(|(n, _)| n),
        None => None,
    };
    let name = if line.word(1) == "from" { String::new() } else { line.word(1).to_owned() };
    Ok(Section { kind, name, at: line.at.clone(), own: Vec::new(), from })
}

impl Section {
    /// The lines in effect: those of its defaults first.
    pub(super) fn lines<'a>(&'a self, all: &'a [Section]) -> Vec<&'a Line> {
        // A defaults section can only take from one above it, so this ends.
        let mut lines = self.from.map(|n| all[n].lines(all)).unwrap_or_default();
        lines.extend(&self.own);
        lines
    }

    pub(super) fn own(&self) -> &[Line] {
        &self.own
    }

    pub(super) fn is_frontend(&self) -> bool {
        matches!(self.kind.as_str(), "frontend" | "listen")
    }

    pub(super) fn is_backend(&self) -> bool {
        matches!(self.kind.as_str(), "backend" | "listen")
    }
}
