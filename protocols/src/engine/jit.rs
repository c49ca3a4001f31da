//! Machine code for x86-64, without a single check: only for objects that the kernel's verifier accepted.
//!
//! rbpf's compiler is not used: its code has to fit in one page, its 32-bit register move keeps the upper half (so code
//! for `-mcpu=v3` computes wrongly), and its memory stays writable and executable.

use std::io;

use dynasmrt::{DynamicLabel, DynasmApi, DynasmLabelApi, ExecutableBuffer, dynasm, x64::Assembler};

use crate::abi::ud_cut;
use crate::engine::{Engine, STACK, Trap, opcode, wide_imm};
use crate::object::{Code, Insn, is_local_call};

/// x86-64 numbers of r0 to r10. The first arguments of C and of eBPF coincide; rcx is kept free for shifts, r10 and r11 for
/// division, r12 holds the context.
const REGISTERS: [u8; 11] = [0, 7, 6, 2, 8, 9, 3, 13, 14, 15, 5];
/// eBPF registers that a function must leave as they were.
const SAVED: [u8; 4] = [6, 7, 8, 9];

/// The eBPF register that holds the end of the function's stack.
const FRAME: u8 = 10;

/// Compiled code of one object.
pub(crate) struct Jit {
    entry: extern "C" fn(*mut ud_cut) -> u64,
    _memory: ExecutableBuffer,
}

impl std::fmt::Debug for Jit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jit").finish_non_exhaustive()
    }
}

impl Jit {
    /// Compiles `code`. Fails if the system gives no executable memory.
    pub(crate) fn new(code: &Code) -> io::Result<Self> {
        let mut asm = Assembler::new()?;
        let labels: Vec<DynamicLabel> = code.insns.iter().map(|_| asm.new_dynamic_label()).collect();
        let mut compiler = Compiler { asm, labels, code, frame: Frame::default() };
        let entry = compiler.asm.offset();
        dynasm!(compiler.asm
            ; .arch x64
            ; push r12
            ; mov r12, rdi
            ; call =>compiler.labels[0]
            ; pop r12
            ; ret
        );
        let mut at = 0;
        while at < code.insns.len() {
            compiler.insn(at);
            at += if code.insns[at].op == opcode::LD_IMM64 { 2 } else { 1 };
        }
        let memory = compiler.asm.finalize().map_err(|_| io::Error::from(io::ErrorKind::ResourceBusy))?;
        // SAFETY: `entry` is the offset of code that follows the C calling convention with this signature, and the code
        // lives as long as `_memory` beside it.
        let entry = unsafe { std::mem::transmute::<*const u8, extern "C" fn(*mut ud_cut) -> u64>(memory.ptr(entry)) };
        Ok(Jit { entry, _memory: memory })
    }
}

impl Engine for Jit {
    fn run(&self, cut: &mut ud_cut) -> Result<(), Trap> {
        (self.entry)(cut);
        Ok(())
    }
}

/// What the function that is being compiled keeps on the stack.
#[derive(Default)]
struct Frame {
    /// Registers of the machine that are the caller's.
    saved: Vec<u8>,
    bytes: i32,
}

struct Compiler<'code> {
    asm: Assembler,
    labels: Vec<DynamicLabel>,
    code: &'code Code,
    frame: Frame,
}

fn register(number: u8) -> u8 {
    REGISTERS[usize::from(number)]
}

impl Compiler<'_> {
    fn insn(&mut self, at: usize) {
        let insn = self.code.insns[at];
        if self.code.functions.binary_search(&at).is_ok() {
            self.enter(at);
        } else {
            let label = self.labels[at];
            dynasm!(self.asm ; =>label);
        }
        let (dst, src, off) = (register(insn.dst), register(insn.src), i32::from(insn.off));
        match insn.op & 7 {
            opcode::class::LD => {
                let value = wide_imm(&self.code.insns, at) as i64;
                dynasm!(self.asm ; mov Rq(dst), QWORD value);
            }
            opcode::class::LDX => match opcode::width(&insn) {
                1 => dynasm!(self.asm ; movzx Rd(dst), BYTE [Rq(src) + off]),
                2 => dynasm!(self.asm ; movzx Rd(dst), WORD [Rq(src) + off]),
                4 => dynasm!(self.asm ; mov Rd(dst), DWORD [Rq(src) + off]),
                _ => dynasm!(self.asm ; mov Rq(dst), QWORD [Rq(src) + off]),
            },
            opcode::class::ST => match opcode::width(&insn) {
                1 => dynasm!(self.asm ; mov BYTE [Rq(dst) + off], insn.imm as i8),
                2 => dynasm!(self.asm ; mov WORD [Rq(dst) + off], insn.imm as i16),
                4 => dynasm!(self.asm ; mov DWORD [Rq(dst) + off], insn.imm),
                _ => dynasm!(self.asm ; mov QWORD [Rq(dst) + off], insn.imm),
            },
            opcode::class::STX => match opcode::width(&insn) {
                1 => dynasm!(self.asm ; mov BYTE [Rq(dst) + off], Rb(src)),
                2 => dynasm!(self.asm ; mov WORD [Rq(dst) + off], Rw(src)),
                4 => dynasm!(self.asm ; mov DWORD [Rq(dst) + off], Rd(src)),
                _ => dynasm!(self.asm ; mov QWORD [Rq(dst) + off], Rq(src)),
            },
            opcode::class::ALU64 => self.alu64(&insn),
            opcode::class::ALU => self.alu32(&insn),
            _ if is_local_call(&insn) => self.call(insn.imm as usize),
            _ if insn.op == opcode::EXIT => self.leave(),
            _ => self.jump(&insn, self.labels[(at + 1).wrapping_add_signed(isize::from(insn.off))]),
        }
    }

    /// Beginning of the function at `at`.
    fn enter(&mut self, at: usize) {
        let (start, end) = super::function_of(self.code, at);
        let body = &self.code.insns[start..end];
        let names = |number: u8| body.iter().any(|insn| insn.dst == number || insn.src == number);
        let saved = SAVED.into_iter().chain([FRAME]).filter(|&number| names(number));
        self.frame.saved = saved.map(register).collect();
        // The return address and the saved registers lie above; calls want the stack aligned to 16 bytes.
        let above = 1 + self.frame.saved.len();
        self.frame.bytes = if names(FRAME) { STACK as i32 } else { 0 } + 8 * (above % 2) as i32;
        let label = self.labels[at];
        dynasm!(self.asm ; =>label);
        for &saved in &self.frame.saved {
            dynasm!(self.asm ; push Rq(saved));
        }
        if names(FRAME) {
            dynasm!(self.asm ; mov Rq(register(FRAME)), rsp);
        }
        if self.frame.bytes > 0 {
            dynasm!(self.asm ; sub rsp, self.frame.bytes);
        }
    }

    fn leave(&mut self) {
        if self.frame.bytes > 0 {
            dynasm!(self.asm ; add rsp, self.frame.bytes);
        }
        for &saved in self.frame.saved.iter().rev() {
            dynasm!(self.asm ; pop Rq(saved));
        }
        dynasm!(self.asm ; ret);
    }

    /// Native code stands in for a leaf as long as its first argument is the context itself.
    fn call(&mut self, target: usize) {
        let label = self.labels[target];
        match self.code.leaves.iter().find(|(at, _)| *at == target) {
            Some((_, leaf)) => {
                let native = leaf.native() as usize as i64;
                dynasm!(self.asm
                    ; cmp rdi, r12
                    ; jne >bytecode
                    ; mov rax, QWORD native
                    ; call rax
                    ; jmp >done
                    ; bytecode:
                    ; call =>label
                    ; done:
                );
            }
            None => dynasm!(self.asm ; call =>label),
        }
    }

    fn jump(&mut self, insn: &Insn, target: DynamicLabel) {
        use opcode::jump;
        let (dst, src, imm) = (register(insn.dst), register(insn.src), insn.imm);
        if insn.op == opcode::JA {
            dynasm!(self.asm ; jmp =>target);
            return;
        }
        let wide = insn.op & 7 == opcode::class::JMP;
        match (insn.op & 0xf0 == jump::SET, wide, opcode::is_register(insn)) {
            (false, true, true) => dynasm!(self.asm ; cmp Rq(dst), Rq(src)),
            (false, true, false) => dynasm!(self.asm ; cmp Rq(dst), imm),
            (false, false, true) => dynasm!(self.asm ; cmp Rd(dst), Rd(src)),
            (false, false, false) => dynasm!(self.asm ; cmp Rd(dst), imm),
            (true, true, true) => dynasm!(self.asm ; test Rq(dst), Rq(src)),
            (true, true, false) => dynasm!(self.asm ; test Rq(dst), imm),
            (true, false, true) => dynasm!(self.asm ; test Rd(dst), Rd(src)),
            (true, false, false) => dynasm!(self.asm ; test Rd(dst), imm),
        }
        match insn.op & 0xf0 {
            jump::EQ => dynasm!(self.asm ; je =>target),
            jump::GT => dynasm!(self.asm ; ja =>target),
            jump::GE => dynasm!(self.asm ; jae =>target),
            jump::LT => dynasm!(self.asm ; jb =>target),
            jump::LE => dynasm!(self.asm ; jbe =>target),
            jump::SGT => dynasm!(self.asm ; jg =>target),
            jump::SGE => dynasm!(self.asm ; jge =>target),
            jump::SLT => dynasm!(self.asm ; jl =>target),
            jump::SLE => dynasm!(self.asm ; jle =>target),
            // NE, and SET after `test`.
            _ => dynasm!(self.asm ; jne =>target),
        }
    }

    fn alu64(&mut self, insn: &Insn) {
        use opcode::alu;
        let (dst, src, imm) = (register(insn.dst), register(insn.src), insn.imm);
        match (insn.op & 0xf0, opcode::is_register(insn)) {
            (alu::ADD, true) => dynasm!(self.asm ; add Rq(dst), Rq(src)),
            (alu::ADD, false) => dynasm!(self.asm ; add Rq(dst), imm),
            (alu::SUB, true) => dynasm!(self.asm ; sub Rq(dst), Rq(src)),
            (alu::SUB, false) => dynasm!(self.asm ; sub Rq(dst), imm),
            (alu::MUL, true) => dynasm!(self.asm ; imul Rq(dst), Rq(src)),
            (alu::MUL, false) => dynasm!(self.asm ; imul Rq(dst), Rq(dst), imm),
            (alu::OR, true) => dynasm!(self.asm ; or Rq(dst), Rq(src)),
            (alu::OR, false) => dynasm!(self.asm ; or Rq(dst), imm),
            (alu::AND, true) => dynasm!(self.asm ; and Rq(dst), Rq(src)),
            (alu::AND, false) => dynasm!(self.asm ; and Rq(dst), imm),
            (alu::XOR, true) => dynasm!(self.asm ; xor Rq(dst), Rq(src)),
            (alu::XOR, false) => dynasm!(self.asm ; xor Rq(dst), imm),
            (alu::MOV, true) => dynasm!(self.asm ; mov Rq(dst), Rq(src)),
            (alu::MOV, false) => dynasm!(self.asm ; mov Rq(dst), DWORD imm),
            (alu::LSH, true) => dynasm!(self.asm ; mov ecx, Rd(src) ; shl Rq(dst), cl),
            (alu::LSH, false) => dynasm!(self.asm ; shl Rq(dst), imm as i8),
            (alu::RSH, true) => dynasm!(self.asm ; mov ecx, Rd(src) ; shr Rq(dst), cl),
            (alu::RSH, false) => dynasm!(self.asm ; shr Rq(dst), imm as i8),
            (alu::ARSH, true) => dynasm!(self.asm ; mov ecx, Rd(src) ; sar Rq(dst), cl),
            (alu::ARSH, false) => dynasm!(self.asm ; sar Rq(dst), imm as i8),
            (alu::NEG, _) => dynasm!(self.asm ; neg Rq(dst)),
            _ => self.divide(insn),
        }
    }

    /// Writing the lower half of a register clears its upper half, in eBPF as on x86-64.
    fn alu32(&mut self, insn: &Insn) {
        use opcode::alu;
        let (dst, src, imm) = (register(insn.dst), register(insn.src), insn.imm);
        match (insn.op & 0xf0, opcode::is_register(insn)) {
            (alu::ADD, true) => dynasm!(self.asm ; add Rd(dst), Rd(src)),
            (alu::ADD, false) => dynasm!(self.asm ; add Rd(dst), imm),
            (alu::SUB, true) => dynasm!(self.asm ; sub Rd(dst), Rd(src)),
            (alu::SUB, false) => dynasm!(self.asm ; sub Rd(dst), imm),
            (alu::MUL, true) => dynasm!(self.asm ; imul Rd(dst), Rd(src)),
            (alu::MUL, false) => dynasm!(self.asm ; imul Rd(dst), Rd(dst), imm),
            (alu::OR, true) => dynasm!(self.asm ; or Rd(dst), Rd(src)),
            (alu::OR, false) => dynasm!(self.asm ; or Rd(dst), imm),
            (alu::AND, true) => dynasm!(self.asm ; and Rd(dst), Rd(src)),
            (alu::AND, false) => dynasm!(self.asm ; and Rd(dst), imm),
            (alu::XOR, true) => dynasm!(self.asm ; xor Rd(dst), Rd(src)),
            (alu::XOR, false) => dynasm!(self.asm ; xor Rd(dst), imm),
            (alu::MOV, true) => dynasm!(self.asm ; mov Rd(dst), Rd(src)),
            (alu::MOV, false) => dynasm!(self.asm ; mov Rd(dst), imm),
            // A shift by zero would leave the upper half as it is.
            (alu::LSH, true) => dynasm!(self.asm ; mov ecx, Rd(src) ; mov Rd(dst), Rd(dst) ; shl Rd(dst), cl),
            (alu::LSH, false) => dynasm!(self.asm ; mov Rd(dst), Rd(dst) ; shl Rd(dst), imm as i8),
            (alu::RSH, true) => dynasm!(self.asm ; mov ecx, Rd(src) ; mov Rd(dst), Rd(dst) ; shr Rd(dst), cl),
            (alu::RSH, false) => dynasm!(self.asm ; mov Rd(dst), Rd(dst) ; shr Rd(dst), imm as i8),
            (alu::ARSH, true) => dynasm!(self.asm ; mov ecx, Rd(src) ; mov Rd(dst), Rd(dst) ; sar Rd(dst), cl),
            (alu::ARSH, false) => dynasm!(self.asm ; mov Rd(dst), Rd(dst) ; sar Rd(dst), imm as i8),
            (alu::NEG, _) => dynasm!(self.asm ; neg Rd(dst)),
            (alu::END, to_big) => self.byte_order(dst, imm, to_big),
            _ => self.divide(insn),
        }
    }

    fn byte_order(&mut self, dst: u8, bits: i32, to_big: bool) {
        match (bits, to_big) {
            (16, false) => dynasm!(self.asm ; movzx Rd(dst), Rw(dst)),
            (32, false) => dynasm!(self.asm ; mov Rd(dst), Rd(dst)),
            (16, true) => dynasm!(self.asm ; rol Rw(dst), 8 ; movzx Rd(dst), Rw(dst)),
            (32, true) => dynasm!(self.asm ; bswap Rd(dst)),
            (_, true) => dynasm!(self.asm ; bswap Rq(dst)),
            _ => {}
        }
    }

    /// x / 0 is 0, x % 0 is x. `div` takes rdx:rax, where r0 and r3 live.
    fn divide(&mut self, insn: &Insn) {
        let (dst, src, imm) = (register(insn.dst), register(insn.src), insn.imm);
        let wide = insn.op & 7 == opcode::class::ALU64;
        let modulo = insn.op & 0xf0 == opcode::alu::MOD;
        match (wide, opcode::is_register(insn)) {
            (true, true) => dynasm!(self.asm ; mov rcx, Rq(src)),
            (true, false) => dynasm!(self.asm ; mov rcx, DWORD imm),
            (false, true) => dynasm!(self.asm ; mov ecx, Rd(src)),
            (false, false) => dynasm!(self.asm ; mov ecx, imm),
        }
        dynasm!(self.asm ; mov r10, rax ; mov r11, rdx);
        if wide {
            dynasm!(self.asm ; mov rax, Rq(dst));
        } else {
            dynasm!(self.asm ; mov eax, Rd(dst));
        }
        dynasm!(self.asm ; xor edx, edx ; test rcx, rcx ; jz >zero);
        match (wide, modulo) {
            (true, false) => dynasm!(self.asm ; div rcx ; mov rcx, rax),
            (true, true) => dynasm!(self.asm ; div rcx ; mov rcx, rdx),
            (false, false) => dynasm!(self.asm ; div ecx ; mov ecx, eax),
            (false, true) => dynasm!(self.asm ; div ecx ; mov ecx, edx),
        }
        dynasm!(self.asm ; jmp >done ; zero:);
        if modulo {
            dynasm!(self.asm ; mov rcx, rax);
        }
        dynasm!(self.asm ; done: ; mov rax, r10 ; mov rdx, r11 ; mov Rq(dst), rcx);
    }
}
