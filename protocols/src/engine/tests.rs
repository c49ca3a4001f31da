//! Machine code and interpreter compute the same, instruction by instruction.

use proptest::prelude::*;

use super::*;
use crate::abi::WINDOW;

fn insn(op: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn { op, dst, src, off, imm }
}

/// Arithmetic on r0 to r9, or a jump over the next instruction.
fn step() -> impl Strategy<Value = Insn> {
    let imm = prop_oneof![Just(0), Just(1), Just(-1), Just(i32::MIN), any::<i32>()];
    let alu = (0..13u8, any::<bool>(), any::<bool>(), 0..10u8, 0..10u8, imm.clone()).prop_map(
        |(operation, wide, by_register, dst, src, imm)| {
            let class = if wide { opcode::class::ALU64 } else { opcode::class::ALU };
            let shift = matches!(operation << 4, opcode::alu::LSH | opcode::alu::RSH | opcode::alu::ARSH);
            let imm = if shift { imm & if wide { 63 } else { 31 } } else { imm };
            insn(operation << 4 | u8::from(by_register) << 3 | class, dst, src, 0, imm)
        },
    );
    let jump = (prop_oneof![1..8u8, 10..14u8], any::<bool>(), any::<bool>(), 0..10u8, 0..10u8, imm).prop_map(
        |(condition, wide, by_register, dst, src, imm)| {
            let class = if wide { opcode::class::JMP } else { opcode::class::JMP32 };
            insn(condition << 4 | u8::from(by_register) << 3 | class, dst, src, 1, imm)
        },
    );
    let order = (any::<bool>(), 0..10u8, prop::sample::select(vec![16, 32, 64]))
        .prop_map(|(to_big, dst, bits)| insn(0xd4 | u8::from(to_big) << 3, dst, 0, 0, bits));
    prop_oneof![6 => alu, 2 => jump, 1 => order]
}

/// Loads r0 and r2 to r9 from state and window, keeps the context on the stack, does the steps, stores all registers.
fn program(steps: &[Insn]) -> Code {
    let state = (WINDOW + 24) as i16;
    let mut insns = vec![insn(0x7b, 10, 1, -8, 0)];
    insns.extend((2..10).map(|r| insn(0x79, r, 1, state + 8 * (i16::from(r) - 2), 0)));
    insns.push(insn(0x79, 0, 1, 0, 0));
    insns.push(insn(0xb7, 1, 0, 0, 77));
    insns.extend_from_slice(steps);
    // A jump at the end needs something to jump over.
    insns.push(insn(0x07, 0, 0, 0, 3));
    insns.push(insn(0x7b, 10, 1, -16, 0));
    insns.push(insn(0x79, 1, 10, -8, 0));
    insns.extend((2..10).map(|r| insn(0x7b, 1, r, state + 8 * (i16::from(r) - 2), 0)));
    insns.extend([(0x7b, 0), (0x63, 8), (0x6b, 16), (0x73, 24)].map(|(op, off)| insn(op, 1, 0, off, 0)));
    insns.extend([(0x7a, 32), (0x62, 40), (0x6a, 48), (0x72, 56)].map(|(op, off)| insn(op, 1, 0, off, -2)));
    insns.extend([insn(0x79, 2, 10, -16, 0), insn(0x7b, 1, 2, 64, 0)]);
    insns.extend([(0x61, 0), (0x69, 2), (0x71, 5)].map(|(op, off)| insn(op, 2, 1, off, 0)));
    insns.push(insn(0x7b, 1, 2, 72, 0));
    insns.push(insn(opcode::EXIT, 0, 0, 0, 0));
    Code { name: "test".into(), insns, functions: vec![0], leaves: Vec::new() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn engines_compute_the_same(
        steps in prop::collection::vec(step(), 1..24),
        state in prop::array::uniform8(prop_oneof![0..70u64, any::<u64>(), Just(1 << 31), Just(1 << 63), Just(u64::MAX)]),
        window in any::<[u8; 32]>(),
    ) {
        let code = program(&steps);
        prop_assert!(validate(&code).is_ok());
        let mut compiled = ud_cut { window: [0; WINDOW], len: 0, direction: 0, role: 0, verdict: 0, span: 0, state, then: 0 };
        compiled.window[..32].copy_from_slice(&window);
        let mut interpreted = compiled;
        let jit = Jit::new(&code).unwrap();
        prop_assert_eq!(jit.run(&mut compiled), Ok(()));
        prop_assert_eq!(Interpreter::new(code, false).run(&mut interpreted), Ok(()));
        prop_assert_eq!(compiled.window, interpreted.window);
        prop_assert_eq!(compiled.state, interpreted.state);
    }
}
