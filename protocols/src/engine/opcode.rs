//! The instruction set (RFC 9669), as far as `-mcpu=v3` without atomics needs it.

use crate::object::Insn;

pub(crate) const LD_IMM64: u8 = 0x18;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const EXIT: u8 = 0x95;
pub(crate) const JA: u8 = 0x05;

/// Instruction class: the low three bits.
pub(crate) mod class {
    pub(crate) const LD: u8 = 0;
    pub(crate) const LDX: u8 = 1;
    pub(crate) const ST: u8 = 2;
    pub(crate) const STX: u8 = 3;
    pub(crate) const ALU: u8 = 4;
    pub(crate) const JMP: u8 = 5;
    pub(crate) const JMP32: u8 = 6;
    pub(crate) const ALU64: u8 = 7;
}

/// Arithmetic operation: the high four bits.
pub(crate) mod alu {
    pub(crate) const ADD: u8 = 0x00;
    pub(crate) const SUB: u8 = 0x10;
    pub(crate) const MUL: u8 = 0x20;
    pub(crate) const DIV: u8 = 0x30;
    pub(crate) const OR: u8 = 0x40;
    pub(crate) const AND: u8 = 0x50;
    pub(crate) const LSH: u8 = 0x60;
    pub(crate) const RSH: u8 = 0x70;
    pub(crate) const NEG: u8 = 0x80;
    pub(crate) const MOD: u8 = 0x90;
    pub(crate) const XOR: u8 = 0xa0;
    pub(crate) const MOV: u8 = 0xb0;
    pub(crate) const ARSH: u8 = 0xc0;
    pub(crate) const END: u8 = 0xd0;
}

/// Condition of a jump: the high four bits.
pub(crate) mod jump {
    pub(crate) const EQ: u8 = 0x10;
    pub(crate) const GT: u8 = 0x20;
    pub(crate) const GE: u8 = 0x30;
    pub(crate) const SET: u8 = 0x40;
    pub(crate) const NE: u8 = 0x50;
    pub(crate) const SGT: u8 = 0x60;
    pub(crate) const SGE: u8 = 0x70;
    pub(crate) const LT: u8 = 0xa0;
    pub(crate) const LE: u8 = 0xb0;
    pub(crate) const SLT: u8 = 0xc0;
    pub(crate) const SLE: u8 = 0xd0;
}

/// Whether the second operand is a register.
pub(crate) fn is_register(insn: &Insn) -> bool {
    insn.op & 0x08 != 0
}

/// Bytes that a load or store moves.
pub(crate) fn width(insn: &Insn) -> usize {
    match insn.op & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

/// Whether this is a conditional or unconditional jump.
pub(crate) fn is_jump(insn: &Insn) -> bool {
    matches!(insn.op & 7, class::JMP | class::JMP32) && insn.op != CALL && insn.op != EXIT
}

/// Whether the next instruction is never reached from this one.
pub(crate) fn ends_flow(insn: &Insn) -> bool {
    insn.op == JA || insn.op == EXIT
}

/// Whether the instruction is one that both engines know.
pub(crate) fn check(insn: &Insn) -> Result<(), &'static str> {
    const NEWER: &str = "unknown, or newer than -mcpu=v3";
    if insn.dst > 10 || insn.src > 10 {
        return Err("there are eleven registers");
    }
    let writes_dst = match insn.op & 7 {
        class::LD if insn.op == LD_IMM64 && insn.src == 0 => true,
        class::LD => return Err("a protocol program loads constants only"),
        class::LDX if insn.op & 0xe0 == 0x60 => true,
        class::ST | class::STX if insn.op & 0xe0 == 0x60 => false,
        class::STX if insn.op & 0xe0 == 0xc0 => return Err("atomic operations are not for protocol programs"),
        class::ALU | class::ALU64 => {
            let shift = matches!(insn.op & 0xf0, alu::LSH | alu::RSH | alu::ARSH) && !is_register(insn);
            let bits = if insn.op & 7 == class::ALU { 32 } else { 64 };
            match insn.op & 0xf0 {
                _ if insn.off != 0 || insn.op & 0xf0 > alu::END => return Err(NEWER),
                alu::END if insn.op & 7 == class::ALU64 || !matches!(insn.imm, 16 | 32 | 64) => return Err(NEWER),
                _ if shift && !(0..bits).contains(&insn.imm) => return Err("shifts too far"),
                _ => true,
            }
        }
        class::JMP if insn.op == CALL && insn.src != 1 => {
            return Err("calls a helper or a kernel function; a protocol program calls its own functions only");
        }
        class::JMP if matches!(insn.op, CALL | EXIT | JA) => false,
        class::JMP | class::JMP32 if matches!(insn.op & 0xf0, 0x10..=0x70 | 0xa0..=0xd0) => false,
        _ => return Err(NEWER),
    };
    if writes_dst && insn.dst == 10 { Err("writes to the frame pointer") } else { Ok(()) }
}
