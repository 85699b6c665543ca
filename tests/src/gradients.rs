//! Gradients against differences: a random graph is differentiated, and the change of its outputs along a random direction
//! is compared with what the gradient says, both by the interpreter in f64.
//!
//! The outputs are weighted by random numbers first, since sums of whole rows hide errors: that of a softmax is 1.

use std::sync::Arc;

use tallow_ir::rewrite::rebuild;
use tallow_ir::{DType, ElementwiseOp, Graph, Op, Scalar, TensorType, gradient};
use tallow_reference::{Array, Env, evaluate};

use crate::random_inputs::random_inputs;
use crate::rng::Rng;

/// How a graph fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Gradients and differences agree.
    Agree,
    /// The outputs jump or bend at this point: the differences to both sides are not the same.
    Kink,
    /// There are no floats to differentiate.
    Nothing,
    /// An op has no derivative, and the error says so.
    Refused,
}

/// Distance of the two points of a difference. The error of a difference is about `STEP^2` times the third derivative,
/// and the rounding of f64 divided by the step.
const STEP: f64 = 1e-5;

/// The graph with all floats of 64 bits, so that differences are not rounded away; `None` where an op needs others.
fn widened(graph: &Graph) -> Option<Graph> {
    let wide = |dtype: DType| if dtype.is_float() { DType::F64 } else { dtype };
    let ty = |ty: &TensorType| TensorType::new(wide(ty.dtype), ty.shape.clone());
    let scalar = |s: &Scalar| if s.dtype().is_float() { Scalar::of(DType::F64, s.as_f64()) } else { *s };
    let made = rebuild(graph, |new, node, operands| {
        let op = match &node.op {
            Op::Input { name, ty: t } => Op::Input { name: name.clone(), ty: ty(t) },
            Op::State { name, ty: t } => Op::State { name: name.clone(), ty: ty(t) },
            Op::Weight { name, ty: t } if t.dtype.size().is_some() => {
                Op::Weight { name: name.clone(), ty: ty(t) }
            }
            Op::Const(value) => Op::Const(scalar(value)),
            Op::Iota { len, dtype } => Op::Iota { len: len.clone(), dtype: wide(*dtype) },
            Op::DimValue { dim, dtype } => Op::DimValue { dim: dim.clone(), dtype: wide(*dtype) },
            Op::Scalar { symbol, dtype } => Op::Scalar { symbol: symbol.clone(), dtype: wide(*dtype) },
            Op::Cast(dtype) => Op::Cast(wide(*dtype)),
            Op::Dequantize(dtype) => Op::Dequantize(wide(*dtype)),
            Op::Pad { axis, before, after, value } => {
                Op::Pad { axis: *axis, before: before.clone(), after: after.clone(), value: scalar(value) }
            }
            _ => return Ok(None),
        };
        new.add(op, operands).map(Some)
    });
    made.ok()
}

/// The graph with its float outputs weighted by new inputs, and the names of the products.
fn weighted(graph: &Graph) -> Result<(Graph, Vec<String>), String> {
    let mut made = graph.clone();
    let mut names = vec![];
    for (i, output) in graph.outputs().iter().enumerate() {
        let ty = graph.ty(output.value).clone();
        if output.name.is_empty() || ty.dtype != DType::F64 {
            continue;
        }
        let weight = made.input(&format!("weight of {i}"), ty.dtype, ty.shape).map_err(|e| e.to_string())?;
        let product = made.elementwise(ElementwiseOp::Mul, &[output.value, weight]);
        names.push(format!("loss {i}"));
        made.output(&format!("loss {i}"), product.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    }
    Ok((made, names))
}

/// Checks the gradients of one graph, computed in f64 throughout.
///
/// # Errors
/// When a gradient and the differences disagree, or differentiating fails otherwise than by an op without derivative.
pub fn check(graph: &Graph, seed: u64) -> Result<Outcome, String> {
    let Some(graph) = widened(graph) else { return Ok(Outcome::Nothing) };
    let (graph, losses) = weighted(&graph)?;
    let leaf = |op: &Op| match op {
        Op::Input { name, ty } if ty.dtype == DType::F64 => Some(name.clone()),
        _ => None,
    };
    let leaves: Vec<String> = graph.nodes().filter_map(|(_, node)| leaf(&node.op)).collect();
    if losses.is_empty() || leaves.is_empty() {
        return Ok(Outcome::Nothing);
    }
    let of: Vec<&str> = losses.iter().map(String::as_str).collect();
    let wrt: Vec<&str> = leaves.iter().map(String::as_str).collect();
    let differentiated = match gradient(&graph, &of, &wrt) {
        Ok(graph) => graph,
        Err(tallow_ir::GradientError::Op { .. }) => return Ok(Outcome::Refused),
        Err(other) => return Err(other.to_string()),
    };
    let mut rng = Rng::new(seed ^ 0x6772_6164);
    let env = point(&graph, seed, &mut rng);
    let results = evaluate(&differentiated, &mut env.clone()).map_err(|e| e.to_string())?;
    let loss = Loss { graph: &graph, names: &losses };
    let mut outcome = Outcome::Agree;
    for name in &leaves {
        let wanted = format!("grad.{name}");
        let found = results.iter().find(|(n, _)| *n == wanted).map(|(_, array)| array.to_f64s());
        let found = found.ok_or_else(|| format!("no output {wanted}"))?;
        let direction: Vec<f64> = found.iter().map(|_| 2.0 * rng.unit() - 1.0).collect();
        if !loss.agrees(&env, name, &found, &direction)? {
            outcome = Outcome::Kink;
        }
    }
    Ok(outcome)
}

/// Random values of the leaves, moved off the grid that they are drawn from, where equal ones and zeros are many.
fn point(graph: &Graph, seed: u64, rng: &mut Rng) -> Env {
    let mut env = random_inputs(graph, seed).env();
    for array in env.inputs.values_mut().filter(|array| array.ty == DType::F64) {
        let moved: Vec<f64> = array.to_f64s().iter().map(|x| x + 0.02 * rng.unit() - 0.01).collect();
        if let Ok(made) = Array::from_f64s(array.ty, &array.shape, &moved) {
            *array = Arc::new(made);
        }
    }
    env
}

/// The sum of all elements of some outputs.
struct Loss<'a> {
    graph: &'a Graph,
    names: &'a [String],
}

impl Loss<'_> {
    /// The elements, one after the other.
    fn terms(&self, env: &Env, leaf: &str, direction: &[f64], by: f64) -> Result<Vec<f64>, String> {
        let mut env = env.clone();
        if let Some(array) = env.inputs.get_mut(leaf) {
            let moved: Vec<f64> = array.to_f64s().iter().zip(direction).map(|(x, d)| x + by * d).collect();
            let made = Array::from_f64s(array.ty, &array.shape, &moved).map_err(|e| e.to_string())?;
            *array = Arc::new(made);
        }
        let results = evaluate(self.graph, &mut env).map_err(|e| e.to_string())?;
        let is_loss = |(name, _): &&(String, Array)| self.names.contains(name);
        Ok(results.iter().filter(is_loss).flat_map(|(_, array)| array.to_f64s()).collect())
    }

    /// Whether the gradient tells the change along the direction; false where that depends on the side.
    fn agrees(&self, env: &Env, leaf: &str, gradient: &[f64], direction: &[f64]) -> Result<bool, String> {
        let at = |by: f64| self.terms(env, leaf, direction, by);
        let here = at(0.0)?;
        // Element by element, so that those that do not change add no rounding.
        let slope = |low: &[f64], high: &[f64], distance: f64| {
            low.iter().zip(high).map(|(a, b)| (b - a) / distance).sum::<f64>()
        };
        let (below, above) = (at(-STEP)?, at(STEP)?);
        let near = slope(&below, &above, 2.0 * STEP);
        let far = slope(&at(-2.0 * STEP)?, &at(2.0 * STEP)?, 4.0 * STEP);
        let terms = gradient.iter().zip(direction).map(|(g, d)| g * d);
        let size: f64 = terms.clone().map(f64::abs).sum();
        let told: f64 = terms.sum();
        let magnitude: f64 = here.iter().map(|x| x.abs()).sum();
        // The difference of two steps is about three times the error of the shorter one.
        let limit = 1e-6 * size + 1e-9 * magnitude + 4.0 * (near - far).abs() + 1e-12;
        if (told - near).abs() <= limit {
            return Ok(true);
        }
        let (left, right) = (slope(&below, &here, STEP), slope(&here, &above, STEP));
        if (left - right).abs() > 1e-3 * (left.abs() + right.abs()) + limit {
            return Ok(false);
        }
        Err(format!(
            "{leaf}: the gradient tells {told:e}, differences {near:e} (limit {limit:e}, one-sided {left:e} and \
             {right:e})"
        ))
    }
}
