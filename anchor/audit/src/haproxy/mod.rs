//! HAProxy: from files to a report.
//!
//! `lex` reads lines, `section` groups them and gives each proxy its defaults, `rules` and `endpoint` judge, and this
//! file follows each frontend to its backends.

mod endpoint;
mod lex;
mod rules;
mod section;
mod table;

use std::sync::Arc;

use self::lex::Line;
use self::rules::hit;
use self::section::Section;
use crate::Options;
use crate::address::Address;
use crate::error::AuditError;
use crate::findings::{Collector, Hit, Reach, RouteParts};
use crate::kind::ProxyKind;
use crate::report::Report;
use crate::sources::File;

/// Checks the files that one HAProxy reads, in this order.
pub(crate) fn audit(files: &[File], options: &Options) -> Result<Report, AuditError> {
    let mut lines = Vec::new();
    let mut names = Vec::new();
    for file in files {
        let name: Arc<str> = file.path.to_string_lossy().into();
        lines.extend(lex::lines(&name, &file.text)?);
        names.push(name.to_string());
    }
    let sections = section::sections(lines)?;
    let mut collector = Collector::new(options);
    outside_of_proxies(&mut collector, &sections);
    let backends: Vec<_> = sections.iter().filter(|s| s.is_backend()).map(|s| Backend::of(s, &sections)).collect();
    let mut used = vec![false; backends.len()];
    for section in sections.iter().filter(|s| s.is_frontend()) {
        Frontend::of(section, &sections).routes(&mut collector, &backends, &mut used);
    }
    for (backend, _) in backends.iter().zip(used).filter(|(b, used)| !used && !b.upstreams.is_empty()) {
        let parts = backend.route(format!("backend {}", backend.section.name), Vec::new());
        collector.route(parts, backend.hits.clone());
    }
    Ok(collector.finish(ProxyKind::Haproxy, names))
}

fn outside_of_proxies(collector: &mut Collector, sections: &[Section]) {
    for section in sections {
        for line in section.own() {
            let ocsp = endpoint::updates_ocsp(line).then(|| hit("UDH114", line));
            let global = (section.kind == "global").then(|| rules::in_global(line)).flatten();
            for hit in ocsp.into_iter().chain(global) {
                // Answers of OCSP responders come from port 80, unless a certificate says otherwise.
                let hit = if hit.code == "UDH114" { hit.reaching(Reach::Route) } else { hit };
                collector.beside_routes(&hit, "the whole program", &[], &[Address::Port(80)]);
            }
        }
    }
}

/// Whether a proxy carries HTTP. Where conditionals leave it open, it does.
fn mode<'a>(lines: &[&'a Line]) -> Option<&'a Line> {
    lines.iter().rev().find(|l| l.word(0) == "mode").copied()
}

/// What the mode says for the whole proxy: only http and tcp can carry HTTP/1.
fn mode_hit(lines: &[&Line]) -> Option<Hit> {
    mode(lines).filter(|l| !matches!(l.word(1), "http" | "tcp")).map(|l| hit("UDH301", l))
}

struct Backend<'a> {
    section: &'a Section,
    upstreams: Vec<Address>,
    hits: Vec<Hit>,
}

impl<'a> Backend<'a> {
    fn of(section: &'a Section, all: &'a [Section]) -> Self {
        let lines = section.lines(all);
        let mut hits = rules::in_proxy(&lines);
        hits.extend(rules::in_backend(&lines));
        hits.extend(mode_hit(&lines));
        let mut upstreams = Vec::new();
        let mut defaults = Vec::new();
        for line in &lines {
            match line.word(0) {
                "default-server" => defaults.push(*line),
                "server" | "server-template" => {
                    let (addresses, found) = endpoint::server(line, &defaults);
                    upstreams.extend(addresses);
                    hits.extend(found);
                }
                "dispatch" => upstreams.push(Address::Every),
                "option" if matches!(line.word(1), "transparent" | "http_proxy" | "http-proxy") => {
                    upstreams.push(Address::Every);
                }
                _ => {}
            }
        }
        // Rules that choose the server's address at run time.
        if lines.iter().any(|l| matches!(l.word(1), "set-dst" | "set-dst-port") || l.word(1).starts_with("do-resolve"))
        {
            upstreams.push(Address::Every);
        }
        Self { section, upstreams, hits }
    }

    fn route(&self, scope: String, listeners: Vec<Address>) -> RouteParts {
        RouteParts { scope, at: self.section.at.clone(), listeners, upstreams: self.upstreams.clone() }
    }
}

struct Frontend<'a> {
    section: &'a Section,
    lines: Vec<&'a Line>,
    listeners: Vec<Address>,
    hits: Vec<Hit>,
}

impl<'a> Frontend<'a> {
    fn of(section: &'a Section, all: &'a [Section]) -> Self {
        let lines = section.lines(all);
        let mut hits = rules::in_proxy(&lines);
        hits.extend(mode_hit(&lines));
        let mut listeners = Vec::new();
        for line in lines.iter().filter(|l| l.word(0) == "bind") {
            let (addresses, found) = endpoint::bind(line);
            listeners.extend(addresses);
            hits.extend(found);
        }
        Self { section, lines, listeners, hits }
    }

    fn routes(&self, collector: &mut Collector, backends: &[Backend<'_>], used: &mut [bool]) {
        let mut any = false;
        for (n, backend) in backends.iter().enumerate().filter(|(_, b)| self.may_use(b.section)) {
            used[n] = true;
            if backend.upstreams.is_empty() && backend.hits.is_empty() {
                // `stats`, or rules that answer by themselves.
                continue;
            }
            any = true;
            let (front, back) = (&self.section.name, &backend.section.name);
            let scope = if std::ptr::eq(self.section, backend.section) {
                format!("listen {front}")
            } else {
                format!("{} {front} -> backend {back}", self.section.kind)
            };
            let mut hits = self.hits.clone();
            hits.extend(backend.hits.iter().cloned());
            let mut parts = backend.route(scope, self.listeners.clone());
            if self.changes_destination() {
                parts.upstreams.push(Address::Every);
            }
            collector.route(parts, hits);
        }
        if !any && !self.hits.is_empty() {
            let scope = format!("{} {}", self.section.kind, self.section.name);
            let parts = RouteParts {
                scope,
                at: self.section.at.clone(),
                listeners: self.listeners.clone(),
                upstreams: Vec::new(),
            };
            collector.route(parts, self.hits.clone());
        }
    }

    /// Whether a rule can lead from here to there. A name that is computed may be any.
    fn may_use(&self, backend: &Section) -> bool {
        let itself = std::ptr::eq(self.section, backend);
        itself
            || self.lines.iter().any(|l| match l.word(0) {
                "default_backend" | "use_backend" => l.word(1) == backend.name || l.word(1).contains(['%', '$']),
                _ => false,
            })
    }

    fn changes_destination(&self) -> bool {
        self.lines
            .iter()
            .any(|l| matches!(l.word(1), "set-dst" | "set-dst-port") || l.word(1).starts_with("do-resolve"))
    }
}
