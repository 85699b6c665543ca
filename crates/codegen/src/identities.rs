//! Algebraic identities: several ops computed by one formula, with fewer instructions and a smaller rounding error.

use tallow_ir::passes::fold_constants::uniform;
use tallow_ir::{ElementwiseOp as E, Graph, Node, Op, Value};

use crate::glsl::Glsl;

/// A sum `c + c tanh(x)`, as in gelu and in sigmoids written with tanh. It is computed as `2 c / (1 + e^-2x)`, since `1
/// + (e^x - e^-x) / (e^x + e^-x) = 2 e^x / (e^x + e^-x)`.
///
/// There is no cancellation where tanh is close to -1. Infinities and NaN give the same result as the sum.
pub struct GatedTanh {
    pub x: Value,
    c: f64,
}

impl GatedTanh {
    /// Matches `sum`. The tanh must have no other reader, and `2 c` must be a finite f32.
    pub fn of(body: &Graph, sum: &Node) -> Option<GatedTanh> {
        let [a, b] = operands_of(sum, E::Add)?;
        [(a, b), (b, a)].into_iter().find_map(|(scaled, c)| {
            let c = uniform(body, c)?.as_f64();
            let tanh = if c == 1.0 { scaled } else { scaled_by(body, scaled, c)? };
            let node = body.node(tanh.node);
            let is_tanh = node.op == Op::Elementwise(E::Tanh);
            let fits = ((2.0 * c) as f32).is_finite();
            let alone = || [scaled, tanh].into_iter().all(|v| reads(body, v) == 1);
            (is_tanh && fits && alone()).then(|| GatedTanh { x: node.operands[0], c })
        })
    }

    /// The GLSL expression; `x` is the expression of the argument.
    pub fn text(&self, ty: Glsl, x: &str) -> String {
        format!("{} / (exp(-2.0 * {x}) + 1.0)", ty.literal(2.0 * self.c))
    }
}

/// Number of uses of `v` as an operand or output.
fn reads(body: &Graph, v: Value) -> usize {
    let operands = body.nodes().flat_map(|(_, node)| &node.operands).filter(|o| **o == v).count();
    operands + body.outputs().iter().filter(|o| o.value == v).count()
}

/// The operands of a node if its op is `op`.
fn operands_of(node: &Node, op: E) -> Option<[Value; 2]> {
    (node.op == Op::Elementwise(op)).then(|| [node.operands[0], node.operands[1]])
}

/// The value `x` if `v` is `c * x`.
fn scaled_by(body: &Graph, v: Value, c: f64) -> Option<Value> {
    let [a, b] = operands_of(body.node(v.node), E::Mul)?;
    let is_c = |v: Value| uniform(body, v).is_some_and(|s| s.as_f64() == c);
    if is_c(b) { Some(a) } else { is_c(a).then_some(b) }
}
