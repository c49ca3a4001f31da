//! Redirects.

use super::host::split_port;
use super::matching::Current;
use super::path::split_query;
use super::{Answer, rewrite};
use crate::form::{PathMatch, Redirect, RedirectPath};

/// The answer; None: only Envoy knows.
pub(super) fn redirect(redirect: &Redirect, matched: &PathMatch, current: &Current<'_>) -> Option<Answer> {
    let scheme = redirect.scheme.as_deref().unwrap_or("http");
    let port = redirect.port.map(|port| format!(":{port}")).unwrap_or_default();
    let host = redirect.host.as_deref().unwrap_or_else(|| host(&current.authority, scheme, redirect.port.is_some()));
    let (_, query) = split_query(&current.path);
    let query = if redirect.strip_query { "" } else { query };
    let path = match &redirect.path {
        Some(RedirectPath::Whole(path)) if path.contains('?') => path.clone(),
        Some(RedirectPath::Whole(path)) => format!("{path}{query}"),
        Some(RedirectPath::Rewrite(to)) => {
            let path = rewrite::path(to, matched, &current.path)?;
            format!("{}{query}", split_query(&path).0)
        }
        None => format!("{}{query}", current.path_only()),
    };
    let location = format!("{scheme}://{host}{port}{path}");
    Some(Answer { status: redirect.status, headers: vec![("location".into(), location)], body: String::new() })
}

/// The request's host: its port goes if another is set, or if it is the default one of a scheme that changes.
fn host<'a>(authority: &'a str, scheme: &str, has_port: bool) -> &'a str {
    match split_port(authority) {
        Some((host, port)) if has_port || (scheme != "http" && port == "80") => host,
        _ => authority,
    }
}
