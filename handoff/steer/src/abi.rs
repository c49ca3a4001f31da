//! `abi/underdeck_steer.h`, mirrored.
#![allow(non_camel_case_types, missing_docs, clippy::all, reason = "generated")]
include!(concat!(env!("OUT_DIR"), "/underdeck_steer.rs"));
