//! The tensor graph IR of Tallow.
//!
//! A [`Graph`] is a DAG of tensor ops in static single assignment form. It is built append-only, with
//! types inferred and checked node by node; equal nodes are one node. Passes are functions from a graph to
//! a new graph. After fusion every computing node is a [`Fusion`]: a node with a nested graph, one kernel.
//!
//! This crate knows no GLSL, no Vulkan and no file format. Everything in it is data -> data and prints as
//! text. The CPU interpreter in `tallow-reference` gives every op its meaning; `tallow-codegen` turns
//! fusions into shaders.
//!
//! ```
//! use tallow_ir::{DType, ElementwiseOp, Graph};
//! let mut g = Graph::new("hello");
//! let a = g.input("a", DType::F32, [2, 3])?;
//! let b = g.elementwise(ElementwiseOp::Exp, &[a])?;
//! g.output("b", b)?;
//! assert!(g.to_string().contains("%1 = exp %0 : f32[2,3]"));
//! # Ok::<(), tallow_ir::GraphError>(())
//! ```

pub mod access;
mod activations;
pub mod attention;
pub mod caps;
pub mod cost;
pub mod crop;
pub mod custom;
pub mod dim;
pub mod donation;
pub mod dot;
pub mod dtype;
pub mod elementwise;
pub mod flatten;
pub mod float8;
pub mod form;
pub mod formula;
pub mod fusion;
pub mod generalize;
pub mod gradient;
pub mod graph;
pub mod index;
pub mod infer;
pub mod isolate;
pub mod matrix;
pub mod op;
pub mod passes;
pub mod philox;
pub mod rewrite;
pub mod round;
pub mod scalar;
pub mod scalar_eval;
pub mod schedule;
pub mod shape;
pub mod sort;
pub mod special;
pub mod structure;
pub mod text;
pub mod verify;
pub mod weight_copies;

pub use attention::{Attention, AttentionSide};
pub use caps::DeviceCaps;
pub use custom::{Custom, CustomCode, CustomKernel, PushType, PushValue};
pub use dim::{Bindings, Dim, Symbol};
pub use dtype::{DType, Format};
pub use elementwise::ElementwiseOp;
pub use fusion::{Fusion, FusionKind};
pub use generalize::{General, generalize};
pub use gradient::{CustomNode, CustomRule, GradientError, backpropagate, backpropagate_with, gradient};
pub use graph::{Graph, GraphError, Node, NodeId, Output, Value};
pub use op::{Op, ReduceKind, ScanKind, ScatterKind};
pub use scalar::Scalar;
pub use shape::{Shape, TensorType};
pub use sort::SortSpan;
pub use structure::Structure;
pub use verify::{Diagnostic, Verified, verify};
pub use weight_copies::WeightCopy;
