//! The header names that the policies mention: each gets a number, and the parser looks for no others.

use std::fmt::Write;

use crate::abi;
use crate::text;

/// Names that mean something to connections or to Envoy itself: a request with one of them is Envoy's.
const REFUSED: &[&str] = &[
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "x-forwarded-proto",
    "x-forwarded-host",
];

/// Names in the order of their numbers.
#[derive(Debug, Clone)]
pub(crate) struct Names(Vec<String>);

impl Names {
    pub(crate) fn new() -> Self {
        // In the order of `UD_NAME_HOST` and its neighbours.
        Self(["host", "content-length", "transfer-encoding", "connection"].map(String::from).to_vec())
    }

    /// The number of a name; None: there is no room for it, or only Envoy knows what it means.
    pub(crate) fn id(&mut self, name: &str) -> Option<usize> {
        let fixed = abi::UD_NAMES_FIXED as usize;
        let refused = REFUSED.contains(&name) || name.starts_with("x-envoy-") || name.starts_with(':');
        if refused || self.0[..fixed].iter().any(|known| known == name) {
            return None;
        }
        if let Some(at) = self.0.iter().position(|known| known == name) {
            return Some(at);
        }
        if self.is_full() {
            return None;
        }
        self.0.push(name.to_owned());
        Some(self.0.len() - 1)
    }

    /// There is no room for another name.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= abi::UD_NAMES_MAX as usize
    }

    /// `name_of`: by length, then by words.
    pub(crate) fn source(&self) -> String {
        let mut out = String::from(
            "/* The number of a header name; -1: of no interest, -2: of Envoy's interest. */\n\
             apart int name_of(struct ud_head *h never_null, ud_u32 at, ud_u32 len)\n{\n",
        );
        let starts = text::equals("at", "x-envoy-", true);
        let _ = writeln!(out, "\tif (len >= 8 && {starts})\n\t\treturn -2;\n\tswitch (len) {{");
        let mut all: Vec<(&str, i64)> = (0..).zip(&self.0).map(|(id, name)| (name.as_str(), id)).collect();
        all.extend(REFUSED.iter().map(|name| (*name, -2)));
        all.sort_by_key(|(name, id)| (name.len(), *id));
        let mut len = 0;
        for (name, id) in all {
            if name.len() != len {
                if len != 0 {
                    out.push_str("\t\tbreak;\n");
                }
                len = name.len();
                let _ = writeln!(out, "\tcase {len}:");
            }
            let _ = writeln!(out, "\t\tif ({}) /* {name} */\n\t\t\treturn {id};", text::equals("at", name, true));
        }
        out.push_str("\t\tbreak;\n\t}\n\treturn -1;\n}\n\n");
        out
    }
}
