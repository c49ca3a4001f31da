//! Native code and the object's own code must agree on every input.

use proptest::prelude::*;

use super::*;
use crate::abi::ud_cut;
use crate::engine::Interpreter;
use crate::object;
use crate::program::Program;

const ALL: [Leaf; 6] = [Leaf::Word, Leaf::Text, Leaf::Token, Leaf::Digit, Leaf::Number, Leaf::Fields];

fn bytecode() -> Interpreter {
    Interpreter::new(object::read(Program::shipped_object("http1").unwrap()).unwrap(), false)
}

fn window(bytes: &[u8], len: u32) -> ud_cut {
    let mut cut =
        ud_cut { window: [b'x'; WINDOW], len, direction: 0, role: 0, verdict: 0, span: 0, state: [0; 8], then: 0 };
    cut.window[..bytes.len()].copy_from_slice(bytes);
    cut
}

/// Heads, near misses of heads, and anything.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        8 => "[A-Za-z0-9-]{1,18}: {0,2}[ -~]{0,40}\r\n",
        2 => "[cCtTuU][a-zA-Z-]{5,20}:[ 0-9a-z]{0,12}\r\n",
        // Names and lines about as long as a step.
        1 => "[a-zA-Z-]{29,34}:[ -~]{0,34}\r\n",
        1 => "[!-~]{0,6}[ :\t]{0,2}[ -~\u{80}]{0,9}[\r\n\u{0}\u{7f}]{0,3}",
        1 => "[0-9a-fA-FxX+]{0,16}",
        1 => Just("\r\n".to_string()),
    ];
    let lines = prop::collection::vec(line, 0..14).prop_map(|lines| lines.concat().into_bytes());
    prop_oneof![4 => lines, 1 => prop::collection::vec(any::<u8>(), 0..WINDOW)].prop_map(|mut bytes| {
        bytes.truncate(WINDOW);
        bytes
    })
}

fn agree(interpreter: &Interpreter, leaf: Leaf, cut: &mut ud_cut, a: u64, b: u64) -> Result<(), TestCaseError> {
    let entry = interpreter.leaf(leaf).expect("http1 uses every leaf");
    let expected = interpreter.call(cut, entry, [a, b]).expect("the leaf ends");
    prop_assert_eq!(leaf.scalar()(cut, a, b), expected, "{:?}({}, {:#x}) scalar", leaf, a, b);
    #[cfg(target_arch = "x86_64")]
    if scan::has_avx2() {
        prop_assert_eq!(leaf.avx2()(cut, a, b), expected, "{:?}({}, {:#x}) avx2", leaf, a, b);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn native_code_does_what_the_object_does(
        bytes in bytes(),
        from in prop_oneof![8 => 0..300u64, 1 => any::<u64>()],
        second in prop_oneof![Just(10u64), Just(16), Just(0x0775_1174_0e63), any::<u64>()],
        beyond in prop_oneof![9 => Just(0u32), 1 => any::<u32>()],
        // What follows the valid bytes may look as if it belonged to them.
        hidden in prop_oneof![4 => Just(0u32), 6 => 1..60u32],
    ) {
        let interpreter = bytecode();
        let mut cut = window(&bytes, (bytes.len() as u32).saturating_add(beyond).saturating_sub(hidden));
        for leaf in ALL {
            agree(&interpreter, leaf, &mut cut, from, second)?;
            agree(&interpreter, leaf, &mut cut, 0, second)?;
        }
    }
}

#[test]
fn every_byte_has_one_class() {
    let interpreter = bytecode();
    for byte in 0..=255u8 {
        for at in [0, 31, 32, 255usize] {
            let mut bytes = [b'a'; WINDOW];
            bytes[at] = byte;
            for leaf in [Leaf::Word, Leaf::Text, Leaf::Token, Leaf::Digit] {
                agree(&interpreter, leaf, &mut window(&bytes, 256), at as u64, 0).unwrap();
                agree(&interpreter, leaf, &mut window(&bytes, 256), 0, 0).unwrap();
            }
        }
    }
}
