//! What the misbehaving backend shall do with one request, carried in the request's target.

use std::fmt::Write as _;

/// Delimiter of the response body that the backend uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delimit {
    /// `Content-Length`.
    Length,
    /// Chunked, with chunks of so many bytes.
    Chunked(usize),
    /// Closes the connection at the end.
    Close,
}

/// How the response ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As announced.
    Complete,
    /// FIN after so many bytes of the response, head included, or of the echo of a tunnel.
    Fin(u64),
    /// RST after so many bytes of the response, head included, or of the echo of a tunnel.
    Reset(u64),
}

impl End {
    /// The number of bytes after which it ends; without bound where it ends as announced.
    pub fn at(self) -> u64 {
        match self {
            Self::Complete => u64::MAX,
            Self::Fin(at) | Self::Reset(at) => at,
        }
    }
}

/// One response. The default is `200` with no body, `Content-Length: 0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Status code.
    pub status: u16,
    /// Body bytes.
    pub len: u64,
    /// Seed of the body's content.
    pub seed: u64,
    /// How the body is delimited.
    pub delimit: Delimit,
    /// Offsets of the response's bytes, head included, before which the backend pauses for `pause_us`.
    pub splits: Vec<u64>,
    /// Microseconds of each pause: long enough for the proxy to run.
    pub pause_us: u64,
    /// How it ends.
    pub end: End,
    /// An interim response sent first (103), 0: none.
    pub interim: u16,
    /// Answers as HTTP/1.0.
    pub http10: bool,
    /// Adds a trailer section to a chunked body and an extension to each chunk.
    pub trailers: bool,
    /// Answers before it has read the request's body.
    pub early: bool,
    /// Closes the connection after the response although it was delimited otherwise.
    pub close: bool,
    /// Microseconds before it begins to read the request's body: the proxy is left with what the kernel does not take.
    pub upload_pause_us: u64,
    /// How reading the request's body ends: FIN or RST after so many bytes of it, framing included.
    pub upload_end: End,
    /// Pads the head with a field of so many bytes, to move the body against the window.
    pub pad: usize,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            status: 200,
            len: 0,
            seed: 1,
            delimit: Delimit::Length,
            splits: Vec::new(),
            pause_us: 2000,
            end: End::Complete,
            interim: 0,
            http10: false,
            trailers: false,
            early: false,
            close: false,
            upload_pause_us: 0,
            upload_end: End::Complete,
            pad: 0,
        }
    }
}

impl Behaviour {
    /// A body of `len` bytes with the given delimiter.
    pub fn body(len: u64, delimit: Delimit) -> Self {
        Self { len, delimit, seed: len.wrapping_mul(0x9e37).wrapping_add(11), ..Self::default() }
    }

    /// The request target that makes the backend do this; `id` names the exchange in its records and in access logs.
    pub fn target(&self, id: &str) -> String {
        let mut to = format!("/x/{id}?status={}&len={}&seed={}", self.status, self.len, self.seed);
        match self.delimit {
            Delimit::Length => {}
            Delimit::Chunked(size) => push(&mut to, "chunked", size),
            Delimit::Close => push(&mut to, "until_close", 1),
        }
        if !self.splits.is_empty() {
            let list: Vec<String> = self.splits.iter().map(ToString::to_string).collect();
            push(&mut to, "splits", list.join(","));
            push(&mut to, "pause", self.pause_us);
        }
        for (end, fin, rst) in [(self.end, "fin", "rst"), (self.upload_end, "upload_fin", "upload_rst")] {
            match end {
                End::Complete => {}
                End::Fin(at) => push(&mut to, fin, at),
                End::Reset(at) => push(&mut to, rst, at),
            }
        }
        if self.upload_pause_us > 0 {
            push(&mut to, "upload_pause", self.upload_pause_us);
        }
        let flags =
            [("http10", self.http10), ("trailers", self.trailers), ("early", self.early), ("close", self.close)];
        for (name, _) in flags.iter().filter(|(_, on)| *on) {
            push(&mut to, name, 1);
        }
        if self.interim > 0 {
            push(&mut to, "interim", self.interim);
        }
        if self.pad > 0 {
            push(&mut to, "pad", self.pad);
        }
        to
    }

    /// The exchange's name and behaviour in a target. None if it is not one of ours.
    pub fn parse(target: &str) -> Option<(String, Self)> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let id = path.strip_prefix("/x/")?.to_owned();
        let mut it = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let number = value.parse::<u64>().ok();
            match name {
                "status" => it.status = number?.try_into().ok()?,
                "len" => it.len = number?,
                "seed" => it.seed = number?,
                "chunked" => it.delimit = Delimit::Chunked(usize::try_from(number?).ok()?.max(1)),
                "until_close" => it.delimit = Delimit::Close,
                "splits" => it.splits = value.split(',').filter_map(|n| n.parse().ok()).collect(),
                "pause" => it.pause_us = number?,
                "fin" => it.end = End::Fin(number?),
                "rst" => it.end = End::Reset(number?),
                "upload_fin" => it.upload_end = End::Fin(number?),
                "upload_rst" => it.upload_end = End::Reset(number?),
                "upload_pause" => it.upload_pause_us = number?,
                "http10" => it.http10 = true,
                "trailers" => it.trailers = true,
                "early" => it.early = true,
                "close" => it.close = true,
                "interim" => it.interim = number?.try_into().ok()?,
                "pad" => it.pad = usize::try_from(number?).ok()?,
                _ => return None,
            }
        }
        Some((id, it))
    }
}

fn push(to: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a String cannot fail.
    let _ = write!(to, "&{name}={value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_carries_everything() {
        let all = Behaviour {
            status: 206,
            len: 99,
            seed: 5,
            delimit: Delimit::Chunked(7),
            splits: vec![1, 50],
            pause_us: 9,
            end: End::Reset(40),
            interim: 103,
            http10: true,
            trailers: true,
            early: true,
            close: true,
            upload_pause_us: 8,
            upload_end: End::Fin(41),
            pad: 300,
        };
        let other = Behaviour { end: End::Fin(3), upload_end: End::Reset(4), ..Behaviour::default() };
        for it in [all, Behaviour { delimit: Delimit::Close, ..other }] {
            assert_eq!(Behaviour::parse(&it.target("name-1")), Some(("name-1".to_owned(), it)));
        }
        assert_eq!(Behaviour::parse("/other"), None);
    }
}
