//! The codec against all messages and against garbage.

use std::net::SocketAddr;

use proptest::prelude::*;
use underdeck_handoff_control::message::{Body, Done, MAX_LENGTH, Message, MessageError, Ping, Refusal, VERSION};

fn body() -> impl Strategy<Value = Body> {
    let address = || {
        (any::<bool>(), any::<[u8; 16]>(), any::<u16>()).prop_map(|(v6, ip, port)| -> SocketAddr {
            let v4: [u8; 4] = ip[..4].try_into().unwrap();
            if v6 { (ip, port).into() } else { (v4, port).into() }
        })
    };
    let bytes = || proptest::collection::vec(any::<u8>(), 0..2000);
    prop_oneof![
        bytes().prop_map(Body::BeginOffload),
        (any::<u32>(), address(), address(), address(), bytes()).prop_map(|(generation, at, local, peer, snapshot)| {
            Body::ServerDone(Done { generation, at, local, peer, snapshot })
        }),
        (address(), any::<u64>(), any::<u64>()).prop_map(|(local, thaw_ns, rule_ns)| Body::ServerReady {
            local,
            thaw_ns,
            rule_ns
        }),
        Just(Body::LbReady),
        Just(Body::Taken),
        Just(Body::EndOffload),
        proptest::sample::select(vec![
            Refusal::Snapshot,
            Refusal::Full,
            Refusal::Transfer,
            Refusal::Steering,
            Refusal::NotTaken
        ])
        .prop_map(Body::Refused),
        any::<u32>().prop_map(Body::Abort),
        (any::<u32>(), proptest::collection::vec("[a-z0-9]{0,60}", 0..9))
            .prop_map(|(mean, absent)| Body::Ping(Ping { mean, absent })),
        any::<u32>().prop_map(Body::Pong),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(transfer: u64, body in body()) {
        let message = Message { transfer, body };
        let bytes = message.encode();
        prop_assert_eq!(&Message::read(&mut bytes.as_slice()).unwrap(), &message);
        for cut in [0, 3, 4, bytes.len() - 1] {
            prop_assert!(Message::read(&mut &bytes[..cut]).is_err());
        }
    }

    #[test]
    fn garbage_is_refused_or_means_itself(bytes in proptest::collection::vec(any::<u8>(), 0..64), kind in 0u8..12) {
        // Most of what follows a right head is looked at.
        let bytes = [&[VERSION, kind][..], &bytes].concat();
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(&message.encode()[4..], &bytes[..]);
        }
    }
}

#[test]
fn what_cannot_be_a_message_is_named() {
    assert_eq!(Message::decode(&[VERSION; 9]), Err(MessageError::Short(9)));
    assert_eq!(Message::decode(&[VERSION + 1; 10]), Err(MessageError::Version(VERSION + 1)));
    assert_eq!(Message::decode(&[VERSION, 99, 0, 0, 0, 0, 0, 0, 0, 0]), Err(MessageError::Kind(99)));
    let bytes = [VERSION, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(Message::decode(&bytes), Err(MessageError::Body { kind: 3, length: 1 }));
    let claimed = ((MAX_LENGTH + 1) as u32).to_be_bytes();
    let error = Message::read(&mut claimed.as_slice()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}
