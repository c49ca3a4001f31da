//! A client that sends exactly the bytes it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use underdeck_mesh_policy::evaluate::Request;

/// What the upstream received.
#[derive(Debug, Clone)]
pub struct Seen {
    pub cluster: String,
    pub path: String,
    pub authority: String,
    pub headers: Vec<(String, String)>,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// Not to a HEAD.
    pub has_body: bool,
    /// If an upstream answered.
    pub seen: Option<Seen>,
}

pub struct Client {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    pub fn exchange(&mut self, request: &Request) -> Response {
        // An idle connection may have been closed after an error.
        let again = self.stream.is_some();
        match self.try_exchange(request) {
            Some(response) => response,
            None if again => {
                self.stream = None;
                self.try_exchange(request).unwrap_or_else(|| panic!("no answer to {request:?}"))
            }
            None => panic!("no answer to {request:?}"),
        }
    }

    fn try_exchange(&mut self, request: &Request) -> Option<Response> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.address).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
            self.stream = Some(BufReader::new(stream));
        }
        let stream = self.stream.as_mut()?;
        stream.get_mut().write_all(&super::wire(request)).ok()?;
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let find = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        let has_body = request.method != "HEAD";
        let length = find("content-length").map_or(0, |text| text.parse().expect("a length"));
        let mut body = vec![0; if has_body { length } else { 0 }];
        stream.read_exact(&mut body).ok()?;
        if find("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            self.stream = None;
        }
        let body = String::from_utf8(body).expect("text");
        Some(Response { status, seen: find("x-seen").and_then(|json| seen(&json)), headers, body, has_body })
    }
}

fn seen(text: &str) -> Option<Seen> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("").to_owned();
    let pairs = json["headers"].as_array()?.iter();
    let headers: Vec<_> = pairs.map(|pair| (text(&pair[0]), text(&pair[1]))).collect();
    let authority = headers.iter().find(|(name, _)| name == "host").map(|(_, value)| value.clone());
    Some(Seen {
        cluster: text(&json["cluster"]),
        path: text(&json["path"]),
        authority: authority.unwrap_or_default(),
        headers,
    })
}
