//! Normalisation of paths, as Envoy's HTTP connection manager does it before anything is matched.

use crate::form::{EscapedSlashes, HttpOptions};

/// Why a path is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// 400: it cannot be normalised, or holds a fragment, or an escaped slash that is not allowed.
    #[error("the path cannot be normalised")]
    Reject,
    /// 307 to the path with its slashes unescaped.
    #[error("the path has escaped slashes; redirected to {0}")]
    Redirect(String),
}

/// Normalises a path (with its query, which stays as it is).
///
/// # Errors
///
/// See [`BadPath`].
pub fn normalize(path_and_query: &str, options: &HttpOptions) -> Result<String, BadPath> {
    let (path, query) = split_query(path_and_query);
    let mut path = path.to_owned();
    let mut redirect = false;
    if options.escaped_slashes != EscapedSlashes::Keep {
        let unescaped = unescape_slashes(&path);
        if unescaped != path {
            match options.escaped_slashes {
                EscapedSlashes::Reject => return Err(BadPath::Reject),
                EscapedSlashes::Redirect => redirect = true,
                EscapedSlashes::Keep | EscapedSlashes::Forward => {}
            }
            path = unescaped;
        }
    }
    if options.normalize_path {
        path = canonical(&path).ok_or(BadPath::Reject)?;
    }
    if options.merge_slashes {
        path = merge(&path);
    }
    let full = format!("{path}{query}");
    if redirect { Err(BadPath::Redirect(full)) } else { Ok(full) }
}

/// The path, and the query with its question mark.
pub(super) fn split_query(path_and_query: &str) -> (&str, &str) {
    let at = path_and_query.find('?').unwrap_or(path_and_query.len());
    path_and_query.split_at(at)
}

fn unescape_slashes(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        let code = rest.get(at + 1..at + 3).unwrap_or("");
        out.push_str(&rest[..at]);
        let (text, taken) = match code {
            "2f" | "2F" => ("/", 3),
            "5c" | "5C" => ("\\", 3),
            _ => ("%", 1),
        };
        out.push_str(text);
        rest = &rest[at + taken..];
    }
    out + rest
}

/// A path of nothing but slashes keeps two, as in Envoy.
fn merge(path: &str) -> String {
    if !path.contains("//") {
        return path.to_owned();
    }
    let segments: Vec<_> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let end = if path.ends_with('/') { "/" } else { "" };
    format!("/{}{end}", segments.join("/"))
}

/// Dot segments go, `\` becomes `/`, escaped unreserved characters are unescaped, what may not stand in a path is
/// escaped. None: it holds a NUL.
fn canonical(path: &str) -> Option<String> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    let bytes = path.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'/' | b'\\' => {
                at += 1;
                at += slash(&mut out, &bytes[at..]);
            }
            b'%' => match escaped(&bytes[at..]) {
                Some(0) => return None,
                Some(byte) if is_unreserved(byte) => {
                    out.push(byte);
                    at += 3;
                }
                Some(_) => {
                    out.extend_from_slice(&bytes[at..at + 3]);
                    at += 3;
                }
                None => {
                    out.push(b'%');
                    at += 1;
                }
            },
            byte => {
                push(&mut out, byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).ok()
}

/// Adds a slash and deals with the dots behind it; says how many bytes were taken.
fn slash(out: &mut Vec<u8>, rest: &[u8]) -> usize {
    out.push(b'/');
    let mut taken = 0;
    let (first, len) = dot(rest);
    if !first {
        return 0;
    }
    taken += len;
    let (second, second_len) = dot(&rest[taken..]);
    let after = &rest[taken + if second { second_len } else { 0 }..];
    let ends = matches!(after.first(), None | Some(b'/' | b'\\'));
    if !ends {
        return 0;
    }
    if second {
        // Back to the slash before the last segment.
        out.pop();
        while out.last().is_some_and(|byte| *byte != b'/') {
            out.pop();
        }
        if out.is_empty() {
            out.push(b'/');
        }
        taken += second_len;
    }
    // The slash that ends the dots is the one that stands there already.
    taken + usize::from(!after.is_empty()) + if after.is_empty() { 0 } else { follow(out, &after[1..]) }
}

/// Further dots behind the slash that was just kept.
fn follow(out: &mut Vec<u8>, rest: &[u8]) -> usize {
    out.pop();
    slash(out, rest)
}

/// Whether a dot, plain or escaped, stands here, and how long it is.
fn dot(rest: &[u8]) -> (bool, usize) {
    match rest {
        [b'.', ..] => (true, 1),
        [b'%', b'2', b'e' | b'E', ..] => (true, 3),
        _ => (false, 0),
    }
}

fn escaped(rest: &[u8]) -> Option<u8> {
    let hex = |byte: u8| char::from(byte).to_digit(16);
    let (high, low) = (hex(*rest.get(1)?)?, hex(*rest.get(2)?)?);
    u8::try_from(high * 16 + low).ok()
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn push(out: &mut Vec<u8>, byte: u8) {
    if byte <= b' ' || byte >= 0x7f || b"\"<>`{}".contains(&byte) {
        out.extend_from_slice(format!("%{byte:02X}").as_bytes());
    } else {
        out.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_what_envoy_makes_of_them() {
        for (path, wanted) in [
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/..", "/"),
            ("/../../a", "/a"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/...", "/a/..."),
            ("/a/.b", "/a/.b"),
            ("/a//b", "/a//b"),
            ("/a//../b", "/a/b"),
            ("/a\\b", "/a/b"),
            ("/%41%2Fb", "/A%2Fb"),
            ("/a/./../b/./", "/b/"),
        ] {
            assert_eq!(canonical(path).as_deref(), Some(wanted), "{path}");
        }
        assert_eq!(canonical("/%00"), None);
        for (path, wanted) in [("//", "//"), ("/a//b///", "/a/b/"), ("/a/b", "/a/b"), ("///a", "/a")] {
            assert_eq!(merge(path), wanted, "{path}");
        }
    }
}
