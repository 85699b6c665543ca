//! `grad_tests` of `candle_core`; `build.rs` says where it comes from.

#![allow(clippy::all, clippy::unwrap_used, clippy::print_stdout, missing_docs)]

include!(concat!(env!("OUT_DIR"), "/grad_tests.rs"));
