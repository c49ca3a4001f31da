//! What is served under `/bytes/N`: N bytes that anybody can make again.

use std::sync::OnceLock;

/// A prime, so that no block of the network falls on it.
const PERIOD: usize = 65_521;

/// The content, from its byte `offset` on: at most a period, and at least one byte.
pub fn content(offset: u64) -> &'static [u8] {
    static BLOCK: OnceLock<Vec<u8>> = OnceLock::new();
    let block = BLOCK.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..PERIOD).map(|_| next()).collect()
    });
    &block[(offset % PERIOD as u64) as usize..]
}

/// The size in a path of the form `/bytes/N`, with anything behind it that begins with `/` or `?`.
pub fn size(path: &str) -> Option<u64> {
    path.strip_prefix("/bytes/")?.split(['/', '?']).next()?.parse().ok().filter(|size| *size <= 1 << 40)
}

/// True if `bytes` are the content at `offset`.
pub fn is_content(mut bytes: &[u8], mut offset: u64) -> bool {
    while !bytes.is_empty() {
        let expected = content(offset);
        let length = expected.len().min(bytes.len());
        if bytes[..length] != expected[..length] {
            return false;
        }
        bytes = &bytes[length..];
        offset += length as u64;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_the_same_wherever_it_begins() {
        let whole: Vec<u8> = content(0).iter().chain(content(0)).copied().collect();
        assert!(is_content(&whole[100..], 100));
        assert!(!is_content(&whole[100..], 101));
        assert_eq!(size("/bytes/12/x?y"), Some(12));
        assert_eq!(size("/bytes/x"), None);
    }
}
