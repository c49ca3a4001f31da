//! What an `HTTPRoute` of a VirtualService does.

use crate::form::{
    Abort, AuthorityRewrite, Cors, Delay, DirectResponse, Fault, HeaderEditMode, HeaderEdits, Mirror, PathRewrite,
    PerMillion, Reason, Redirect, RedirectPath, Retry, StringMatch, StringPattern,
};
use crate::read::edits;
use crate::read::fields::{Fields, Notes};
use crate::read::set::Reference;
use crate::read::yaml::Node;

/// `headers` of a route or a destination.
#[derive(Default)]
pub(super) struct Headers {
    pub(super) request: HeaderEdits,
    pub(super) response: HeaderEdits,
    /// Istio takes `host` among the request's headers for a new authority.
    pub(super) authority: Option<String>,
}

pub(super) fn headers(node: &Node, notes: &mut Notes) -> Headers {
    let mut out = Headers::default();
    let mut fields = Fields::of(node, notes, "headers");
    for (direction, is_request) in [("request", true), ("response", false)] {
        let Some(node) = fields.take(direction) else { continue };
        let mut edits = HeaderEdits::default();
        let mut operations = Fields::of(node, notes, direction);
        for name in operations.take("remove").map(|node| notes.list(node, "remove")).unwrap_or_default() {
            edits::remove(&mut edits, notes, name, name.text());
        }
        for (operation, mode) in [("set", HeaderEditMode::Set), ("add", HeaderEditMode::Append)] {
            for (name, value) in operations.take(operation).map_or(&[][..], Node::members) {
                let Some(text) = notes.text(value, name.text()) else { continue };
                let lower = name.text().to_ascii_lowercase();
                if is_request && operation == "set" && (lower == "host" || lower == ":authority") {
                    out.authority = Some(text);
                } else {
                    edits::add(&mut edits, notes, name, &lower, &text, mode);
                }
            }
        }
        operations.finish(notes);
        if is_request { out.request = edits } else { out.response = edits }
    }
    fields.finish(notes);
    out
}

pub(super) fn rewrite(node: &Node, notes: &mut Notes) -> (Option<PathRewrite>, Option<AuthorityRewrite>) {
    let mut fields = Fields::of(node, notes, "rewrite");
    let mut path = fields.take("uri").and_then(|node| notes.text(node, "uri")).map(PathRewrite::Matched);
    let authority = fields.take("authority").and_then(|node| notes.text(node, "authority"));
    if let Some(node) = fields.take("uriRegexRewrite") {
        notes.add(Reason::RegexRewrite, node, "uriRegexRewrite");
        let mut regex = Fields::of(node, notes, "uriRegexRewrite");
        let pattern = regex.take("match").and_then(|node| notes.text(node, "match")).unwrap_or_default();
        let substitution = regex.take("rewrite").and_then(|node| notes.text(node, "rewrite")).unwrap_or_default();
        regex.finish(notes);
        path = Some(PathRewrite::Regex { pattern, substitution });
    }
    fields.finish(notes);
    (path, authority.map(AuthorityRewrite::Literal))
}

pub(super) fn redirect(node: &Node, notes: &mut Notes) -> Redirect {
    let mut fields = Fields::of(node, notes, "redirect");
    let status = fields.take("redirectCode").and_then(|node| status(node, &[301, 302, 303, 307, 308], notes));
    let path = fields.take("uri").and_then(|node| notes.text(node, "uri"));
    if let Some(node) = fields.take("derivePort") {
        notes.add(Reason::RedirectRewrite, node, "derivePort");
    }
    if let Some(path) = path.as_deref().filter(|path| path.contains('%')) {
        notes.add(Reason::RedirectRewrite, node, path);
    }
    let redirect = Redirect {
        status: status.unwrap_or(301),
        scheme: fields.take("scheme").and_then(|node| notes.text(node, "scheme")),
        host: fields.take("authority").and_then(|node| notes.text(node, "authority")),
        port: fields.take("port").and_then(|node| notes.integer(node, "port")),
        path: path.map(RedirectPath::Whole),
        strip_query: false,
    };
    fields.finish(notes);
    redirect
}

fn status(node: &Node, allowed: &[u16], notes: &mut Notes) -> Option<u16> {
    let status = notes.integer::<u16>(node, "redirectCode")?;
    if !allowed.contains(&status) {
        notes.add(Reason::InvalidValue, node, format!("{status} is not the status of a redirect"));
    }
    Some(status)
}

pub(super) fn direct_response(node: &Node, notes: &mut Notes) -> DirectResponse {
    let mut fields = Fields::of(node, notes, "directResponse");
    let status = fields.take("status").and_then(|node| answer_status(node, notes));
    let mut body = String::new();
    if let Some(node) = fields.take("body") {
        let mut fields = Fields::of(node, notes, "body");
        body = fields.take("string").and_then(|node| notes.text(node, "string")).unwrap_or_default();
        fields.finish(notes);
    }
    fields.finish(notes);
    DirectResponse { status: status.unwrap_or(200), body }
}

/// 200 to 599: one that ends an exchange.
fn answer_status(node: &Node, notes: &mut Notes) -> Option<u16> {
    let status = notes.integer::<u16>(node, "status")?;
    if !(200..=599).contains(&status) {
        notes.add(Reason::InvalidValue, node, format!("{status} is no status from 200 to 599"));
    }
    Some(status)
}

pub(super) fn fault(node: &Node, notes: &mut Notes) -> Fault {
    let mut fields = Fields::of(node, notes, "fault");
    let mut fault = Fault::default();
    if let Some(node) = fields.take("abort") {
        let mut abort = Fields::of(node, notes, "abort");
        abort.envoy("grpcStatus", Reason::Http2, notes);
        abort.envoy("http2Error", Reason::Http2, notes);
        let status = abort.take("httpStatus").and_then(|node| answer_status(node, notes));
        let share = share(&mut abort, notes);
        fault.abort = Some(Abort { status: status.unwrap_or(500), share });
        abort.finish(notes);
    }
    if let Some(node) = fields.take("delay") {
        notes.add(Reason::FaultDelay, node, "delay");
        let mut delay = Fields::of(node, notes, "delay");
        let fixed = delay.take("fixedDelay").and_then(|node| notes.duration(node, "fixedDelay"));
        let share = share(&mut delay, notes);
        fault.delay = Some(Delay { delay: fixed.unwrap_or_default(), share });
        delay.finish(notes);
    }
    fields.finish(notes);
    fault
}

/// `percentage: {value: 12.5}`, or `percent: 12` as it was written earlier. Without either, no request.
fn share(fields: &mut Fields<'_>, notes: &mut Notes) -> PerMillion {
    let mut share = 0.0_f64;
    if let Some(node) = fields.take("percent") {
        share = notes.integer(node, "percent").unwrap_or(0.0);
    }
    if let Some(node) = fields.take("percentage") {
        let mut percentage = Fields::of(node, notes, "percentage");
        share = percentage.take("value").and_then(|node| notes.integer(node, "percentage")).unwrap_or(0.0);
        percentage.finish(notes);
    }
    if !(0.0..=100.0).contains(&share) {
        notes.add(Reason::InvalidValue, fields.node(), "a percentage is from 0 to 100");
    }
    // As Istio does it; the range was looked at, and `as` takes what is beyond to the border.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 100")]
    let millionths = (share.clamp(0.0, 100.0) * 10_000.0) as u32;
    PerMillion(millionths)
}

/// None: no retries are asked for.
pub(super) fn retry(node: &Node, notes: &mut Notes) -> Option<Retry> {
    let mut quiet = Notes::new(&notes.at(node).file);
    let mut fields = Fields::of(node, &mut quiet, "retries");
    let attempts = fields.take("attempts").and_then(|node| quiet.integer(node, "attempts"));
    let on = fields.take("retryOn").map_or("", Node::text).to_owned();
    let per_try_timeout = fields.take("perTryTimeout").and_then(|node| quiet.duration(node, "perTryTimeout"));
    fields.pass_over(&["retryRemoteLocalities", "retryIgnorePreviousHosts", "backoff"]);
    fields.finish(&mut quiet);
    if attempts == Some(0) && quiet.findings.is_empty() {
        return None;
    }
    notes.findings.append(&mut quiet.findings);
    notes.add(Reason::Retry, node, "retries");
    Some(Retry { attempts: attempts.unwrap_or(2), per_try_timeout, on })
}

pub(super) fn cors(node: &Node, notes: &mut Notes) -> Cors {
    notes.add(Reason::Cors, node, "corsPolicy");
    let mut fields = Fields::of(node, notes, "corsPolicy");
    let mut cors = Cors::default();
    for origin in fields.take("allowOrigins").map(|node| notes.list(node, "allowOrigins")).unwrap_or_default() {
        let pattern = |name: &str| origin.get(name).map(|node| node.text().to_owned());
        let string = pattern("exact").map(StringPattern::Exact);
        let string = string.or_else(|| pattern("prefix").map(StringPattern::Prefix));
        cors.origins.extend(string.or_else(|| pattern("regex").map(StringPattern::Regex)).map(StringMatch::new));
    }
    cors.methods = fields.take("allowMethods").map(|node| notes.texts(node, "allowMethods")).unwrap_or_default();
    cors.headers = fields.take("allowHeaders").map(|node| notes.texts(node, "allowHeaders")).unwrap_or_default();
    cors.expose = fields.take("exposeHeaders").map(|node| notes.texts(node, "exposeHeaders")).unwrap_or_default();
    cors.max_age = fields.take("maxAge").and_then(|node| notes.duration(node, "maxAge"));
    cors.credentials = fields.take("allowCredentials").map_or("", Node::text) == "true";
    fields.pass_over(&["unmatchedPreflights"]);
    fields.finish(notes);
    cors
}

/// A mirror; the share is set by the caller where it stands elsewhere.
pub(super) fn mirror(destination: Reference, share: PerMillion) -> (Mirror, Reference) {
    (Mirror { cluster: destination.cluster(), share }, destination)
}
