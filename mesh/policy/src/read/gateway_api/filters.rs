//! `HTTPRouteFilter`.

use crate::form::{
    AuthorityRewrite, Cors, HeaderEditMode, HeaderEdits, Mirror, PathRewrite, PerMillion, Reason, Redirect,
    RedirectPath,
};
use crate::read::edits;
use crate::read::fields::{Fields, Notes};
use crate::read::set::{Document, Reference};
use crate::read::yaml::Node;

/// What the filters of a rule or of a backend do.
#[derive(Default)]
pub(super) struct Filters {
    pub(super) request: HeaderEdits,
    pub(super) response: HeaderEdits,
    pub(super) redirect: Option<Redirect>,
    pub(super) path: Option<PathRewrite>,
    pub(super) authority: Option<AuthorityRewrite>,
    pub(super) mirrors: Vec<Mirror>,
    pub(super) references: Vec<Reference>,
    pub(super) cors: Option<Cors>,
}

pub(super) fn read(document: &Document<'_>, node: &Node, notes: &mut Notes) -> Filters {
    let mut filters = Filters::default();
    for item in notes.list(node, "filters") {
        let mut fields = Fields::of(item, notes, "filters");
        let kind = fields.take("type").map_or("", Node::text);
        let member = match kind {
            "RequestHeaderModifier" => fields.take("requestHeaderModifier"),
            "ResponseHeaderModifier" => fields.take("responseHeaderModifier"),
            "RequestRedirect" => fields.take("requestRedirect"),
            "URLRewrite" => fields.take("urlRewrite"),
            "RequestMirror" => fields.take("requestMirror"),
            "CORS" => fields.take("cors"),
            "ExtensionRef" => fields.take("extensionRef"),
            "ExternalAuth" => fields.take("externalAuth"),
            _ => None,
        };
        fields.finish(notes);
        let Some(member) = member else {
            notes.add(Reason::InvalidValue, item, format!("filters: {kind}"));
            continue;
        };
        match kind {
            "RequestHeaderModifier" => modifier(member, &mut filters.request, notes),
            "ResponseHeaderModifier" => modifier(member, &mut filters.response, notes),
            "RequestRedirect" => filters.redirect = Some(redirect(member, notes)),
            "URLRewrite" => (filters.path, filters.authority) = rewrite(member, notes),
            "RequestMirror" => mirror(document, member, &mut filters, notes),
            "CORS" => {
                notes.add(Reason::Cors, member, "cors");
                filters.cors = Some(Cors::default());
            }
            "ExternalAuth" => notes.add(Reason::ExtAuthz, member, "externalAuth"),
            _ => notes.add(Reason::EnvoyFilter, member, "extensionRef"),
        }
    }
    filters
}

fn modifier(node: &Node, edits: &mut HeaderEdits, notes: &mut Notes) {
    let mut fields = Fields::of(node, notes, "filters");
    for name in fields.take("remove").map(|node| notes.list(node, "remove")).unwrap_or_default() {
        edits::remove(edits, notes, name, name.text());
    }
    for (operation, mode) in [("set", HeaderEditMode::Set), ("add", HeaderEditMode::Append)] {
        for item in fields.take(operation).map(|node| notes.list(node, operation)).unwrap_or_default() {
            let mut pair = Fields::of(item, notes, operation);
            let name = pair.take("name").and_then(|node| notes.text(node, "name"));
            let value = pair.take("value").and_then(|node| notes.text(node, "value"));
            pair.finish(notes);
            match (name, value) {
                (Some(name), Some(value)) if value.contains('%') => {
                    notes.add(Reason::HeaderFormat, item, format!("{name}: {value}"));
                }
                (Some(name), Some(value)) => edits::add(edits, notes, item, &name, &value, mode),
                _ => notes.missing(item, "name or value"),
            }
        }
    }
    fields.finish(notes);
}

/// `{type, replaceFullPath, replacePrefixMatch}`.
fn path(node: &Node, notes: &mut Notes) -> Option<PathRewrite> {
    let mut fields = Fields::of(node, notes, "path");
    let kind = fields.take("type");
    let full = fields.take("replaceFullPath").and_then(|node| notes.text(node, "replaceFullPath"));
    let prefix = fields.take("replacePrefixMatch").and_then(|node| notes.text(node, "replacePrefixMatch"));
    fields.finish(notes);
    match (kind.map_or("", Node::text), full, prefix) {
        ("ReplaceFullPath", Some(path), None) => Some(PathRewrite::Whole(path)),
        ("ReplacePrefixMatch", None, Some(prefix)) => Some(PathRewrite::Segments(prefix)),
        (other, ..) => {
            notes.add(Reason::InvalidValue, kind.unwrap_or(node), format!("path: {other}"));
            None
        }
    }
}

fn rewrite(node: &Node, notes: &mut Notes) -> (Option<PathRewrite>, Option<AuthorityRewrite>) {
    let mut fields = Fields::of(node, notes, "urlRewrite");
    let host = fields.take("hostname").and_then(|node| notes.text(node, "hostname"));
    let path = fields.take("path").and_then(|node| path(node, notes));
    fields.finish(notes);
    (path, host.map(AuthorityRewrite::Literal))
}

fn redirect(node: &Node, notes: &mut Notes) -> Redirect {
    let mut fields = Fields::of(node, notes, "requestRedirect");
    let status = fields.take("statusCode").and_then(|node| {
        let status = notes.integer::<u16>(node, "statusCode")?;
        if ![301, 302, 303, 307, 308].contains(&status) {
            notes.add(Reason::InvalidValue, node, format!("{status} is not the status of a redirect"));
        }
        Some(status)
    });
    let scheme = fields.take("scheme").and_then(|node| notes.text(node, "scheme"));
    let port = fields.take("port").and_then(|node| notes.integer(node, "port"));
    let redirect = Redirect {
        status: status.unwrap_or(302),
        scheme,
        host: fields.take("hostname").and_then(|node| notes.text(node, "hostname")),
        port,
        path: fields.take("path").and_then(|node| path(node, notes)).map(|rewrite| match rewrite {
            PathRewrite::Whole(path) => RedirectPath::Whole(path),
            rewrite => RedirectPath::Rewrite(rewrite),
        }),
        strip_query: false,
    };
    fields.finish(notes);
    redirect
}

fn mirror(document: &Document<'_>, node: &Node, filters: &mut Filters, notes: &mut Notes) {
    notes.add(Reason::Mirror, node, "requestMirror");
    let mut fields = Fields::of(node, notes, "requestMirror");
    fields.pass_over(&["percent", "fraction"]);
    let backend = fields.take("backendRef");
    fields.finish(notes);
    let Some(backend) = backend else { return notes.missing(node, "backendRef") };
    let mut fields = Fields::of(backend, notes, "backendRef");
    if let Some(reference) = super::backend(document, &mut fields, notes) {
        filters.mirrors.push(Mirror { cluster: reference.cluster(), share: PerMillion::ALL });
        filters.references.push(reference);
    }
    fields.finish(notes);
}
