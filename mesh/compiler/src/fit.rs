//! As many routes as the verifier takes.

use underdeck_mesh_policy::form::{Listener, Policy};

use crate::object::{BuildError, Cache, Object, build};
use crate::source::{Node, Program, ROUTES_MAX, generate_within};
use crate::trial::{Trial, TrialError};

/// With fewer routes than these it is not the number of routes that the verifier refuses.
const ROUTES_LEAST: usize = 64;

/// A program that the verifier accepted.
#[derive(Debug)]
pub struct Fitted {
    /// What its numbers mean, and what it leaves to Envoy.
    pub program: Program,
    /// Its object.
    pub object: Object,
    /// It, loaded.
    pub trial: Trial,
}

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// It cannot be compiled.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It cannot be loaded, even with few routes.
    #[error(transparent)]
    Load(#[from] TrialError),
}

/// Makes, compiles and loads the program of one listener. If the verifier refuses it, half of the routes are left to
/// Envoy, and so on.
///
/// # Errors
///
/// See [`FitError`].
pub fn fit(policy: &Policy, listener: &Listener, node: &Node, cache: &Cache) -> Result<Fitted, FitError> {
    let mut routes_max = ROUTES_MAX;
    loop {
        let program = generate_within(policy, listener, node, routes_max);
        let object = build(&program.source, cache)?;
        match Trial::load(&object.bytes) {
            Ok(trial) => return Ok(Fitted { program, object, trial }),
            Err(error) if error.is_privilege() || program.routes / 2 < ROUTES_LEAST => return Err(error.into()),
            Err(_) => routes_max = program.routes / 2,
        }
    }
}
