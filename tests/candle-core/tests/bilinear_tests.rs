//! `bilinear_tests` of `candle_core`; `build.rs` says where it comes from.

#![allow(clippy::all, missing_docs)]

include!(concat!(env!("OUT_DIR"), "/bilinear_tests.rs"));
