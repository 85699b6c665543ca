//! [`tallow_bounds`] for graphs that may hold the tests' own kernel.

use tallow_ir::{Custom, DType, Dim, ElementwiseOp, Graph, GraphError, Op, Scalar, TensorType};

pub use tallow_bounds::Interval;

use crate::custom::mix_kernel;
use crate::random_inputs::Inputs;

/// Intervals for the outputs and states of one graph.
#[derive(Clone, Debug)]
pub struct Bounds(tallow_bounds::Bounds);

impl Bounds {
    /// The graph of intervals of `graph`.
    ///
    /// # Errors
    /// When the graph does not verify, or holds a node that has no interval.
    pub fn of(graph: &Graph) -> Result<Bounds, String> {
        let mix = |kernel: &Custom, operands: &[TensorType], results: &[TensorType]| {
            let is_mix = kernel.kernel == mix_kernel() && operands.len() == 2 && results.len() == 2;
            is_mix.then(|| mix_formula(operands, results).ok()).flatten()
        };
        tallow_bounds::Bounds::with_formula(graph, mix).map(Bounds).map_err(|e| e.to_string())
    }

    /// The intervals of outputs and states of a run, by name; the next run starts from where it left the states.
    ///
    /// # Errors
    /// When the inputs do not fit the graph.
    pub fn run(&mut self, inputs: &Inputs) -> Result<Vec<(String, Interval)>, String> {
        self.0.run(inputs.env()).map_err(|e| e.to_string())
    }
}

/// What the tests' own kernel computes ([`crate::custom`]).
fn mix_formula(operands: &[TensorType], results: &[TensorType]) -> Result<Graph, GraphError> {
    let mut g = Graph::new("mix");
    let a = g.add(Op::Param { index: 0, ty: operands[0].clone() }, &[])?;
    let b = g.add(Op::Param { index: 1, ty: operands[1].clone() }, &[])?;
    let shape = results[0].shape.clone();
    let n: Dim = shape.numel();
    let flat = g.reshape(a, [n.clone()])?;
    let turned = g.add(Op::Flip { axis: 0 }, &[flat])?;
    let turned = g.reshape(turned, shape.clone())?;
    let b = g.reshape(b, shape.clone())?;
    let factor = g.add(Op::Const(Scalar::float(DType::F32, 0.25)), &[])?;
    let factor = g.broadcast(factor, shape)?;
    let part = g.elementwise(ElementwiseOp::Mul, &[b, factor])?;
    let mixed = g.elementwise(ElementwiseOp::Add, &[turned, part])?;
    let order = g.add(Op::Iota { len: n, dtype: DType::U32 }, &[])?;
    let order = g.add(Op::Flip { axis: 0 }, &[order])?;
    let order = g.reshape(order, results[1].shape.clone())?;
    g.output("mixed", mixed)?;
    g.output("order", order)?;
    Ok(g)
}

#[cfg(test)]
mod tests;
