//! later
use super::*;
#[derive(Debug)]
pub(crate) struct Jit(Interpreter);
impl Jit {
    pub(crate) fn new(code: &Code) -> std::io::Result<Self> {
        Ok(Jit(Interpreter::new(
            Code {
                name: code.name.clone(),
                insns: code.insns.clone(),
                functions: code.functions.clone(),
                leaves: code.leaves.clone(),
            },
            true,
        )))
    }
}
impl Engine for Jit {
    fn run(&self, cut: &mut ud_cut) -> Result<(), Trap> {
        self.0.run(cut)
    }
}
