//! Broken, cut, newer and random bytes: a clear error, never a panic, never more memory than the bytes themselves.

mod common;

use std::io::Write;
use std::sync::OnceLock;

use common::{Cable, eventually, queued};
use proptest::prelude::*;
use underdeck_handoff_tcp::{DecodeError, Snapshot, freeze};

/// The encoding of a connection with bytes in it.
fn encoding() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let cable = Cable::new();
        let (mut client, server) = cable.connect(true);
        client.write_all(b"unread").unwrap();
        eventually("it has arrived", || queued(&server).0 == 6);
        freeze(server.into(), b"an application's blob").unwrap().snapshot().encode()
    })
}

#[test]
fn a_newer_version_says_so() {
    let mut bytes = encoding().to_vec();
    bytes[4..6].copy_from_slice(&2u16.to_be_bytes());
    let error = Snapshot::decode(&bytes).unwrap_err();
    assert_eq!(error, DecodeError::Newer { found: 2, supported: 1 });
    assert_eq!(error.to_string(), "the snapshot has version 2, and this program reads version 1: upgrade it");
}

#[test]
fn every_cut_is_seen() {
    let bytes = encoding();
    assert!(Snapshot::decode(bytes).is_ok());
    for length in 0..bytes.len() {
        assert!(Snapshot::decode(&bytes[..length]).is_err(), "cut after {length} bytes");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert_eq!(Snapshot::decode(&longer).unwrap_err(), DecodeError::Trailing(1));
    assert_eq!(Snapshot::decode(b"GET / HTTP/1.1\r\n").unwrap_err(), DecodeError::Magic);
}

/// A snapshot whose lengths are all changed to the largest possible must not make the decoder reserve memory.
#[test]
fn a_length_is_checked_before_it_is_believed() {
    let bytes = encoding();
    for at in 0..bytes.len() - 4 {
        let mut changed = bytes.to_vec();
        changed[at..at + 4].fill(0xff);
        let _ = Snapshot::decode(&changed);
    }
}

#[test]
fn debug_output_has_no_payload() {
    let text = format!("{:?}", Snapshot::decode(encoding()).unwrap());
    assert!(!text.contains("unread\"") && !text.contains("117, 110") && !text.contains("blob of"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Snapshot::decode(&bytes);
    }

    #[test]
    fn random_fields_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut framed = b"UDTS\0\x01\0\0".to_vec();
        framed.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        framed.extend_from_slice(&bytes);
        let _ = Snapshot::decode(&framed);
    }

    /// What is accepted is written again as it was read.
    #[test]
    fn a_changed_byte_is_refused_or_kept(at in 0usize..400, value in any::<u8>()) {
        let mut bytes = encoding().to_vec();
        let at = at % bytes.len();
        bytes[at] = value;
        if let Ok(snapshot) = Snapshot::decode(&bytes) {
            prop_assert_eq!(snapshot.encode(), bytes);
        }
    }
}
