//! Edits of headers, the same in every dialect: what may be edited where, and what only Envoy can do.

use super::fields::Notes;
use super::yaml::Node;
use crate::form::{HeaderEdit, HeaderEditMode, HeaderEdits, Reason};

/// Headers that frame messages or belong to one connection.
const FRAMING: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Adds one header to some edits, unless only Envoy can do it.
pub(super) fn add(
    edits: &mut HeaderEdits,
    notes: &mut Notes,
    at: &Node,
    name: &str,
    value: &str,
    mode: HeaderEditMode,
) {
    let name = name.to_ascii_lowercase();
    if !is_editable(&name, notes, at) {
        return;
    }
    // `%%` is a percent sign for Envoy; everything else is a command or an error.
    if value.replace("%%", "").contains('%') {
        notes.add(Reason::HeaderFormat, at, format!("{name}: {value}"));
        return;
    }
    if value.bytes().any(|b| b < b' ' && b != b'\t' || b == 0x7f) {
        notes.add(Reason::InvalidValue, at, format!("{name}: a control character"));
        return;
    }
    edits.add.push(HeaderEdit { name, value: value.replace("%%", "%"), mode });
}

/// Removes one header, unless only Envoy can do it.
pub(super) fn remove(edits: &mut HeaderEdits, notes: &mut Notes, at: &Node, name: &str) {
    let name = name.to_ascii_lowercase();
    if is_editable(&name, notes, at) {
        edits.remove.push(name);
    }
}

fn is_editable(name: &str, notes: &mut Notes, at: &Node) -> bool {
    if !is_token(name) {
        notes.add(Reason::InvalidValue, at, format!("{name} is not the name of a header"));
        return false;
    }
    // `x-envoy-*` steers the router of Envoy, and the other two are made by its connection manager.
    if FRAMING.contains(&name) || name.starts_with("x-envoy-") || name == "x-forwarded-for" || name == "x-request-id" {
        notes.add(Reason::FramingHeader, at, name);
        return false;
    }
    true
}

/// RFC 9110, section 5.6.2.
pub(super) fn is_token(name: &str) -> bool {
    let is_tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(is_tchar)
}
