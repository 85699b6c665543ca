//! Gradients: of random graphs against differences, and of the public API against PyTorch.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod random;
mod torch;
