//! CPU interpreter of the IR: the living definition of every op, and the device where there is no GPU.
//!
//! [`evaluate`] runs a graph in an [`Env`] of named tensors. Floats are computed in f64 and rounded once to
//! the type of each node; integers are exact in i64 and wrapped. The body of a fusion is a graph like any
//! other, so a pass that only fuses changes no bit of any result.
//!
//! ```
//! use std::sync::Arc;
//! use tallow_ir::{DType, ElementwiseOp, Graph};
//! use tallow_reference::{Array, Env, evaluate};
//! let mut graph = Graph::new("twice");
//! let x = graph.input("x", DType::F32, [3])?;
//! let y = graph.elementwise(ElementwiseOp::Add, &[x, x])?;
//! graph.output("y", y)?;
//!
//! let mut env = Env::default();
//! env.inputs.insert("x".into(), Arc::new(Array::from_f64s(DType::F32, &[3], &[1.0, 2.0, 4.0])?));
//! let outputs = evaluate(&graph, &mut env)?;
//! assert_eq!(outputs[0].1.to_f64s(), [2.0, 4.0, 8.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it never does: change a graph, or reorder a sum to please a device. Only matrix products that are
//! too large for three naive loops take another order, and they too add in f64.

mod array;
mod check;
mod custom;
mod env;
mod error;
mod interpret;
mod layout;
mod ops;
mod view;

#[cfg(test)]
mod tests;

pub use array::{Array, Blocks, Data, byte_len};
pub use custom::{CustomArguments, CustomFunction, register_custom};
pub use env::Env;
pub use error::Error;
pub use interpret::evaluate;
