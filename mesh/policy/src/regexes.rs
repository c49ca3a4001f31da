//! Regular expressions: RE2 as Envoy runs it, and which of them the kernel can run.

use regex_automata::dfa::dense;
use regex_automata::util::syntax;

/// No DFA in the kernel is larger than this, in bytes.
pub const DFA_SIZE_LIMIT: usize = 32 * 1024;

/// Why an expression is Envoy's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegexError {
    /// RE2 and this library may read it differently.
    #[error("{0} is not read in the same way by every engine")]
    Dialect(&'static str),
    /// It is no regular expression, or needs Unicode tables.
    #[error("not a regular expression for bytes: {0}")]
    Syntax(String),
    /// Its automaton is larger than [`DFA_SIZE_LIMIT`].
    #[error("its automaton would be larger than {DFA_SIZE_LIMIT} bytes")]
    TooLarge,
}

/// An expression for whole subjects, as Envoy's matchers want it. Only for subjects in ASCII: RE2 counts characters.
///
/// # Errors
///
/// See [`RegexError`].
pub fn whole(pattern: &str) -> Result<regex::bytes::Regex, RegexError> {
    build(&format!("^(?:{pattern})$"), pattern)
}

/// An expression that is searched for, as Envoy's rewrites want it.
///
/// # Errors
///
/// See [`RegexError`].
pub fn part(pattern: &str) -> Result<regex::bytes::Regex, RegexError> {
    build(pattern, pattern)
}

fn build(full: &str, pattern: &str) -> Result<regex::bytes::Regex, RegexError> {
    same_in_re2(pattern)?;
    // Alone first: `a)(b` would be valid only with something around it.
    regex_automata::util::syntax::parse_with(pattern, &syntax::Config::new().unicode(false).utf8(false))
        .map_err(|error| RegexError::Syntax(one_line(&error.to_string())))?;
    let mut builder = regex::bytes::RegexBuilder::new(full);
    builder.unicode(false).build().map_err(|error| RegexError::Syntax(one_line(&error.to_string())))
}

/// The automaton for whole subjects: anchored, matches only at the end of input.
///
/// # Errors
///
/// See [`RegexError`]; what this refuses goes to Envoy.
pub fn automaton(pattern: &str) -> Result<dense::DFA<Vec<u32>>, RegexError> {
    whole(pattern)?;
    let config = dense::Config::new()
        .start_kind(regex_automata::dfa::StartKind::Anchored)
        .dfa_size_limit(Some(DFA_SIZE_LIMIT))
        .determinize_size_limit(Some(16 * DFA_SIZE_LIMIT))
        .minimize(true);
    let syntax = syntax::Config::new().unicode(false).utf8(false);
    dense::Builder::new()
        .configure(config)
        .syntax(syntax)
        .thompson(regex_automata::nfa::thompson::Config::new().utf8(false))
        .build(&format!("^(?:{pattern})$"))
        .map_err(|_| RegexError::TooLarge)
}

/// Refuses what RE2 reads in another way or not at all.
fn same_in_re2(pattern: &str) -> Result<(), RegexError> {
    if !pattern.is_ascii() {
        return Err(RegexError::Dialect("a character outside ASCII"));
    }
    for group in pattern.match_indices("(?").map(|(at, _)| &pattern[at + 2..]) {
        let flags = group.split([':', ')', 'P', '<']).next().unwrap_or("");
        if flags.contains(['x', 'R', 'u', 'U']) {
            return Err(RegexError::Dialect("a flag of a group"));
        }
    }
    let (mut in_class, mut class_start, mut bytes) = (false, 0, pattern.bytes().enumerate().peekable());
    while let Some((at, byte)) = bytes.next() {
        let next = bytes.peek().map(|(_, next)| *next);
        match byte {
            b'\\' => {
                if next.is_some_and(|next| b"<>CQEGhHNRXkpPzZ0123456789".contains(&next)) {
                    return Err(RegexError::Dialect("an escape"));
                }
                if next == Some(b'b') && pattern[at..].starts_with("\\b{") {
                    return Err(RegexError::Dialect("an escape"));
                }
                bytes.next();
            }
            b'[' if in_class => return Err(RegexError::Dialect("a bracket in a class")),
            b'[' => (in_class, class_start) = (true, at),
            b']' if in_class => {
                let inside = &pattern[class_start + 1..at];
                if inside.is_empty() || inside == "^" {
                    return Err(RegexError::Dialect("a bracket in a class"));
                }
                in_class = false;
            }
            b'&' | b'-' | b'~' if in_class && next == Some(byte) => {
                return Err(RegexError::Dialect("an operator in a class"));
            }
            b'{' if !in_class && !is_repetition(&pattern[at..]) => {
                return Err(RegexError::Dialect("a brace"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// `{n}`, `{n,}` or `{n,m}` with numbers up to 1000.
fn is_repetition(text: &str) -> bool {
    let Some((inside, _)) = text[1..].split_once('}') else { return false };
    let (low, high) = inside.split_once(',').unwrap_or((inside, inside));
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u32>().is_ok_and(|n| n <= 1000);
    number(low) && (high.is_empty() || number(high))
}

fn one_line(text: &str) -> String {
    text.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyday_expressions_fit() {
        for pattern in
            ["/api/v[0-9]+/.*", "^(.*?;)?(user=jason)(;.*)?$", ".*Firefox.*", "[^/]+", "(?i:x)", "a{2,3}", r"\d+\.\w"]
        {
            assert!(automaton(pattern).is_ok(), "{pattern}: {:?}", automaton(pattern).err());
        }
    }

    #[test]
    fn what_engines_read_differently_is_refused() {
        for pattern in
            ["[a&&b]", "[[a]]", r"\Qa\E", r"\pL", "(?x) a", "a{,2}", "a{1001}", "é", r"(a)\1", "[]a]", "(?=a)"]
        {
            assert!(automaton(pattern).is_err(), "{pattern}");
        }
        assert_eq!(automaton("(a|b)*a(a|b){14}").err(), Some(RegexError::TooLarge));
    }

    #[test]
    fn whole_subjects_are_meant() {
        let regex = whole("a|ab").expect("valid");
        assert!(regex.is_match(b"ab") && !regex.is_match(b"abc") && !regex.is_match(b"xa"));
    }
}
