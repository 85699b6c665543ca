//! Gradients: of every op and of random graphs against differences, of what is not smooth against the conventions.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod random;
