//! The bridge against Candle itself, on every device that there is.

// clippy knows test functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod convert;
mod gradient;
mod layers;
mod models;
mod ops;
mod quantized;
mod refused;
mod relied;
mod support;
