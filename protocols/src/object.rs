//! Reads an object file into one flat, validated piece of code.

use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::{LittleEndian as Le, elf};

use crate::abi::UD_PROTOCOL_VERSION;
use crate::leaf::Leaf;

/// More instructions than this are no protocol program.
const MAX_INSNS: usize = 1 << 16;
/// `struct ud_protocol`: a u32 and a name.
const PROTOCOL_BYTES: usize = 32;

/// One eBPF instruction; a local call has its target's absolute index in `imm`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Insn {
    pub op: u8,
    pub dst: u8,
    pub src: u8,
    pub off: i16,
    pub imm: i32,
}

/// The code of an object: the entry at index 0, then its other functions.
#[derive(Debug)]
pub(crate) struct Code {
    pub name: String,
    pub insns: Vec<Insn>,
    /// Index of the first instruction of each function, sorted.
    pub functions: Vec<usize>,
    /// Functions that native code may stand in for.
    pub leaves: Vec<(usize, Leaf)>,
}

/// Why an object file is no protocol program.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// It is not a little-endian 64-bit ELF file, or a broken one.
    #[error("not an eBPF object file: {0}")]
    Elf(object::read::Error),
    /// It was compiled for another machine.
    #[error("compiled for ELF machine {0}, not for eBPF (clang -target bpf)")]
    Machine(u16),
    /// A section that every protocol program has is missing.
    #[error("no section \"{0}\": is the program defined with UD_PROTOCOL(name)?")]
    NoSection(&'static str),
    /// It was built for another version of the contract.
    #[error("built for version {0} of the protocol contract, this is version {UD_PROTOCOL_VERSION}")]
    Version(u32),
    /// Its name is not zero-terminated ASCII without blanks.
    #[error("section \"underdeck\": the name must be 1 to 27 visible ASCII characters")]
    Name,
    /// It refers to data, a map or an unknown function.
    #[error(
        "{section}+{offset:#x}: refers to {symbol:?}: a protocol program has no global data, no maps and no helpers"
    )]
    Reference {
        /// Section of the instruction.
        section: String,
        /// Byte offset of the instruction in it.
        offset: u64,
        /// What it refers to.
        symbol: String,
    },
    /// An instruction is unknown, or not allowed.
    #[error("instruction {index} (opcode {opcode:#04x}): {problem}")]
    Instruction {
        /// Counted from the beginning of the section "syscall", then ".text".
        index: usize,
        /// First byte of the instruction.
        opcode: u8,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// It is too large.
    #[error("{0} instructions; a protocol program has at most {MAX_INSNS}")]
    TooLarge(usize),
}

impl From<object::read::Error> for ObjectError {
    fn from(error: object::read::Error) -> Self {
        ObjectError::Elf(error)
    }
}

type Elf = elf::FileHeader64<Le>;
type Sections<'data> = object::read::elf::SectionTable<'data, Elf>;
type Symbols<'data> = object::read::elf::SymbolTable<'data, Elf>;

/// One of the sections with code, and where it lies in the flat code.
struct Part<'data> {
    name: &'static str,
    index: usize,
    data: &'data [u8],
    base: usize,
}

/// Reads `bytes`, checks the contract's version and every instruction.
pub(crate) fn read(bytes: &[u8]) -> Result<Code, ObjectError> {
    let header = Elf::parse(bytes)?;
    if header.e_machine(Le) != elf::EM_BPF {
        return Err(ObjectError::Machine(header.e_machine(Le).0));
    }
    let sections = header.sections(Le, bytes)?;
    let symbols = sections.symbols(Le, bytes, elf::SHT_SYMTAB)?;
    let name = protocol_name(bytes, &sections)?;
    let parts = code_parts(bytes, &sections)?;

    let mut insns = Vec::new();
    for part in &parts {
        insns.extend(part.data.chunks_exact(8).map(decode));
    }
    if insns.len() > MAX_INSNS {
        return Err(ObjectError::TooLarge(insns.len()));
    }
    for part in &parts {
        relocate(bytes, &sections, &symbols, &parts, part, &mut insns)?;
    }
    let mut functions = vec![0];
    let mut leaves = Vec::new();
    for symbol in symbols.symbols() {
        let Some(at) = function_index(symbol, &parts) else { continue };
        functions.push(at);
        if let Some(leaf) = symbols.symbol_name(Le, symbol).ok().and_then(Leaf::named) {
            leaves.push((at, leaf));
        }
    }
    functions.extend(insns.iter().filter(|insn| is_local_call(insn)).map(|insn| insn.imm as usize));
    functions.sort_unstable();
    functions.dedup();
    let code = Code { name, insns, functions, leaves };
    super::engine::validate(&code)?;
    Ok(code)
}

fn decode(raw: &[u8]) -> Insn {
    Insn {
        op: raw[0],
        dst: raw[1] & 15,
        src: raw[1] >> 4,
        off: i16::from_le_bytes([raw[2], raw[3]]),
        imm: i32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
    }
}

pub(crate) fn is_local_call(insn: &Insn) -> bool {
    insn.op == 0x85 && insn.src == 1
}

fn protocol_name(bytes: &[u8], sections: &Sections<'_>) -> Result<String, ObjectError> {
    let (_, section) = sections.section_by_name(Le, b"underdeck").ok_or(ObjectError::NoSection("underdeck"))?;
    let data = section.data(Le, bytes)?;
    let (version, name) = match data.split_first_chunk::<4>() {
        Some((version, name)) if data.len() >= PROTOCOL_BYTES => (u32::from_le_bytes(*version), name),
        _ => return Err(ObjectError::Name),
    };
    if version != UD_PROTOCOL_VERSION {
        return Err(ObjectError::Version(version));
    }
    let name = name[..PROTOCOL_BYTES - 4].split(|&b| b == 0).next().unwrap_or_default();
    if name.is_empty() || name.len() >= PROTOCOL_BYTES - 4 || !name.iter().all(u8::is_ascii_graphic) {
        return Err(ObjectError::Name);
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// The section of the entry, then the one of the other functions, if there is one.
fn code_parts<'data>(bytes: &'data [u8], sections: &Sections<'data>) -> Result<Vec<Part<'data>>, ObjectError> {
    let mut parts = Vec::new();
    let mut base = 0;
    for name in ["syscall", ".text"] {
        if let Some((index, section)) = sections.section_by_name(Le, name.as_bytes()) {
            let data = section.data(Le, bytes)?;
            parts.push(Part { name, index: index.0, data, base });
            base += data.len() / 8;
        } else if name == "syscall" {
            return Err(ObjectError::NoSection("syscall"));
        }
    }
    Ok(parts)
}

fn function_index(symbol: &elf::Sym64<Le>, parts: &[Part<'_>]) -> Option<usize> {
    let part = parts.iter().find(|part| part.index == usize::from(symbol.st_shndx(Le).0))?;
    let offset = usize::try_from(symbol.st_value(Le)).ok()?;
    let inside = offset.is_multiple_of(8) && offset < part.data.len();
    (symbol.st_type() == elf::STT_FUNC && inside).then_some(part.base + offset / 8)
}

/// Gives every call in `part` the absolute index of its target.
fn relocate(
    bytes: &[u8],
    sections: &Sections<'_>,
    symbols: &Symbols<'_>,
    parts: &[Part<'_>],
    part: &Part<'_>,
    insns: &mut [Insn],
) -> Result<(), ObjectError> {
    let count = part.data.len() / 8;
    for (at, insn) in insns.iter_mut().enumerate().skip(part.base).take(count) {
        if is_local_call(insn) {
            insn.imm = insn.imm.wrapping_add(at as i32 + 1);
        }
    }
    for section in sections.iter() {
        let Some((relocations, _)) = section.rel(Le, bytes)? else { continue };
        if section.sh_info(Le) as usize != part.index {
            continue;
        }
        for relocation in relocations {
            let offset = relocation.r_offset.get(Le);
            let symbol = symbols.symbol(object::SymbolIndex(relocation.r_sym(Le) as usize))?;
            let at = part.base + (offset / 8) as usize;
            let target = parts.iter().find(|target| target.index == usize::from(symbol.st_shndx(Le).0));
            match (insns.get_mut(at), target) {
                (Some(insn), Some(target)) if is_local_call(insn) => {
                    // The assembler left the offset from the symbol, as a call relative to the symbol's own place.
                    let relative = insn.imm.wrapping_sub(at as i32 + 1);
                    let start = target.base as i32 + (symbol.st_value(Le) / 8) as i32;
                    insn.imm = start.wrapping_add(relative).wrapping_add(1);
                }
                _ => {
                    let name = symbols.symbol_name(Le, symbol).unwrap_or_default();
                    let symbol = String::from_utf8_lossy(name).into_owned();
                    return Err(ObjectError::Reference { section: part.name.into(), offset, symbol });
                }
            }
        }
    }
    Ok(())
}
