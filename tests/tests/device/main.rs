//! Tests on a Vulkan device, through the public API: kernels against the interpreter, models against their
//! expected logits and texts, and the structural promises of plans as recorded.
//!
//! Without a device each test says that it skips; `REQUIRE_VULKAN=1` makes that a failure.

#![cfg(feature = "vulkan")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod attention;
mod attention_grad;
mod blocks;
mod cache;
mod changing;
mod choices;
mod custom;
mod differential;
mod few_rows;
mod formats;
mod functions;
mod gradients;
mod groups;
mod harness;
mod heads;
mod host_layers;
mod index_adds;
mod index_rows;
mod layouts;
mod lazy;
mod lazy_programs;
mod linear_scans;
mod matrix;
mod matrix_bf16;
mod matrix_copies;
mod matrix_windows;
mod matvec;
mod memory;
mod models;
mod narrow_rows;
mod quantize;
mod quantized_results;
mod random;
mod remat;
mod row_groups;
mod rows_in_place;
mod scans;
mod scatters;
mod sorts;
mod split_rows;
mod states;
mod states_in_kernels;
mod structure;
mod symbolic_k;
mod threads;
mod ties;
mod tiles;
mod transposes;
mod verify;
mod weight_copies;
mod windows;
