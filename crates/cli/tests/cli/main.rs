//! The built program from outside: what it prints, what it writes, how it fails.

// clippy knows test functions, not their helpers.
#![allow(clippy::unwrap_used)]

mod bad_inputs;
mod bench;
mod chat;
mod commands;
mod embed;
mod finetune;
mod fit;
mod inspect;
mod language_models;
mod perplexity;
mod quantize;
mod shards;
mod support;
mod train;
mod verify;
