//! Whole models on the interpreter: stored ones against stored answers, random ones against a forward pass
//! that is written here, and how runs, context and requests behave.

// clippy knows test functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod adapters;
mod architectures;
mod caches;
mod chat;
mod curve;
mod embeddings;
mod expected;
mod finetuning;
mod fit;
mod hostile;
mod naive;
mod packed;
mod page;
mod quantized_here;
mod recurrent;
mod resuming;
mod special;
mod support;
mod tiny;
mod training;
