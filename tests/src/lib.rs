//! Test support: seeded random graphs with data for them, and comparison of tensors.

pub mod blocks;
pub mod bounds;
pub mod case;
pub mod changing;
pub mod compare;
pub mod custom;
pub mod device;
pub mod fuzz;
pub mod gradients;
pub mod lazy;
pub mod random_graph;
pub mod random_inputs;
pub mod reduce;
pub mod rng;
pub mod tensors;
pub mod training;
pub mod window_cases;

pub use case::{Case, Test};
pub use compare::{Tolerance, assert_close, compare, nmse};
pub use random_graph::{Options, covering_graph, random_graph, random_row_program, random_run_program};
pub use random_inputs::{Inputs, random_inputs, random_weight, with_symbols};
