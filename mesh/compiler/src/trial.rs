//! The program in the kernel, without any connection: loaded, and run over heads by `BPF_PROG_TEST_RUN`.

use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags, ProgramInput};

use crate::abi::{self, ud_address, ud_trial};

/// The program that decides without a connection.
const PROGRAM: &str = "ud_try";

/// Why a program cannot be tried.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The kernel, or libbpf, does not take it.
    #[error("the kernel does not load the program: {0}; libbpf's messages say where")]
    Load(libbpf_rs::Error),
    /// It did not run.
    #[error("BPF_PROG_TEST_RUN: {0}")]
    Run(libbpf_rs::Error),
    /// It is not a program of this compiler.
    #[error("there is no program or map {0} in the object")]
    Missing(&'static str),
    /// More than a head can be.
    #[error("the request is longer than {} bytes", abi::UD_HEAD_MAX)]
    Long,
}

impl TrialError {
    /// It is not the program: loading needs `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn is_privilege(&self) -> bool {
        matches!(self, Self::Load(error) if error.kind() == libbpf_rs::ErrorKind::PermissionDenied)
    }
}

/// The program that connections run.
const POLICY: &str = "ud_policy";

/// Loads one program of an object.
fn load(object: &[u8], name: &'static str) -> Result<libbpf_rs::Object, TrialError> {
    let mut open = libbpf_rs::ObjectBuilder::default().open_memory(object).map_err(TrialError::Load)?;
    for mut program in open.progs_mut() {
        let wanted = program.name() == name;
        program.set_autoload(wanted);
    }
    open.load().map_err(TrialError::Load)
}

/// Instructions that the verifier looks at, for the program that connections run.
///
/// # Errors
///
/// If the kernel does not take it, or does not say it.
pub fn verified_instructions(object: &[u8]) -> Result<u32, TrialError> {
    use std::os::fd::AsRawFd;
    let object = load(object, POLICY)?;
    let program = object.progs().find(|program| program.name() == POLICY);
    let program = program.ok_or(TrialError::Missing(POLICY))?;
    let mut info = libbpf_rs::libbpf_sys::bpf_prog_info::default();
    let mut len = u32::try_from(size_of_val(&info)).unwrap_or(0);
    let fd = std::os::fd::AsFd::as_fd(&program).as_raw_fd();
    // SAFETY: `info` is a structure of the kernel's, `len` its size, and the descriptor is open.
    let result = unsafe { libbpf_rs::libbpf_sys::bpf_obj_get_info_by_fd(fd, (&raw mut info).cast(), &raw mut len) };
    if result != 0 {
        return Err(TrialError::Run(std::io::Error::last_os_error().into()));
    }
    Ok(info.verified_insns)
}

/// A program that the verifier accepted.
#[derive(Debug)]
pub struct Trial {
    object: libbpf_rs::Object,
}

/// What it decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// `UD_ENVOY`, `UD_FORWARD` or `UD_ANSWER`.
    pub verdict: u32,
    /// For `UD_ENVOY`: one of `UD_REASON_…`.
    pub reason: u32,
    /// How long the head is, with the empty line; 0: there is more to come, or it is Envoy's.
    pub len: u32,
    /// The action, for the other two.
    pub action: u32,
    /// The cluster, for `UD_FORWARD`.
    pub cluster: u32,
    /// The head as the upstream receives it, if it changes.
    pub edited: Option<Vec<u8>>,
    /// For all rounds.
    pub nanoseconds: u64,
}

impl Trial {
    /// Loads an object.
    ///
    /// # Errors
    ///
    /// See [`TrialError`].
    pub fn load(object: &[u8]) -> Result<Self, TrialError> {
        let object = load(object, PROGRAM)?;
        Ok(Self { object })
    }

    /// Decides on one head, `rounds` times.
    ///
    /// # Errors
    ///
    /// See [`TrialError`].
    pub fn run(
        &mut self,
        head: &[u8],
        to: (impl Into<IpAddr>, u16),
        random: u32,
        rounds: u32,
    ) -> Result<Tried, TrialError> {
        if head.len() > abi::UD_HEAD_MAX as usize {
            return Err(TrialError::Long);
        }
        let mut trial = ud_trial {
            size: u32::try_from(head.len()).unwrap_or(0),
            random,
            destination: ud_address::new(to.0.into(), to.1),
            rounds,
            ..ud_trial::default()
        };
        trial.text[..head.len()].copy_from_slice(head);
        // SAFETY: the structure has no padding between its fields and any bytes make one.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut trial).cast::<u8>(), size_of::<ud_trial>()) };
        let program = self.object.progs_mut().find(|program| program.name() == PROGRAM);
        let program = program.ok_or(TrialError::Missing(PROGRAM))?;
        let input = ProgramInput { context_in: Some(bytes), ..ProgramInput::default() };
        let done = program.test_run(input).map_err(TrialError::Run)?;
        if done.return_value != 0 {
            return Err(TrialError::Run(std::io::Error::from_raw_os_error(16).into()));
        }
        let edited = if trial.edited == 0 { None } else { Some(self.head(trial.out_len as usize)?) };
        Ok(Tried {
            verdict: trial.verdict,
            reason: trial.reason,
            len: trial.len,
            action: trial.action,
            cluster: trial.cluster,
            edited,
            nanoseconds: trial.nanoseconds,
        })
    }

    fn head(&self, len: usize) -> Result<Vec<u8>, TrialError> {
        let map = self.object.maps().find(|map| map.name() == "ud_trial_heads");
        let map = map.ok_or(TrialError::Missing("ud_trial_heads"))?;
        let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(TrialError::Run)?.unwrap_or_default();
        Ok(value.get(..len).unwrap_or_default().to_vec())
    }
}
