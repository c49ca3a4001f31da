//! The codec against all messages and against garbage.

use proptest::prelude::*;
use underdeck_handoff_control::message::{Body, MAX_LENGTH, Message, MessageError, Refusal, VERSION};

fn body() -> impl Strategy<Value = Body> {
    let address = (any::<bool>(), any::<[u8; 16]>(), any::<u16>()).prop_map(|(v6, ip, port)| {
        let v4: [u8; 4] = ip[..4].try_into().unwrap();
        if v6 { (ip, port).into() } else { (v4, port).into() }
    });
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..2000).prop_map(Body::BeginOffload),
        proptest::collection::vec(any::<u8>(), 0..2000).prop_map(Body::ServerDone),
        (address, any::<u64>(), any::<u64>()).prop_map(|(local, thaw_ns, rule_ns)| Body::ServerReady {
            local,
            thaw_ns,
            rule_ns
        }),
        Just(Body::LbReady),
        Just(Body::EndOffload),
        prop_oneof![Just(Refusal::Snapshot), Just(Refusal::Full), Just(Refusal::Transfer), Just(Refusal::Steering)]
            .prop_map(Body::Refused),
        any::<u32>().prop_map(Body::Ping),
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
    fn garbage_is_refused_or_means_itself(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
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
