//! A request, and how `mesh explain` writes one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// A request as a client sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// With case.
    pub method: String,
    /// As in the request line: a path with a query, or an absolute URI.
    pub target: String,
    /// `host`, if there is one and the target is no absolute URI.
    pub authority: String,
    /// All other headers; names in lower case, in order.
    pub headers: Vec<(String, String)>,
    /// Who sends it.
    pub source: Sender,
    /// The address and port that the connection was made to.
    pub destination: (IpAddr, u16),
}

/// Who sends a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// None: it has none, or none is known.
    pub identity: Option<Identity>,
    /// None: they are not known.
    pub labels: Option<BTreeMap<String, String>>,
    /// Its address.
    pub address: IpAddr,
}

/// A SPIFFE identity without the scheme: `cluster.local/ns/NAMESPACE/sa/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity(pub String);

impl Identity {
    /// The namespace in it.
    pub fn namespace(&self) -> Option<&str> {
        let (_, rest) = self.0.split_once("/ns/")?;
        rest.split('/').next()
    }
}

/// Why a request cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Two words are the least.
    #[error("a request begins with a method and a path, such as `GET /api`")]
    TooShort,
    /// Every further word is `name=value`.
    #[error("{0}: `name=value` is expected here; quote values with blanks")]
    NoValue(String),
    /// `source-ip`, `destination-ip` or `port` has no such value.
    #[error("{0}: {1} is no address or port")]
    Address(String, String),
}

/// Reads `GET /api/v1 host=reviews x-user=jason source=cluster.local/ns/a/sa/b`.
///
/// `host`, `source`, `source-ip`, `source-label`, `destination-ip` and `port` have a meaning of their own; every other
/// name is that of a header. Values may stand in double quotes. A header of such a name is written `header:source=x`.
///
/// # Errors
///
/// See [`ParseError`].
pub fn parse(text: &str) -> Result<Request, ParseError> {
    let words = words(text);
    let [method, target, rest @ ..] = &words[..] else { return Err(ParseError::TooShort) };
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut request = Request {
        method: method.clone(),
        target: target.clone(),
        authority: String::new(),
        headers: Vec::new(),
        source: Sender { identity: None, labels: None, address: local },
        destination: (local, 80),
    };
    for word in rest {
        let (name, value) = word.split_once('=').ok_or_else(|| ParseError::NoValue(word.clone()))?;
        let address = || value.parse().map_err(|_| ParseError::Address(name.into(), value.into()));
        match name.to_ascii_lowercase().as_str() {
            "host" | ":authority" => value.clone_into(&mut request.authority),
            "source" => request.source.identity = Some(Identity(value.trim_start_matches("spiffe://").to_owned())),
            "source-ip" => request.source.address = address()?,
            "source-label" => {
                let (label, value) = value.split_once(['=', ':']).ok_or_else(|| ParseError::NoValue(word.clone()))?;
                request.source.labels.get_or_insert_default().insert(label.to_owned(), value.to_owned());
            }
            "destination-ip" => request.destination.0 = address()?,
            "port" => {
                request.destination.1 = value.parse().map_err(|_| ParseError::Address(name.into(), value.into()))?;
            }
            name => {
                let name = name.strip_prefix("header:").unwrap_or(name);
                request.headers.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    Ok(request)
}

/// Words between blanks; quotes keep blanks together and go away.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
    for c in text.chars() {
        match c {
            '"' => (quoted, any) = (!quoted, true),
            c if c.is_whitespace() && !quoted => {
                if any {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            c => {
                word.push(c);
                any = true;
            }
        }
    }
    if any {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_issues_example_is_read() {
        let request = parse("GET /api/v1 host=reviews x-user=jason source=cluster.local/ns/a/sa/b").expect("valid");
        assert_eq!((request.method.as_str(), request.target.as_str()), ("GET", "/api/v1"));
        assert_eq!(request.headers, [("x-user".to_owned(), "jason".to_owned())]);
        assert_eq!(request.source.identity.as_ref().and_then(Identity::namespace), Some("a"));
    }

    #[test]
    fn quotes_keep_blanks_and_empty_values() {
        let request = parse(r#"GET / x-a="b c" x-e="" header:source=here"#).expect("valid");
        let values: Vec<_> = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(values, [("x-a", "b c"), ("x-e", ""), ("source", "here")]);
        assert_eq!(parse("GET"), Err(ParseError::TooShort));
        assert_eq!(parse("GET / x"), Err(ParseError::NoValue("x".into())));
        assert!(matches!(parse("GET / port=x"), Err(ParseError::Address(..))));
    }
}
