//! Reading request and response heads.

use std::io::{self, Read};

/// Longest head in bytes.
const MAX_HEAD: usize = 64 << 10;

/// No backend answers, or no connection is free.
pub const UNAVAILABLE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const BAD: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const NOT_IMPLEMENTED: &[u8] = b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// The answer to what is no request; nothing for a connection that is broken or silent.
pub fn complaint(error: &io::Error) -> &'static [u8] {
    match error.kind() {
        io::ErrorKind::InvalidData => BAD,
        io::ErrorKind::Unsupported => NOT_IMPLEMENTED,
        _ => b"",
    }
}

/// A request without a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes of the head.
    pub length: usize,
    /// The path.
    pub path: String,
    /// Only the head is asked for.
    pub head: bool,
    /// The connection ends afterwards.
    pub close: bool,
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    /// Bytes of the head.
    pub length: usize,
    /// Bytes of the body.
    pub body: u64,
}

/// Reads until `buffer` begins with a request. None at the end of the stream.
pub fn request(from: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<Option<Request>> {
    loop {
        if let Some(request) = parse_request(buffer)? {
            return Ok(Some(request));
        }
        if !fill(from, buffer)? {
            return match buffer.is_empty() {
                true => Ok(None),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
    }
}

/// Reads until `buffer` begins with a response.
pub fn response(from: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<Response> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut headers);
        if let httparse::Status::Complete(length) = response.parse(buffer).map_err(invalid)? {
            let body = header(response.headers, "content-length").and_then(|text| text.parse().ok());
            return Ok(Response { length, body: body.ok_or(io::ErrorKind::InvalidData)? });
        }
        if !fill(from, buffer)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn parse_request(buffer: &[u8]) -> io::Result<Option<Request>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(buffer).map_err(invalid)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial if buffer.len() < MAX_HEAD => return Ok(None),
        httparse::Status::Partial => return Err(io::ErrorKind::InvalidData.into()),
    };
    let has_body = header(request.headers, "transfer-encoding").is_some()
        || header(request.headers, "content-length").is_some_and(|value| value != "0");
    let head = match request.method {
        Some("GET") if !has_body => false,
        Some("HEAD") if !has_body => true,
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let connection = header(request.headers, "connection").unwrap_or_default().to_ascii_lowercase();
    let close = match request.version {
        Some(0) => !connection.contains("keep-alive"),
        _ => connection.contains("close"),
    };
    Ok(Some(Request { length, path: request.path.unwrap_or("/").to_owned(), head, close }))
}

fn header<'a>(headers: &'a [httparse::Header<'a>], name: &str) -> Option<&'a str> {
    let found = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(found.value).ok().map(str::trim)
}

/// A read with a time limit is interrupted when the process was stopped and goes on (signal(7)): that is no error.
///
/// # Errors
/// All others.
pub fn read(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn fill(from: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let mut bytes = [0; 4096];
    let count = read(from, &mut bytes)?;
    buffer.extend_from_slice(&bytes[..count]);
    Ok(count > 0)
}

fn invalid(error: httparse::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipelined_requests_stay_in_the_buffer() {
        let mut bytes: &[u8] = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nHEAD /b HTTP/1.0\r\n\r\n";
        let mut buffer = Vec::new();
        let first = request(&mut bytes, &mut buffer).unwrap().unwrap();
        assert_eq!((first.path.as_str(), first.head, first.close), ("/a", false, false));
        buffer.drain(..first.length);
        let second = request(&mut bytes, &mut buffer).unwrap().unwrap();
        assert_eq!((second.path.as_str(), second.head, second.close), ("/b", true, true));
        buffer.drain(..second.length);
        assert_eq!(request(&mut bytes, &mut buffer).unwrap(), None);
    }

    #[test]
    fn bodies_and_other_methods_are_refused() {
        for text in ["POST / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "garbage\0\r\n\r\n"] {
            assert!(request(&mut text.as_bytes(), &mut Vec::new()).is_err(), "{text}");
        }
    }
}
