//! Packet loss: an eBPF program at interfaces that drops some of what passes, at random. ARP is spared: a host that does
//! not find its neighbour is another fault, and lasts longer.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::LabError;
use crate::error::While;

/// Which way packets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// They arrive.
    Ingress,
    /// They leave.
    Egress,
}

/// Loss at some interfaces. Dropping it ends it.
#[derive(Debug)]
pub struct Loss {
    _links: Vec<OwnedFd>,
}

impl Loss {
    /// Drops this share of the packets at each of these hooks of interfaces (by index, in the network namespace of the
    /// calling thread). Needs tcx: Linux 6.6.
    pub fn at(hooks: &[(u32, Hook)], share: f64) -> Result<Self, LabError> {
        let program = load(share).doing(|| "load a program that drops packets".to_owned())?;
        let attach = |(index, hook): &(u32, Hook)| {
            attach(&program, *index, *hook).doing(|| format!("attach it to interface {index}, {hook:?}"))
        };
        Ok(Self { _links: hooks.iter().map(attach).collect::<Result<_, _>>()? })
    }
}

/// Numbers of the kernel's ABI (linux/bpf.h).
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const SCHED_CLS: u32 = 3;
const TCX_INGRESS: u32 = 46;
const TCX_EGRESS: u32 = 47;
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;
const GET_PRANDOM_U32: i32 = 7;

/// One instruction: operation, registers, offset, immediate value.
#[repr(C)]
struct Instruction(u8, u8, i16, i32);

/// Of `struct __sk_buff`.
const PROTOCOL: i16 = 16;
const ETH_P_ARP: u16 = 0x0806;

const LOAD_32: u8 = 0x61;
const IF_EQUAL: u8 = 0x15;
const CALL: u8 = 0x85;
const IF_LESS_32: u8 = 0xa6;
const MOVE: u8 = 0xb7;
const EXIT: u8 = 0x95;

/// The first fields of the attributes of BPF_PROG_LOAD.
#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

/// Those of BPF_LINK_CREATE, as far as tcx wants them.
#[repr(C)]
#[derive(Default)]
struct LinkAttributes {
    program: u32,
    interface: u32,
    kind: u32,
    flags: u32,
    relative: u32,
    padding: u32,
    revision: u64,
}

fn load(share: f64) -> io::Result<OwnedFd> {
    let threshold = (share.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
    let code = [
        Instruction(LOAD_32, 2 | 1 << 4, PROTOCOL, 0),
        Instruction(IF_EQUAL, 2, 2, i32::from(ETH_P_ARP.to_be())),
        Instruction(CALL, 0, 0, GET_PRANDOM_U32),
        Instruction(IF_LESS_32, 0, 2, threshold.cast_signed()),
        Instruction(MOVE, 0, 0, TCX_NEXT),
        Instruction(EXIT, 0, 0, 0),
        Instruction(MOVE, 0, 0, TCX_DROP),
        Instruction(EXIT, 0, 0, 0),
    ];
    bpf(
        PROG_LOAD,
        &LoadAttributes {
            kind: SCHED_CLS,
            instructions: code.len() as u32,
            code: code.as_ptr().addr() as u64,
            license: c"GPL".as_ptr().addr() as u64,
            ..LoadAttributes::default()
        },
    )
}

fn attach(program: &OwnedFd, interface: u32, hook: Hook) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd().cast_unsigned();
    let kind = if hook == Hook::Ingress { TCX_INGRESS } else { TCX_EGRESS };
    bpf(LINK_CREATE, &LinkAttributes { program, interface, kind, ..LinkAttributes::default() })
}

fn bpf<T>(command: i32, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads the attributes, and through them code and licence, which outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made it.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
