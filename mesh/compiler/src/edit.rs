//! Edits of request heads: all edits of a route become one copy with gaps, and one literal at the end.

use std::collections::BTreeSet;
use std::fmt::Write;

use underdeck_mesh_policy::evaluate::apply;
use underdeck_mesh_policy::form::{AuthorityRewrite, Forward, HeaderEdits, PathMatch, PathPattern, PathRewrite};

use crate::abi;
use crate::source::Maker;
use crate::surplus::SurplusReason;
use crate::text::quote;

/// Functions of C have so many actions each.
const CHUNK: usize = 128;

/// Where the first header line begins.
const LINES: &str = "h->target.at + h->target.len + 11";

/// What edits make of one header, whether it is there or not.
struct Outcome {
    name: String,
    id: Option<usize>,
    kept: bool,
    added_if_there: Vec<String>,
    added_if_missing: Vec<String>,
}

impl Maker<'_> {
    /// Code of C that writes the edited head; None: nothing changes.
    pub(crate) fn edit(
        &mut self,
        forward: &Forward,
        matched: &PathMatch,
        edits: &[&HeaderEdits],
    ) -> Result<Option<String>, SurplusReason> {
        let outcomes = self.outcomes(edits)?;
        let authority = match &forward.authority {
            Some(AuthorityRewrite::Literal(authority)) => Some(authority),
            _ => None,
        };
        if outcomes.is_empty() && authority.is_none() && forward.path.is_none() {
            return Ok(None);
        }
        let mut removed = 0u64;
        for outcome in outcomes.iter().filter(|outcome| !outcome.kept) {
            removed |= outcome.id.map_or(0, |id| 1 << id);
        }
        let always = outcomes.iter().any(|outcome| !outcome.added_if_missing.is_empty());
        let conditional = outcomes.iter().any(|outcome| !outcome.added_if_there.is_empty());
        let mut out = String::new();
        if authority.is_none() && forward.path.is_none() && !always && !conditional {
            let _ = writeln!(out, "\t\tif (!(h->seen & {removed:#x}ULL))\n\t\t\treturn 0;");
        }
        out.push_str("\t\th->edited = 1;\n");
        match &forward.path {
            Some(rewrite) => out.push_str(&path(rewrite, matched)),
            None => put(&mut out, &format!("put_text(h, 0, {LINES})")),
        }
        if let Some(authority) = authority {
            removed |= 1 << abi::UD_NAME_HOST;
            literal(&mut out, &format!("host: {authority}\r\n"));
        }
        put(&mut out, &format!("put_lines(h, {LINES}, {removed:#x}ULL)"));
        let mut end = String::new();
        for outcome in &outcomes {
            let line = |values: &[String]| -> String {
                values.iter().map(|value| format!("{}: {value}\r\n", outcome.name)).collect()
            };
            if outcome.added_if_there == outcome.added_if_missing {
                end += &line(&outcome.added_if_there);
                continue;
            }
            let Some(id) = outcome.id else { return Err(SurplusReason::TooManyNames) };
            for (test, values) in [("", &outcome.added_if_there), ("!", &outcome.added_if_missing)] {
                if !values.is_empty() {
                    let _ = writeln!(out, "\t\tif ({test}(h->seen >> {id} & 1)) {{");
                    literal(&mut out, &line(values));
                    out.push_str("\t\t}\n");
                }
            }
        }
        literal(&mut out, &(end + "\r\n"));
        out.push_str("\t\treturn 0;\n");
        Ok(Some(out))
    }

    /// Lets the edits run over one header that is there, and over one that is not.
    fn outcomes(&mut self, edits: &[&HeaderEdits]) -> Result<Vec<Outcome>, SurplusReason> {
        const THERE: &str = "\u{1}";
        let mut names = BTreeSet::new();
        for edits in edits {
            names.extend(edits.remove.iter().chain(edits.add.iter().map(|edit| &edit.name)));
        }
        let mut outcomes = Vec::new();
        for name in names {
            let run = |mut headers: Vec<(String, String)>| {
                edits.iter().for_each(|edits| apply(&mut headers, edits));
                headers.retain(|(of, _)| of == name);
                headers.into_iter().map(|(_, value)| value).collect::<Vec<_>>()
            };
            let mut there = run(vec![(name.clone(), THERE.into())]);
            let kept = there.iter().any(|value| value == THERE);
            there.retain(|value| value != THERE);
            let missing = run(Vec::new());
            if kept && there.is_empty() && missing.is_empty() {
                continue;
            }
            let id = self.names.id(name);
            if id.is_none() && (!kept || there != missing) {
                let full = self.names.is_full();
                return Err(if full { SurplusReason::TooManyNames } else { SurplusReason::EnvoysHeader });
            }
            outcomes.push(Outcome { name: name.clone(), id, kept, added_if_there: there, added_if_missing: missing });
        }
        Ok(outcomes)
    }

    /// The functions `edit_N`, and their calls in `decide`.
    pub(crate) fn edit_functions(&mut self) -> (String, String) {
        let (mut out, mut calls) = (String::new(), String::new());
        for (chunk, edits) in self.edits.chunks(CHUNK).enumerate() {
            let _ = writeln!(out, "apart int edit_{chunk}(struct ud_head *h never_null)\n{{\n\tswitch (h->action) {{");
            for (action, code) in edits {
                let _ = writeln!(out, "\tcase {action}:\n{code}");
            }
            let _ = writeln!(out, "\t}}\n\treturn 0;\n}}\n");
            let (first, last) = (edits[0].0, edits[edits.len() - 1].0);
            let _ = writeln!(
                calls,
                "\tif (h->action >= {first} && h->action <= {last} && edit_{chunk}(h))\n\t\treturn -1;"
            );
        }
        (out, calls)
    }
}

fn put(out: &mut String, call: &str) {
    let _ = writeln!(out, "\t\tif ({call})\n\t\t\treturn -1;");
}

fn literal(out: &mut String, text: &str) {
    if !text.is_empty() {
        put(out, &format!("put_literal(h, {}, {})", quote(text), text.len()));
    }
}

/// The request line with another path.
fn path(rewrite: &PathRewrite, matched: &PathMatch) -> String {
    let mut out = String::new();
    let len = match &matched.pattern {
        PathPattern::Prefix(prefix) | PathPattern::Segments(prefix) => prefix.len().to_string(),
        PathPattern::Any => "1".into(),
        PathPattern::Exact(_) | PathPattern::Regex(_) => "h->path.len".into(),
    };
    put(&mut out, "put_text(h, 0, h->target.at)");
    let rest = match rewrite {
        PathRewrite::Matched(replacement) => {
            if !replacement.starts_with('/') {
                // What is left need not begin with a slash: Envoy knows what becomes of it.
                let _ = writeln!(
                    out,
                    "\t\tif ({len} >= h->path.len || AT(h, h->path.at + {len}) != '/')\n\t\t\treturn -1;"
                );
            }
            literal(&mut out, replacement);
            format!("h->path.at + {len}")
        }
        PathRewrite::Segments(replacement) => {
            let len = if let PathPattern::Segments(prefix) = &matched.pattern { prefix.len() } else { 0 };
            let start = replacement.trim_end_matches('/');
            if start.is_empty() {
                literal(&mut out, "/");
                format!("h->path.at + {len} + (h->path.len > {len} && AT(h, h->path.at + {len}) == '/')")
            } else {
                literal(&mut out, start);
                format!("h->path.at + {len}")
            }
        }
        PathRewrite::Whole(path) => {
            literal(&mut out, path);
            "h->path.at + h->path.len".into()
        }
        // Refused before.
        PathRewrite::Regex { .. } => "h->path.at".into(),
    };
    put(&mut out, &format!("put_text(h, {rest}, {LINES})"));
    out
}
