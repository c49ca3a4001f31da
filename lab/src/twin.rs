//! One exchange through two proxies that should be indistinguishable, and everything in which they differ.

use std::time::Duration;

use crate::LabError;
use crate::backend::{Backend, CONNECT_TARGET, Seen};
use crate::behaviour::Behaviour;
use crate::client::{Connection, Ending, Expect, Front, Pace, Reply, Request, Upload};
use crate::content::Checked;
use crate::http::{Framing, Head};
use crate::proxy::{LogLine, Proxy};

/// How long the backend's record of a request may take to appear.
const RECORDED: Duration = Duration::from_secs(20);
/// How long a client that holds back waits for the backend to be done; some configurations never let it.
const HELD: Duration = Duration::from_millis(1500);

/// One request and the answer that the backend shall give.
#[derive(Clone, Debug)]
pub struct Step {
    /// The answer.
    pub behaviour: Behaviour,
    /// Method.
    pub method: &'static str,
    /// `HTTP/1.1` or `HTTP/1.0`.
    pub version: &'static str,
    /// Further request fields.
    pub fields: Vec<(String, String)>,
    /// The request's body.
    pub upload: Upload,
}

impl Step {
    /// A GET with this answer.
    pub fn get(behaviour: Behaviour) -> Self {
        Self { behaviour, method: "GET", version: "HTTP/1.1", fields: Vec::new(), upload: Upload::None }
    }

    /// A POST with this body and answer.
    pub fn post(upload: Upload, behaviour: Behaviour) -> Self {
        Self { method: "POST", upload, ..Self::get(behaviour) }
    }

    /// Adds a request field.
    pub fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Asks for an upgrade to WebSocket, with the example key of RFC 6455, section 1.3.
    pub fn upgrade(self) -> Self {
        self.field("Upgrade", "websocket")
            .field("Connection", "Upgrade")
            .field("Sec-WebSocket-Version", "13")
            .field("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
    }

    fn range(&self) -> Option<(u64, u64)> {
        let value = self.fields.iter().find(|(name, _)| name == "Range").map(|(_, value)| value.as_str())?;
        let (from, to) = value.strip_prefix("bytes=")?.split_once('-')?;
        let from = from.parse().ok()?;
        let to = to.parse().unwrap_or(u64::MAX).min(self.behaviour.len.checked_sub(1)?);
        (from <= to).then_some((from, to))
    }

    fn expect(&self) -> Expect {
        Expect { seed: self.behaviour.seed, from: self.range().map_or(0, |(from, _)| from) }
    }

    /// Bytes of body that a faithful proxy delivers for `status`.
    fn body_len(&self, status: u16) -> u64 {
        match (status, self.range()) {
            _ if self.method == "HEAD" => 0,
            (204 | 304, _) => 0,
            (206, Some((from, to))) => to - from + 1,
            _ => self.behaviour.len,
        }
    }
}

/// How the steps are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// One after the other on one connection.
    Sequential,
    /// All at once on one connection.
    Pipelined,
    /// The first step asks for an upgrade, or is CONNECT; then so many bytes are echoed.
    Tunnel(u64),
    /// Nothing is read before the backend has sent everything, or a while has passed.
    Held,
}

/// A conversation on one client connection.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Its name; letters, digits, `-` and `.`.
    pub name: String,
    /// What is asked, and what is answered.
    pub steps: Vec<Step>,
    /// How.
    pub manner: Manner,
    /// The client's speed and manners.
    pub pace: Pace,
    /// All steps have one target, so that a cache can answer the later ones.
    pub one_target: bool,
    /// A peer breaks the exchange: only the bytes that arrived are judged, not how many.
    pub faulty: bool,
    /// Status and length are the proxy's business; both proxies must have the same.
    pub any_status: bool,
}

impl Exchange {
    /// Steps on one keep-alive connection that the last step closes.
    pub fn new(name: impl Into<String>, steps: Vec<Step>) -> Self {
        Self {
            name: name.into(),
            steps,
            manner: Manner::Sequential,
            pace: Pace::default(),
            one_target: false,
            faulty: false,
            any_status: false,
        }
    }

    /// In another manner.
    pub fn manner(mut self, manner: Manner) -> Self {
        self.manner = manner;
        self
    }

    /// At another pace.
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// As one that a peer breaks.
    pub fn faulty(mut self) -> Self {
        self.faulty = true;
        self
    }

    /// With whatever status the proxy chooses.
    pub fn any_status(mut self) -> Self {
        self.any_status = true;
        self
    }

    /// Whether a reply may be shorter than what the backend sent.
    fn lenient(&self) -> bool {
        self.faulty || self.any_status
    }

    /// The name of a step, by which the backend and the access logs know it.
    pub fn id(&self, step: usize) -> String {
        format!("{}.{}", self.name, if self.one_target { 0 } else { step })
    }

    fn requests(&self) -> Vec<Request> {
        let last = self.steps.len() - 1;
        let make = |(i, step): (usize, &Step)| {
            let mut request = Request {
                method: step.method,
                target: step.behaviour.target(&self.id(i)),
                version: step.version,
                fields: step.fields.clone(),
                upload: step.upload,
                close: i == last && !matches!(self.manner, Manner::Tunnel(_)) && step.version == "HTTP/1.1",
            };
            if step.method == "CONNECT" {
                let target = std::mem::replace(&mut request.target, format!("{}:443", self.id(i)));
                request.fields.push((CONNECT_TARGET.to_owned(), target));
            }
            request
        };
        self.steps.iter().enumerate().map(make).collect()
    }
}

/// A proxy and the backend that only it uses.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The proxy, if it is one whose log is read.
    pub proxy: Option<&'a Proxy>,
    /// Where to connect.
    pub front: &'a Front,
    /// The backend behind it.
    pub backend: &'a Backend,
}

/// Everything that was seen of one exchange on one side.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Per step, as far as it got.
    pub replies: Vec<Reply>,
    /// Bytes after the last reply: must be none.
    pub rest: Vec<u8>,
    /// How the connection ended.
    pub rest_ending: Option<Ending>,
    /// The echo of a tunnel.
    pub tunnel: Option<Checked>,
    /// Per distinct target, what the backend received.
    pub seen: Vec<Vec<Seen>>,
    /// Access-log lines in order.
    pub log: Vec<LogLine>,
    /// What went wrong on the client's side of the connection.
    pub error: Option<String>,
}

/// Sends the exchange through one side.
pub fn observe(exchange: &Exchange, side: Side<'_>) -> Result<Observation, LabError> {
    let requests = exchange.requests();
    let mut it = Observation {
        replies: Vec::new(),
        rest: Vec::new(),
        rest_ending: None,
        tunnel: None,
        seen: Vec::new(),
        log: Vec::new(),
        error: None,
    };
    let spoken = converse(exchange, &requests, side, &mut it);
    match spoken {
        Ok(()) => {}
        // A broken peer may break the client's writing or its parsing too; what it had read is judged.
        Err(error) if exchange.faulty => it.error = Some(error.to_string()),
        Err(error) => return Err(error),
    }
    if exchange.faulty {
        return Ok(it);
    }
    let count = requests.len();
    for step in 0..if exchange.one_target { 1 } else { count } {
        let id = exchange.id(step);
        let answered_by_backend = it.replies.get(step).is_some_and(from_backend) || it.tunnel.is_some();
        if answered_by_backend {
            side.backend.wait_seen(&id, 1, RECORDED)?;
        }
        it.seen.push(side.backend.seen(&id));
        if let Some(proxy) = side.proxy {
            it.log.extend(proxy.logged(&id, if exchange.one_target { count } else { 1 })?);
        }
    }
    Ok(it)
}

fn converse(exchange: &Exchange, requests: &[Request], side: Side<'_>, it: &mut Observation) -> Result<(), LabError> {
    let mut client = Connection::open(side.front, &exchange.pace)?;
    if exchange.manner == Manner::Pipelined {
        let mut wire = Vec::new();
        for request in requests {
            wire.extend_from_slice(&request.head());
            wire.extend_from_slice(&request.body());
        }
        client.send_raw(&wire)?;
    }
    for (i, (request, step)) in requests.iter().zip(&exchange.steps).enumerate() {
        if exchange.manner != Manner::Pipelined {
            client.send(request)?;
        }
        if exchange.manner == Manner::Held {
            // Not every configuration buffers that much: then the client goes on, as it must.
            let _ = side.backend.wait_seen(&exchange.id(i), 1, HELD);
        }
        let reply = client.receive(request, step.expect())?;
        let ending = reply.ending;
        it.replies.push(reply);
        let status = it.replies.last().map_or(0, |reply| reply.head.status());
        let switched = status == 101 || (request.method == "CONNECT" && status == 200);
        if let (Manner::Tunnel(len), true) = (exchange.manner, switched) {
            it.tunnel = Some(client.echo(len)?);
        }
        if ending != Ending::Complete {
            it.rest_ending = Some(ending);
            return Ok(());
        }
    }
    let (rest, ending) = client.rest();
    it.rest = rest;
    it.rest_ending = Some(ending);
    Ok(())
}

/// Whether the answer came from the test backend and not from the proxy itself.
fn from_backend(reply: &Reply) -> bool {
    reply.head.field("etag").is_some()
}

/// What is wrong with one side by itself: wrong bytes, wrong lengths, wrong figures. Empty: nothing.
pub fn judge(exchange: &Exchange, it: &Observation) -> Vec<String> {
    let mut wrong = Vec::new();
    for (i, reply) in it.replies.iter().enumerate() {
        let step = &exchange.steps[i];
        let mut say = |what: String| wrong.push(format!("{} step {i}: {what}", exchange.name));
        if from_backend(reply) {
            if let Some(at) = reply.body.first_wrong {
                say(format!("byte {at} of the body of {} is wrong", reply.body.len));
            }
            let want = step.body_len(reply.head.status());
            if reply.body.len > want || (!exchange.lenient() && reply.body.len != want) {
                say(format!("the body has {} bytes instead of {want}", reply.body.len));
            }
        }
        if exchange.lenient() {
            continue;
        }
        if !from_backend(reply) && it.tunnel.is_none() {
            say(format!("status {} came from the proxy itself", reply.head.status()));
        }
        if !matches!(reply.ending, Ending::Complete | Ending::Closed) {
            say(format!("ended {:?} after {} bytes", reply.ending, reply.wire_bytes));
        }
    }
    let mut say = |what: String| wrong.push(format!("{}: {what}", exchange.name));
    if exchange.faulty {
        if let Some(at) = it.tunnel.as_ref().and_then(|echo| echo.first_wrong) {
            say(format!("byte {at} of the echo is wrong"));
        }
        return wrong;
    }
    if it.replies.len() != exchange.steps.len() {
        say(format!("{} of {} replies", it.replies.len(), exchange.steps.len()));
    }
    if !it.rest.is_empty() {
        say(format!("{} bytes after the last reply", it.rest.len()));
    }
    if let (Manner::Tunnel(len), Some(echo)) = (exchange.manner, &it.tunnel)
        && (echo.len != len || echo.first_wrong.is_some())
    {
        say(format!("the echo has {} of {len} bytes, first wrong {:?}", echo.len, echo.first_wrong));
    }
    judge_backend(exchange, it, &mut say);
    judge_log(exchange, it, &mut say);
    wrong
}

fn judge_backend(exchange: &Exchange, it: &Observation, say: &mut impl FnMut(String)) {
    for (step, seen) in it.seen.iter().enumerate().filter_map(|(i, all)| Some((i, all.first()?))) {
        if let Some(at) = seen.upload.first_wrong {
            say(format!("step {step}: byte {at} of the upload is wrong"));
        }
        let want = match (exchange.steps[step].upload, exchange.manner) {
            (_, Manner::Tunnel(len)) => len,
            (Upload::None, _) => 0,
            (Upload::Length(len) | Upload::Chunked(len, _), _) => len,
        };
        if seen.upload.len != want && !exchange.any_status {
            say(format!("step {step}: the upload has {} bytes instead of {want}", seen.upload.len));
        }
    }
}

/// The access log's figures must be what the client and the backend counted.
fn judge_log(exchange: &Exchange, it: &Observation, say: &mut impl FnMut(String)) {
    if exchange.any_status || it.tunnel.is_some() {
        return;
    }
    // HAProxy does not count chunk framing; there the figures of the twins are compared only.
    let counts_wire = |line: &LogLine| line.body_sent.is_some();
    for (line, reply) in it.log.iter().zip(&it.replies).filter(|(line, _)| counts_wire(line)) {
        if line.sent != reply.wire_bytes && reply.interim.is_empty() {
            say(format!("{}: the log says {} bytes sent, the client got {}", line.id, line.sent, reply.wire_bytes));
        }
    }
    for (line, seen) in it.log.iter().zip(&it.seen).filter(|(line, _)| counts_wire(line)) {
        let Some(seen) = seen.first() else { continue };
        for (what, logged, counted) in
            [("received from", line.upstream_received, seen.sent), ("sent to", line.upstream_sent, seen.received)]
        {
            if logged.is_some_and(|logged| logged != counted) {
                say(format!("{}: the log says {logged:?} bytes {what} the backend, which counted {counted}", line.id));
            }
        }
    }
}

/// Everything in which two sides of an exchange differ. Empty: nothing.
pub fn differences(exchange: &Exchange, a: &Observation, b: &Observation) -> Vec<String> {
    let mut found = Vec::new();
    if exchange.faulty {
        return found;
    }
    let name = &exchange.name;
    differ(&mut found, name, "number of replies", &a.replies.len(), &b.replies.len());
    for (i, (a, b)) in a.replies.iter().zip(&b.replies).enumerate() {
        let at = format!("{name} step {i}");
        let heads = |all: &[Head]| all.iter().map(stable).collect::<Vec<_>>();
        differ(&mut found, &at, "interim responses", &heads(&a.interim), &heads(&b.interim));
        differ(&mut found, &at, "head", &stable(&a.head), &stable(&b.head));
        differ(&mut found, &at, "framing", &a.framing, &b.framing);
        differ(&mut found, &at, "body", &a.body, &b.body);
        differ(&mut found, &at, "trailers", &a.trailers, &b.trailers);
        differ(&mut found, &at, "ending", &a.ending, &b.ending);
    }
    differ(&mut found, name, "bytes after the last reply", &a.rest, &b.rest);
    differ(&mut found, name, "end of the connection", &a.rest_ending, &b.rest_ending);
    differ(&mut found, name, "echo", &a.tunnel, &b.tunnel);
    differ(&mut found, name, "requests at the backend", &a.seen.len(), &b.seen.len());
    for (i, (a, b)) in a.seen.iter().zip(&b.seen).enumerate() {
        differ(&mut found, &format!("{name} step {i}"), "what the backend received", &received(a), &received(b));
    }
    differ(&mut found, name, "access-log lines", &a.log.len(), &b.log.len());
    // Chunk sizes are the proxy's choice and follow its reads; the wire's bytes vary between two plain runs as well.
    // `judge` has compared them with what was counted at both ends.
    let down = a.replies.iter().any(|reply| reply.framing == Framing::Chunked);
    let up = a.seen.iter().flatten().any(|seen| seen.framing == Framing::Chunked);
    for (a, b) in a.log.iter().zip(&b.log) {
        differ(&mut found, name, "access log", &figures(a, down, up), &figures(b, down, up));
    }
    found
}

fn differ<T: PartialEq + std::fmt::Debug>(found: &mut Vec<String>, at: &str, what: &str, a: &T, b: &T) {
    if a != b {
        found.push(format!("{at}: {what} differs\n    a: {}\n    b: {}", short(a), short(b)));
    }
}

fn short(value: &impl std::fmt::Debug) -> String {
    let mut text = format!("{value:?}");
    if text.len() > 700 {
        text.truncate((0..=700).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
        text.push('…');
    }
    text
}

/// The head without the clock.
fn stable(head: &Head) -> String {
    let text = String::from_utf8_lossy(&head.raw).into_owned();
    let line = |line: &str| match line.to_ascii_lowercase().starts_with("date:") {
        true => "Date: <clock>\r\n".to_owned(),
        false => line.to_owned(),
    };
    text.split_inclusive("\r\n").map(line).collect()
}

fn received(seen: &[Seen]) -> Vec<(String, Framing, Checked, bool, Vec<u8>)> {
    let one = |it: &Seen| {
        // Request framing may be re-framed, but then by both.
        let head = String::from_utf8_lossy(&it.head.raw).into_owned();
        (head, it.framing, it.upload.clone(), it.upload_complete, it.trailers.clone())
    };
    seen.iter().map(one).collect()
}

fn figures(line: &LogLine, chunked_down: bool, chunked_up: bool) -> LogLine {
    let mut line = line.clone();
    if chunked_down && line.body_sent.is_some() {
        line.sent = 0;
        line.body_sent = None;
    }
    if chunked_up {
        line.upstream_sent = None;
    }
    line
}
