//! Virtual hosts: exact names, then the longest suffix, then the longest prefix, then any.

use std::fmt::Write;

use crate::source::Maker;
use crate::text::{Span, comment};

/// Comparisons in one function of C.
const CHUNK: usize = 64;

impl Maker<'_> {
    /// `host_of`: the index of the virtual host, or -1.
    pub(crate) fn hosts(&mut self) -> String {
        let span = Span::of("value[UD_NAME_HOST]");
        let (mut exact, mut suffix, mut prefix, mut any) = (Vec::new(), Vec::new(), Vec::new(), None);
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
                    _ => exact.push((domain, span.exact(domain, true), index)),
                }
            }
        }
        // Of equal length at most one can hold.
        suffix.sort_by_key(|(domain, _, _)| std::cmp::Reverse(domain.len()));
        prefix.sort_by_key(|(domain, _, _)| std::cmp::Reverse(domain.len()));
        exact.extend(suffix);
        exact.extend(prefix);
        let (mut out, mut calls) = (String::new(), String::new());
        for (chunk, domains) in exact.chunks(CHUNK).enumerate() {
            let _ = writeln!(out, "static __attribute__((noinline)) int host_{chunk}(struct ud_head *h)\n{{");
            for (domain, test, index) in domains {
                let _ = writeln!(out, "\tif ({test}) /* {} */\n\t\treturn {index};", comment(domain));
            }
            let _ = writeln!(out, "\treturn -1;\n}}\n");
            let _ = writeln!(calls, "\thost = host_{chunk}(h);\n\tif (host >= 0)\n\t\treturn host;");
        }
        let any = any.map_or_else(|| "-1".to_owned(), |index| index.to_string());
        let _ = writeln!(
            out,
            "/* The virtual host of the authority, or -1. */\n\
             static __attribute__((noinline)) int host_of(struct ud_head *h)\n{{\n\tint host;\n\n{calls}\thost = {any};\n\
             \t(void)h;\n\treturn host;\n}}\n"
        );
        out
    }
}
