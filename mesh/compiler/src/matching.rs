//! Conditions on requests as expressions of C.

use underdeck_mesh_policy::form::{
    HeaderMatch, HeaderPattern, PathMatch, PathPattern, RequestMatch, StringMatch, StringPattern,
};

use crate::source::Maker;
use crate::text::Span;

/// An expression with two sides: it certainly holds, it may hold. They differ where only Envoy knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) certain: String,
    pub(crate) maybe: String,
}

impl Test {
    pub(crate) fn known(expression: String) -> Self {
        Self { certain: expression.clone(), maybe: expression }
    }

    pub(crate) fn constant(holds: bool) -> Self {
        Self::known(if holds { "1" } else { "0" }.into())
    }

    pub(crate) fn unknown() -> Self {
        Self { certain: "0".into(), maybe: "1".into() }
    }

    pub(crate) fn of(expression: Option<String>) -> Self {
        expression.map_or_else(Self::unknown, Self::known)
    }

    pub(crate) fn is_known(&self) -> bool {
        self.certain == self.maybe
    }

    pub(crate) fn not(self) -> Self {
        Self { certain: negate(&self.maybe), maybe: negate(&self.certain) }
    }

    pub(crate) fn all(parts: impl IntoIterator<Item = Self>) -> Self {
        let (certain, maybe): (Vec<_>, Vec<_>) = parts.into_iter().map(|part| (part.certain, part.maybe)).unzip();
        Self { certain: join(&certain, " && ", "1", "0"), maybe: join(&maybe, " && ", "1", "0") }
    }

    pub(crate) fn any(parts: impl IntoIterator<Item = Self>) -> Self {
        let (certain, maybe): (Vec<_>, Vec<_>) = parts.into_iter().map(|part| (part.certain, part.maybe)).unzip();
        Self { certain: join(&certain, " || ", "0", "1"), maybe: join(&maybe, " || ", "0", "1") }
    }
}

fn negate(expression: &str) -> String {
    match expression {
        "0" => "1".into(),
        "1" => "0".into(),
        _ => format!("!({expression})"),
    }
}

/// `neutral` parts fall out, a `decisive` one is all there is to say.
fn join(parts: &[String], with: &str, neutral: &str, decisive: &str) -> String {
    if parts.iter().any(|part| part == decisive) {
        return decisive.into();
    }
    let parts: Vec<_> = parts.iter().filter(|part| *part != neutral).map(|part| part.as_str()).collect();
    match parts.as_slice() {
        [] => neutral.into(),
        [one] => (*one).into(),
        _ => format!("({})", parts.join(with)),
    }
}

impl Maker<'_> {
    pub(crate) fn request(&mut self, matching: &RequestMatch) -> Test {
        let mut parts = vec![self.path(&matching.path)];
        for (field, pattern) in [("method", &matching.method), ("authority", &matching.authority)] {
            parts.extend(pattern.as_ref().map(|pattern| self.string(pattern, &Span::of(field))));
        }
        if let Some(scheme) = &matching.scheme {
            parts.push(constant(scheme, "http"));
        }
        if !matching.ports.is_empty() {
            let ports = matching.ports.iter().map(|port| Test::known(format!("h->destination.port == {port}")));
            parts.push(Test::any(ports));
        }
        parts.extend(matching.headers.iter().map(|header| self.header(header)));
        parts.extend(matching.query.iter().map(|_| Test::unknown()));
        let sender = &self.node.sender;
        if let Some(namespace) = &matching.source.namespace {
            let known = sender.identity.as_ref().map(|identity| identity.namespace() == Some(namespace));
            parts.push(known.map_or_else(Test::unknown, Test::constant));
        }
        for (name, value) in &matching.source.labels {
            let known = sender.labels.as_ref().map(|labels| labels.get(name) == Some(value));
            parts.push(known.map_or_else(Test::unknown, Test::constant));
        }
        Test::all(parts)
    }

    fn path(&mut self, matching: &PathMatch) -> Test {
        let (span, fold) = (Span::of("path"), matching.ignore_case);
        Test::of(Some(match &matching.pattern {
            PathPattern::Any => "1".into(),
            PathPattern::Exact(path) => span.exact(path, fold),
            PathPattern::Prefix(prefix) => span.prefix(prefix, fold),
            PathPattern::Segments(prefix) => {
                let next = format!("h->path.len == {0} || AT(h, h->path.at + {0}) == '/'", prefix.len());
                format!("({} && ({next}))", span.prefix(prefix, fold))
            }
            PathPattern::Regex(pattern) => return Test::of(self.automata.call(pattern, &span)),
        }))
    }

    pub(crate) fn string(&mut self, matching: &StringMatch, span: &Span) -> Test {
        let fold = matching.ignore_case;
        Test::of(Some(match &matching.pattern {
            StringPattern::Exact(text) => span.exact(text, fold),
            StringPattern::Prefix(text) => span.prefix(text, fold),
            StringPattern::Suffix(text) => span.suffix(text, fold),
            StringPattern::Contains(text) if text.is_empty() => "1".into(),
            StringPattern::Contains(text) => {
                let pattern = crate::automaton::Automata::containing(text, fold);
                return Test::of(self.automata.call(&pattern, span));
            }
            StringPattern::Regex(pattern) => return Test::of(self.automata.call(pattern, span)),
        }))
    }

    pub(crate) fn header(&mut self, matching: &HeaderMatch) -> Test {
        let (there, span) = match matching.name.as_str() {
            ":method" => ("1".to_owned(), Span::of("method")),
            ":authority" => ("1".to_owned(), Span::of("authority")),
            ":path" => ("1".to_owned(), Span::of("target")),
            name => match self.names.id(name) {
                Some(id) => (format!("(h->seen >> {id} & 1)"), Span::of(&format!("value[{id}]"))),
                None => return Test::unknown(),
            },
        };
        let there = Test::known(there);
        let value = match &matching.pattern {
            HeaderPattern::Present => return if matching.invert { there.not() } else { there },
            HeaderPattern::Value(pattern) => self.string(pattern, &span),
            HeaderPattern::Range { start, end } => {
                Test::known(format!("in_range(h, {}, {}, {start}LL, {end}LL)", span.at, span.len))
            }
        };
        let value = if matching.invert { value.not() } else { value };
        if matching.missing_is_empty {
            // Of a header that is missing, the parser leaves no span behind: it is compared as empty.
            let empty = self.of_empty(matching);
            return Test::any([Test::all([there.clone(), value]), Test::all([there.not(), empty])]);
        }
        Test::all([there, value])
    }

    /// What the match says of an empty value.
    fn of_empty(&mut self, matching: &HeaderMatch) -> Test {
        let holds = match &matching.pattern {
            HeaderPattern::Value(pattern) => match constant(pattern, "") {
                test if test.is_known() => test,
                unknown => return unknown,
            },
            HeaderPattern::Present | HeaderPattern::Range { .. } => Test::constant(false),
        };
        if matching.invert { holds.not() } else { holds }
    }
}

/// A match of a text that is known now.
pub(crate) fn constant(matching: &StringMatch, text: &str) -> Test {
    let fold = |text: &str| if matching.ignore_case { text.to_ascii_lowercase() } else { text.to_owned() };
    let text = fold(text);
    Test::constant(match &matching.pattern {
        StringPattern::Exact(wanted) => text == fold(wanted),
        StringPattern::Prefix(prefix) => text.starts_with(&fold(prefix)),
        StringPattern::Suffix(suffix) => text.ends_with(&fold(suffix)),
        StringPattern::Contains(part) => text.contains(&fold(part)),
        StringPattern::Regex(pattern) => match underdeck_mesh_policy::regexes::whole(pattern) {
            Ok(regex) if text.is_ascii() => regex.is_match(text.as_bytes()),
            _ => return Test::unknown(),
        },
    })
}
