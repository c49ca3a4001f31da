//! One request and its response over ordinary sockets.

use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use underdeck_mesh_policy::form::HeaderEdits;

use crate::client::{Client, Writer};
use crate::message::{self, Body, Follow, Read};

const PIECE: usize = 128 * 1024;

/// Bytes that were read and not taken yet.
pub(crate) struct Input {
    half: OwnedReadHalf,
    pub(crate) bytes: Vec<u8>,
}

impl Input {
    pub(crate) fn new(half: OwnedReadHalf) -> Self {
        Self { half, bytes: Vec::new() }
    }

    /// Reads more; false: there is no more.
    pub(crate) async fn fill(&mut self) -> io::Result<bool> {
        self.bytes.reserve(PIECE.saturating_sub(self.bytes.len()).max(4096));
        Ok(self.half.read_buf(&mut self.bytes).await? > 0)
    }

    /// Whether there is nothing more to come, as far as is known now.
    pub(crate) async fn has_ended(&mut self) -> bool {
        tokio::select! {
            biased;
            more = self.fill() => !matches!(more, Ok(true)),
            () = std::future::ready(()) => false,
        }
    }

    /// Waits until the other side has reset the connection, which nobody else sees who does not read.
    async fn is_reset(&self) {
        while self.half.ready(Interest::ERROR).await.is_ok_and(|ready| !ready.is_error()) {}
    }

    /// Ends the connection with a reset. Closing it would not do: tokio shuts the half that writes down before, and until
    /// the reset comes, that looks like an end in order.
    pub(crate) fn abort(&self) {
        let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
        let len = size_of::<libc::sockaddr>() as libc::socklen_t;
        // SAFETY: one structure, which outlives the call.
        unsafe { libc::connect(self.half.as_ref().as_raw_fd(), &raw const nowhere, len) };
    }

    /// Reads to the end, for nothing.
    pub(crate) async fn drain(&mut self) {
        while matches!(self.fill().await, Ok(true)) {
            self.bytes.clear();
        }
    }

    pub(crate) fn take(&mut self, count: usize) {
        if count == self.bytes.len() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..count);
        }
    }
}

/// A connection to an endpoint or to Envoy, used by the agent itself.
pub(crate) struct Link {
    pub(crate) input: Input,
    pub(crate) output: OwnedWriteHalf,
}

impl Link {
    pub(crate) fn new(stream: tokio::net::TcpStream) -> Self {
        let (read, output) = stream.into_split();
        Self { input: Input::new(read), output }
    }
}

/// How an exchange ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Both are complete; the link can be used again.
    Kept,
    /// Both are complete; the link cannot be used again.
    Closed,
    /// The client must see the end of its connection now.
    Over,
}

/// Why a response was not moved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Nothing of it went to the client.
    BeforeHead,
    /// A part of it went to the client.
    InBody,
    /// The client is gone.
    Client,
    /// What the client sends makes no sense.
    Request,
}

/// Sends a request, whose head was taken from `from` already, and moves the response. `edits`: None if Envoy answers,
/// whose word on the end of the connection holds.
pub(crate) async fn exchange(
    from: &mut Input,
    client: &Client,
    link: &mut Link,
    head: &[u8],
    body: Body,
    no_body: bool,
    edits: Option<&[HeaderEdits]>,
) -> Result<End, Broken> {
    let is_sent = Cell::new(false);
    let (input, output) = (&mut link.input, &mut link.output);
    let request = async {
        send_request(from, client, output, head, body).await?;
        is_sent.set(true);
        Ok::<_, Broken>(())
    };
    let response = async {
        let mut writer = client.writer().await;
        let before_last = |_, writer: &Writer<'_>, count| {
            if is_sent.get() {
                client.request_is_done();
            }
            writer.announce_last(count);
        };
        relay(input, &mut writer, no_body, edits, before_last).await
    };
    let mut response = std::pin::pin!(response);
    // None: all of the request is sent, or the endpoint takes no more of it.
    let answered = tokio::select! {
        biased;
        sent = request => {
            if let Err(error @ (Broken::Client | Broken::Request)) = sent {
                return Err(error);
            }
            None
        }
        done = &mut response => Some(done?),
    };
    let kept = match answered {
        Some(kept) => kept,
        None => tokio::select! {
            biased;
            done = response => done?,
            () = from.is_reset() => return Err(Broken::Client),
        },
    };
    // Answered before the whole question was asked: nobody knows where the next one begins.
    if !is_sent.get() {
        return Ok(End::Over);
    }
    Ok(match kept {
        Moved::Kept => End::Kept,
        Moved::Closed if edits.is_none() => End::Over,
        Moved::Closed => End::Closed,
        Moved::UntilClose => End::Over,
    })
}

/// An error of the endpoint is no error here: it may have answered.
async fn send_request(
    from: &mut Input,
    client: &Client,
    output: &mut OwnedWriteHalf,
    head: &[u8],
    body: Body,
) -> Result<(), Broken> {
    let mut follow = Follow::new(body);
    let mut first = head.to_vec();
    loop {
        let taken = follow.copy(&from.bytes, &mut first).ok_or(Broken::Request)?;
        from.take(taken);
        client.took(taken);
        let written = tokio::select! {
            biased;
            written = output.write_all(&first) => written,
            () = from.is_reset() => return Err(Broken::Client),
        };
        if written.is_err() {
            return Err(Broken::BeforeHead);
        }
        first.clear();
        if follow.is_done() {
            return Ok(());
        }
        if !matches!(from.fill().await, Ok(true)) {
            return Err(Broken::Client);
        }
    }
}

/// How a response ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// The connection it came from can be used again.
    Kept,
    /// It cannot.
    Closed,
    /// The client must see the end of its connection.
    UntilClose,
}

/// Moves a response. `edits` are as for [`exchange`]. `before_last` is called before the client can know that it is complete, with whether the
/// connection that it came from can be used again, and how many bytes are left to send: it announces them.
pub(crate) async fn relay(
    from: &mut Input,
    to: &mut Writer<'_>,
    no_body: bool,
    edits: Option<&[HeaderEdits]>,
    before_last: impl FnOnce(bool, &Writer<'_>, usize),
) -> Result<Moved, Broken> {
    let (head, mut out) = loop {
        match message::response(&from.bytes, no_body) {
            Read::More => {
                if !matches!(from.fill().await, Ok(true)) {
                    return Err(Broken::BeforeHead);
                }
            }
            Read::Head(head) if head.status == 101 => return Err(Broken::BeforeHead),
            Read::Odd => return Err(Broken::BeforeHead),
            Read::Head(head) => {
                let interim = head.status < 200;
                let ends = !interim && (head.body == Body::UntilClose || (edits.is_none() && head.close));
                let out = head.write(if interim { &[] } else { edits.unwrap_or_default() }, ends);
                from.take(head.len);
                if !interim {
                    break (head, out);
                }
                to.send(&out).await.map_err(|_| Broken::Client)?;
            }
        }
    };
    if head.body == Body::UntilClose {
        to.begin_until_close();
    }
    let mut follow = Follow::new(head.body);
    loop {
        let taken = follow.take(&from.bytes).ok_or(Broken::InBody)?;
        if follow.is_done() {
            out.extend_from_slice(&from.bytes[..taken]);
            from.take(taken);
            let kept = !head.close && from.bytes.is_empty();
            before_last(kept, to, out.len());
            to.send(&out).await.map_err(|_| Broken::Client)?;
            return Ok(if kept { Moved::Kept } else { Moved::Closed });
        }
        if out.is_empty() {
            to.send(&from.bytes[..taken]).await.map_err(|_| Broken::Client)?;
        } else {
            out.extend_from_slice(&from.bytes[..taken]);
            to.send(&out).await.map_err(|_| Broken::Client)?;
            out.clear();
        }
        from.take(taken);
        match from.fill().await {
            Ok(true) => {}
            Ok(false) if head.body == Body::UntilClose => {
                to.end_until_close();
                return Ok(Moved::UntilClose);
            }
            Ok(false) | Err(_) => return Err(Broken::InBody),
        }
    }
}

/// Everything from now on, both ways, until both sides are done.
pub(crate) async fn tunnel(from: &mut Input, client: &Client, link: &mut Link) -> io::Result<()> {
    let (input, output) = (&mut link.input, &mut link.output);
    let up = async {
        output.write_all(&from.bytes).await?;
        from.bytes.clear();
        tokio::io::copy(&mut from.half, output).await?;
        output.shutdown().await
    };
    let down = async {
        let mut writer = client.writer().await;
        writer.begin_until_close();
        loop {
            writer.send(&input.bytes).await?;
            input.bytes.clear();
            if !input.fill().await? {
                return writer.shutdown().await;
            }
        }
    };
    tokio::try_join!(up, down).map(drop)
}
