//! Virtual hosts: exact names, then the longest suffix, then the longest prefix, then any.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::source::{DOMAINS_MAX, Maker};
use crate::text::{Span, comment, word};

/// Comparisons in one function of C.
const CHUNK: usize = 512;

impl Maker<'_> {
    /// `host_of`: the index of the virtual host, or -1.
    pub(crate) fn hosts(&mut self) -> String {
        let span = Span::of("value[UD_NAME_HOST]");
        let mut exact = BTreeMap::<usize, Vec<(&str, usize)>>::new();
        let (mut suffix, mut prefix, mut any) = (Vec::new(), Vec::new(), None);
        for (index, host) in self.listener.virtual_hosts.iter().enumerate() {
            for domain in &host.domains {
                match (domain.strip_prefix('*'), domain.strip_suffix('*')) {
                    _ if domain == "*" => any = Some(index),
                    (Some(end), _) => {
                        let test = format!("{} && {} >= {}", span.suffix(end, true), span.len, domain.len());
                        suffix.push((domain, test, index));
                    }
                    (_, Some(start)) => {
                        let test = format!("{} && {} >= {}", span.prefix(start, true), span.len, domain.len());
                        prefix.push((domain, test, index));
                    }
                    _ => exact.entry(domain.len()).or_default().push((domain, index)),
                }
            }
        }
        // Of equal length at most one can hold.
        suffix.sort_by_key(|(domain, _, _)| std::cmp::Reverse(domain.len()));
        prefix.sort_by_key(|(domain, _, _)| std::cmp::Reverse(domain.len()));
        suffix.extend(prefix);
        let domains: usize = exact.values().map(Vec::len).sum::<usize>() + suffix.len();
        if domains > DOMAINS_MAX {
            // All requests are Envoy's then: see `enter`.
            exact.clear();
            suffix.clear();
        }
        let (mut out, mut calls) = names(&exact);
        for (chunk, domains) in suffix.chunks(CHUNK).enumerate() {
            let _ = writeln!(out, "apart int wildcard_{chunk}(struct ud_head *h never_null)\n{{");
            for (domain, test, index) in domains {
                let _ = writeln!(out, "\tif ({test}) /* {} */\n\t\treturn {index};", comment(domain));
            }
            let _ = writeln!(out, "\treturn -1;\n}}\n");
            let _ = writeln!(calls, "\thost = wildcard_{chunk}(h);\n\tif (host >= 0)\n\t\treturn host;");
        }
        // A longer name than any that a policy can have goes to Envoy, as one that no virtual host is for.
        let ready = if exact.is_empty() { "" } else { "\tif (!lower_host(h)) {\n\t\tenvoy(h);\n\t\treturn -2;\n\t}\n" };
        let any = any.map_or_else(|| "-1".to_owned(), |index| index.to_string());
        let _ = writeln!(
            out,
            "/* The virtual host of the authority, or -1. */\n\
             apart int host_of(struct ud_head *h never_null)\n{{\n\tint host = -1;\n\n{ready}{calls}\thost = {any};\n\
             \treturn host;\n}}\n"
        );
        out
    }
}

/// Functions that look for exact names, by length and then word by word, and their calls.
fn names(exact: &BTreeMap<usize, Vec<(&str, usize)>>) -> (String, String) {
    let chunks: Vec<_> = exact.values().flat_map(|domains| domains.chunks(CHUNK)).collect();
    let (mut out, mut calls, mut cases, mut inside, mut number) = (String::new(), String::new(), String::new(), 0, 0);
    for (at, domains) in chunks.iter().enumerate() {
        let len = domains[0].0.len();
        let _ = writeln!(cases, "\tcase {len}:\n{}\t\tbreak;", tree(domains, 0, "\t\t"));
        inside += domains.len();
        let next = chunks.get(at + 1);
        // A `switch` has each length once.
        if next.is_none_or(|next| inside + next.len() > CHUNK || next[0].0.len() == len) {
            let _ = writeln!(
                out,
                "apart int host_{number}(struct ud_head *h never_null)\n{{\n\tswitch (h->value[UD_NAME_HOST].len) {{\n{cases}\t}}\n\treturn -1;\n}}\n"
            );
            let _ = writeln!(calls, "\thost = host_{number}(h);\n\tif (host >= 0)\n\t\treturn host;");
            cases.clear();
            (inside, number) = (0, number + 1);
        }
    }
    (out, calls)
}

/// Names of one length: a `switch` for each word of eight bytes, which becomes a binary search.
fn tree(domains: &[(&str, usize)], at: usize, indent: &str) -> String {
    let mut branches = BTreeMap::<&str, Vec<(&str, usize)>>::new();
    let end = (at + 8).min(domains[0].0.len());
    for (domain, index) in domains {
        // Names with other bytes than ASCII are not matched by any authority that the parser takes.
        if let Some(part) = domain.get(at..end) {
            branches.entry(part).or_default().push((domain, *index));
        }
    }
    let (_, mask) = word(&domains[0].0.as_bytes()[at..end]);
    let mask = if mask == u64::MAX { String::new() } else { format!(" & {mask:#x}ULL") };
    let mut out = format!("{indent}switch (h->host_words[{}]{mask}) {{\n", at / 8);
    for (part, domains) in branches {
        let (value, _) = word(part.as_bytes());
        let _ = write!(out, "{indent}case {value:#x}ULL:");
        if end == domains[0].0.len() {
            let _ = writeln!(out, " /* {} */\n{indent}\treturn {};", comment(domains[0].0), domains[0].1);
        } else {
            let _ = writeln!(out, "\n{}{indent}\tbreak;", tree(&domains, end, &format!("{indent}\t")));
        }
    }
    let _ = writeln!(out, "{indent}}}");
    out
}
