//! What runs the code of an object.

mod interpreter;
#[cfg(target_arch = "x86_64")]
mod jit;
pub(crate) mod opcode;

use crate::abi::ud_cut;
use crate::object::{Code, Insn, ObjectError, is_local_call};

pub(crate) use interpreter::Interpreter;
#[cfg(target_arch = "x86_64")]
pub(crate) use jit::Jit;

/// Bytes of stack per function, as in the kernel.
const STACK: usize = 512;
/// Functions that may call each other, as in the kernel.
const MAX_FRAMES: usize = 8;

/// The program did what no accepted program does: it left its memory, or ran too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trap;

/// Runs one object's code. Does not allocate, lock or panic.
pub(crate) trait Engine: Send + Sync + std::fmt::Debug {
    /// Calls the program with `cut`. The result is in `verdict`, `span` and `state`, to be mistrusted.
    fn run(&self, cut: &mut ud_cut) -> Result<(), Trap>;
}

/// Checks what does not depend on the run: opcodes, registers, targets of jumps.
///
/// This makes the code well formed, not safe: that is for the kernel's verifier or the interpreter.
pub(crate) fn validate(code: &Code) -> Result<(), ObjectError> {
    let insns = &code.insns;
    let mut is_second = vec![false; insns.len()];
    let mut index = 0;
    while let Some(insn) = insns.get(index) {
        let wide = insn.op == opcode::LD_IMM64;
        if wide && index + 1 < insns.len() {
            is_second[index + 1] = true;
        }
        index += if wide { 2 } else { 1 };
    }
    for (index, insn) in insns.iter().enumerate().filter(|&(index, _)| !is_second[index]) {
        let problem = |problem| ObjectError::Instruction { index, opcode: insn.op, problem };
        opcode::check(insn).map_err(problem)?;
        if is_local_call(insn) && !code.functions.contains(&(insn.imm as usize)) {
            return Err(problem("calls something that is no function"));
        }
        let (start, end) = function_of(code, index);
        let in_function =
            |target: Option<usize>| target.is_some_and(|target| (start..end).contains(&target) && !is_second[target]);
        if opcode::is_jump(insn) && !in_function((index + 1).checked_add_signed(isize::from(insn.off))) {
            return Err(problem("jumps out of its function"));
        }
        let next = index + if insn.op == opcode::LD_IMM64 { 2 } else { 1 };
        if !opcode::ends_flow(insn) && !in_function(Some(next)) {
            return Err(problem("runs out of its function"));
        }
    }
    if insns.is_empty() {
        return Err(ObjectError::NoSection("syscall"));
    }
    if code.functions.iter().any(|&start| is_second.get(start).is_none_or(|&second| second)) {
        return Err(ObjectError::Instruction {
            index: 0,
            opcode: 0x85,
            problem: "calls something that is no function",
        });
    }
    Ok(())
}

/// The range of instructions of the function that `index` is in.
fn function_of(code: &Code, index: usize) -> (usize, usize) {
    let after = code.functions.partition_point(|&start| start <= index);
    let start = code.functions[after.saturating_sub(1)];
    (start, code.functions.get(after).copied().unwrap_or(code.insns.len()))
}

/// The 64-bit constant of the instruction at `index`, which takes two slots.
fn wide_imm(insns: &[Insn], index: usize) -> u64 {
    let high = insns.get(index + 1).map_or(0, |insn| insn.imm);
    u64::from(insns[index].imm as u32) | u64::from(high as u32) << 32
}

#[cfg(test)]
mod tests;
