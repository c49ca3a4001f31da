//! Protocol programs and the engine that verifies and runs them in user space.
