//! Runs any well-formed code, and checks every access: for objects that no verifier has seen.

use crate::abi::{UD_STATE_WORDS, UD_WINDOW, ud_cut};
use crate::engine::{Engine, MAX_FRAMES, STACK, Trap, opcode, wide_imm};
use crate::leaf::Leaf;
use crate::object::{Code, Insn, is_local_call};

/// Where the program believes its context to be. Addresses are never turned into pointers.
const CONTEXT: u64 = 0x1_0000_0000;
/// Where it believes the bottom of its stack to be.
const STACKS: u64 = 0x2_0000_0000;
/// Instructions that one cut may take: a leaf walks over a window in about 6000.
const FUEL: u32 = 200_000;

/// Interpreter of one object's code.
#[derive(Debug)]
pub(crate) struct Interpreter {
    code: Code,
    native_leaves: bool,
}

impl Interpreter {
    /// `native_leaves`: call native code for the functions that have some; else nothing but the object's own code.
    pub(crate) fn new(code: Code, native_leaves: bool) -> Self {
        Interpreter { code, native_leaves }
    }

    /// Calls the function that begins at `entry`; returns r0.
    pub(crate) fn call(&self, cut: &mut ud_cut, entry: usize, arguments: [u64; 2]) -> Result<u64, Trap> {
        let mut machine =
            Machine { registers: [0; 11], cut, stacks: [0; STACK * MAX_FRAMES], frames: [Frame::default(); 8] };
        machine.registers[1] = CONTEXT;
        machine.registers[2..4].copy_from_slice(&arguments);
        machine.registers[10] = STACKS + STACK as u64;
        machine.run(self, entry)
    }

    /// Index of the function with the code of `leaf`.
    #[cfg(test)]
    pub(crate) fn leaf(&self, leaf: Leaf) -> Option<usize> {
        self.code.leaves.iter().find(|(_, known)| *known == leaf).map(|(at, _)| *at)
    }

    fn native(&self, target: usize) -> Option<Leaf> {
        let leaves = if self.native_leaves { self.code.leaves.as_slice() } else { &[] };
        leaves.iter().find(|(at, _)| *at == target).map(|(_, leaf)| *leaf)
    }
}

impl Engine for Interpreter {
    fn run(&self, cut: &mut ud_cut) -> Result<(), Trap> {
        self.call(cut, 0, [0; 2]).map(|_| ())
    }
}

/// What a function keeps across a call.
#[derive(Clone, Copy, Default)]
struct Frame {
    saved: [u64; 4],
    back_to: usize,
}

struct Machine<'cut> {
    registers: [u64; 11],
    cut: &'cut mut ud_cut,
    stacks: [u8; STACK * MAX_FRAMES],
    frames: [Frame; MAX_FRAMES],
}

impl Machine<'_> {
    fn run(&mut self, interpreter: &Interpreter, entry: usize) -> Result<u64, Trap> {
        let insns = interpreter.code.insns.as_slice();
        let (mut at, mut depth) = (entry, 0);
        for _ in 0..FUEL {
            let insn = insns.get(at).ok_or(Trap)?;
            at += 1;
            match insn.op & 7 {
                opcode::class::ALU => self.alu32(insn),
                opcode::class::ALU64 => self.alu64(insn),
                opcode::class::LDX => {
                    let address = self.registers[usize::from(insn.src)].wrapping_add_signed(i64::from(insn.off));
                    self.registers[usize::from(insn.dst)] = self.load(address, opcode::width(insn))?;
                }
                opcode::class::ST => self.store(insn, insn.imm as i64 as u64)?,
                opcode::class::STX => self.store(insn, self.registers[usize::from(insn.src)])?,
                opcode::class::LD => {
                    self.registers[usize::from(insn.dst)] = wide_imm(insns, at - 1);
                    at += 1;
                }
                _ if is_local_call(insn) => match interpreter.native(insn.imm as usize) {
                    Some(leaf) if self.registers[1] == CONTEXT => {
                        self.registers[0] = leaf.native()(self.cut, self.registers[2], self.registers[3]);
                    }
                    _ => {
                        let frame = self.frames.get_mut(depth).ok_or(Trap)?;
                        frame.saved.copy_from_slice(&self.registers[6..10]);
                        frame.back_to = at;
                        depth += 1;
                        if depth == MAX_FRAMES {
                            return Err(Trap);
                        }
                        self.registers[10] += STACK as u64;
                        at = insn.imm as usize;
                    }
                },
                _ if insn.op == opcode::EXIT => {
                    if depth == 0 {
                        return Ok(self.registers[0]);
                    }
                    depth -= 1;
                    self.registers[6..10].copy_from_slice(&self.frames[depth].saved);
                    self.registers[10] -= STACK as u64;
                    at = self.frames[depth].back_to;
                }
                _ => {
                    if self.is_taken(insn) {
                        at = at.wrapping_add_signed(isize::from(insn.off));
                    }
                }
            }
        }
        Err(Trap)
    }

    /// The second operand, sign-extended if it is a constant.
    fn operand(&self, insn: &Insn) -> u64 {
        if opcode::is_register(insn) { self.registers[usize::from(insn.src)] } else { insn.imm as i64 as u64 }
    }

    fn alu32(&mut self, insn: &Insn) {
        use opcode::alu;
        let a = self.registers[usize::from(insn.dst)] as u32;
        let b = self.operand(insn) as u32;
        self.registers[usize::from(insn.dst)] = u64::from(match insn.op & 0xf0 {
            alu::ADD => a.wrapping_add(b),
            alu::SUB => a.wrapping_sub(b),
            alu::MUL => a.wrapping_mul(b),
            alu::DIV => a.checked_div(b).unwrap_or(0),
            alu::OR => a | b,
            alu::AND => a & b,
            alu::LSH => a.wrapping_shl(b),
            alu::RSH => a.wrapping_shr(b),
            alu::NEG => a.wrapping_neg(),
            alu::MOD => a.checked_rem(b).unwrap_or(a),
            alu::XOR => a ^ b,
            alu::MOV => b,
            alu::ARSH => (a as i32).wrapping_shr(b) as u32,
            _ => return self.byte_order(insn),
        });
    }

    fn alu64(&mut self, insn: &Insn) {
        use opcode::alu;
        let a = self.registers[usize::from(insn.dst)];
        let b = self.operand(insn);
        self.registers[usize::from(insn.dst)] = match insn.op & 0xf0 {
            alu::ADD => a.wrapping_add(b),
            alu::SUB => a.wrapping_sub(b),
            alu::MUL => a.wrapping_mul(b),
            alu::DIV => a.checked_div(b).unwrap_or(0),
            alu::OR => a | b,
            alu::AND => a & b,
            alu::LSH => a.wrapping_shl(b as u32),
            alu::RSH => a.wrapping_shr(b as u32),
            alu::NEG => a.wrapping_neg(),
            alu::MOD => a.checked_rem(b).unwrap_or(a),
            alu::XOR => a ^ b,
            alu::ARSH => (a as i64).wrapping_shr(b as u32) as u64,
            _ => b,
        };
    }

    /// To little endian (register bit clear) or to big endian.
    fn byte_order(&mut self, insn: &Insn) {
        let value = &mut self.registers[usize::from(insn.dst)];
        *value = match (insn.imm, opcode::is_register(insn)) {
            (16, false) => u64::from(*value as u16),
            (32, false) => u64::from(*value as u32),
            (_, false) => *value,
            (16, true) => u64::from((*value as u16).swap_bytes()),
            (32, true) => u64::from((*value as u32).swap_bytes()),
            (_, true) => value.swap_bytes(),
        };
    }

    fn is_taken(&self, insn: &Insn) -> bool {
        use opcode::jump;
        let (mut a, mut b) = (self.registers[usize::from(insn.dst)], self.operand(insn));
        let (mut signed_a, mut signed_b) = (a as i64, b as i64);
        if insn.op & 7 == opcode::class::JMP32 {
            (a, b) = (u64::from(a as u32), u64::from(b as u32));
            (signed_a, signed_b) = (i64::from(a as i32), i64::from(b as i32));
        }
        match insn.op & 0xf0 {
            jump::EQ => a == b,
            jump::GT => a > b,
            jump::GE => a >= b,
            jump::SET => a & b != 0,
            jump::NE => a != b,
            jump::SGT => signed_a > signed_b,
            jump::SGE => signed_a >= signed_b,
            jump::LT => a < b,
            jump::LE => a <= b,
            jump::SLT => signed_a < signed_b,
            jump::SLE => signed_a <= signed_b,
            _ => true,
        }
    }

    /// The `width` bytes at `address`.
    fn memory(&mut self, address: u64, width: usize) -> Result<&mut [u8], Trap> {
        let (bytes, offset): (&mut [u8], u64) = if address >= STACKS {
            (&mut self.stacks, address - STACKS)
        } else {
            (bytes_of(self.cut), address.wrapping_sub(CONTEXT))
        };
        let start = usize::try_from(offset).map_err(|_| Trap)?;
        bytes.get_mut(start..).and_then(|rest| rest.get_mut(..width)).ok_or(Trap)
    }

    fn load(&mut self, address: u64, width: usize) -> Result<u64, Trap> {
        let mut value = [0; 8];
        value[..width].copy_from_slice(self.memory(address, width)?);
        Ok(u64::from_le_bytes(value))
    }

    fn store(&mut self, insn: &Insn, value: u64) -> Result<(), Trap> {
        let width = opcode::width(insn);
        let address = self.registers[usize::from(insn.dst)].wrapping_add_signed(i64::from(insn.off));
        self.memory(address, width)?.copy_from_slice(&value.to_le_bytes()[..width]);
        Ok(())
    }
}

/// The context as the bytes that a program sees.
fn bytes_of(cut: &mut ud_cut) -> &mut [u8] {
    const { assert!(size_of::<ud_cut>() == UD_WINDOW as usize + 4 * 4 + 8 + 8 * UD_STATE_WORDS as usize + 8) };
    // SAFETY: integers without padding (the header asserts it); every bit pattern is a value of theirs.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(cut).cast::<u8>(), size_of::<ud_cut>()) }
}
