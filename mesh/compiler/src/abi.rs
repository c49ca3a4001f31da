//! `abi/underdeck_mesh.h`, mirrored.
#![allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, reason = "as in the header")]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/underdeck_mesh.rs"));
