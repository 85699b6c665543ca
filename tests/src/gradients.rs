//! Gradients against differences: a random graph is differentiated, and the change of its outputs along a random direction
//! is compared with what the gradient says, both by the interpreter in f64.
//!
//! The outputs are weighted by random numbers first, since sums of whole rows hide errors: that of a softmax is 1.
//!
//! The outputs `f(t)` along a direction are evaluated at `t = -2h, -h, 0, h, 2h`. The slope at 0 is
//! `(8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h` up to `h^4`. The third and fourth differences of the same values say how
//! far it can be trusted. Of a smooth function they are about `h^3` and `h^4` times a derivative. Rounding adds what the
//! condition of the graph makes of it. Where the function bends or jumps between the points, they are about as large as
//! the change itself. So they are the tolerance, and a point where they are not small is rejected: it says nothing.
//! Many jumps between two points can look smooth (`x mod b` for a small `b`). So where gradient and slope disagree, two
//! points close by decide whether the slope is one.

use std::sync::Arc;

use tallow_ir::rewrite::rebuild;
use tallow_ir::{
    DType, Dim, ElementwiseOp, GradientError, Graph, GraphError, Op, ReduceKind, Scalar, ScanKind, Shape,
    TensorType, gradient, verify,
};
use tallow_reference::{Array, Env, evaluate};

use crate::random_graph::{Options, covering_graph, random_graph, random_row_program};
use crate::random_inputs::random_inputs;
use crate::rng::Rng;

/// How a graph fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Gradients and differences agree.
    Agree,
    /// The outputs jump or bend too close to this point: differences say nothing.
    Rejected,
    /// There are no floats to differentiate, or an op takes no f64.
    Nothing,
    /// An op has no derivative, or the gradient needs an overwritten state, and the error says so.
    Refused,
}

/// How many graphs fared how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; 4]);

impl Counts {
    /// Counts one.
    pub fn add(&mut self, outcome: Outcome) {
        self.0[outcome as usize] += 1;
    }

    /// Whether so many points were rejected, 5 % or more, that the check says too little.
    pub fn are_too_many_rejected(&self) -> bool {
        let [agree, rejected, ..] = self.0;
        rejected * 20 >= agree + rejected
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [agree, rejected, nothing, refused] = self.0;
        let share = 100.0 * rejected as f64 / (agree + rejected).max(1) as f64;
        write!(
            f,
            "gradients of {agree} graphs agree with differences; {rejected} ({share:.2} %) were rejected, \
             {nothing} had no floats, {refused} were refused"
        )
    }
}

/// The distance `h` between the points. The slope's error is `h^4`, and the rounding of f64 divided by `h`.
const STEP: f64 = 1e-4;
/// A slope is known to this part of the sizes that it is the sum of.
const EXACT: f64 = 1e-7;
/// A slope that is known less well than to this part says too little.
const TOO_ROUGH: f64 = 1e-3;
/// As much may the rounding of a gradient be, in parts of the gradients of the outputs: terms may cancel.
const CANCELLED: f64 = 1e-12;
/// Part of the distance at which the points close by lie.
const CLOSE: f64 = 1e-2;
/// As much may be the rounding of outputs, in parts of their sizes: rejected are only points beyond it.
const NOISE: f64 = 1e-8;

/// Graph number `seed`: of everything that has a derivative, in f64, with states and their updates.
pub fn differentiable_graph(seed: u64) -> Graph {
    let options = Options {
        floats: vec![DType::F64],
        custom: false,
        sinks: false,
        max_elements: 256,
        ..Options::default()
    };
    match seed % 4 {
        0 => random_graph(seed, 6, &options),
        1 => covering_graph(seed, seed / 4, 3, &options),
        2 => random_row_program(seed),
        _ => functions_of_two(seed).unwrap_or_else(|e| panic!("operands fit by construction: {e}")),
    }
}

/// What other graphs do not have. Functions whose second operand is a constant there: a power, a remainder and a quotient, of
/// tensors that repeat along some axes. And products whose factors may be 0.
fn functions_of_two(seed: u64) -> Result<Graph, GraphError> {
    let mut rng = Rng::new(seed);
    let mut graph = Graph::new(&format!("functions_{seed}"));
    let shape = Shape::from(vec![Dim::from(rng.between(1, 3)), Dim::from(rng.between(1, 5))]);
    let mut operand = |graph: &mut Graph, name: &str| {
        let axes: Vec<usize> = (0..2).filter(|_| rng.chance(30)).collect();
        let x = graph.input(name, DType::F64, shape.with_ones(&axes))?;
        graph.broadcast(x, shape.clone())
    };
    let (x, y) = (operand(&mut graph, "x")?, operand(&mut graph, "y")?);
    // From 1/2 on, so that neither quotients nor logarithms are large.
    let size = graph.elementwise(ElementwiseOp::Abs, &[y])?;
    let half = graph.full_like(y, 0.5)?;
    let above = graph.elementwise(ElementwiseOp::Add, &[size, half])?;
    let ops = [ElementwiseOp::Div, ElementwiseOp::Rem, ElementwiseOp::Minimum, ElementwiseOp::Maximum];
    for op in ops {
        let made = graph.elementwise(op, &[x, above])?;
        graph.output(op.name(), made)?;
    }
    let power = graph.elementwise(ElementwiseOp::Pow, &[above, x])?;
    graph.output("pow", power)?;
    let factors = graph.input(ZEROS, DType::F64, shape)?;
    let running = graph.add(Op::Scan { kind: ScanKind::Prod, axis: 1, part: None }, &[factors])?;
    graph.output("running product", running)?;
    let product = graph.add(Op::Reduce { kind: ReduceKind::Prod, axes: vec![1] }, &[factors])?;
    graph.output("product", product)?;
    Ok(graph)
}

/// The leaf of which some elements are 0, which they never are elsewhere, since most functions bend there.
const ZEROS: &str = "zeros";

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

/// The graph with the gradients of all its float outputs with respect to all float leaves; `None` where it has none.
pub fn with_gradients(graph: &Graph) -> Option<Graph> {
    let is_float = |value| graph.ty(value).dtype.is_float();
    let of = graph.outputs().iter().filter(|output| !output.name.is_empty() && is_float(output.value));
    let of: Vec<&str> = of.map(|output| output.name.as_str()).collect();
    let leaves = float_leaves(graph);
    let wrt: Vec<&str> = leaves.iter().map(String::as_str).collect();
    if of.is_empty() || wrt.is_empty() { None } else { gradient(graph, &of, &wrt).ok() }
}

/// The leaves of a float type that a gradient may be asked for: inputs, states and weights of plain floats.
pub fn float_leaves(graph: &Graph) -> Vec<String> {
    let leaf = |op: &Op| match op {
        Op::Input { name, ty } | Op::State { name, ty } | Op::Weight { name, ty } if ty.dtype.is_float() => {
            Some(name.clone())
        }
        _ => None,
    };
    graph.nodes().filter_map(|(_, node)| leaf(&node.op)).collect()
}

/// Checks the gradients of one graph, computed in f64 throughout.
///
/// # Errors
/// When a gradient and the differences disagree, the verifier rejects the graph with gradients, or differentiating fails
/// otherwise than by an op without derivative.
pub fn check(graph: &Graph, seed: u64) -> Result<Outcome, String> {
    let Some(graph) = widened(graph) else { return Ok(Outcome::Nothing) };
    let (graph, losses) = weighted(&graph)?;
    let leaves = float_leaves(&graph);
    if losses.is_empty() || leaves.is_empty() {
        return Ok(Outcome::Nothing);
    }
    let of: Vec<&str> = losses.iter().map(String::as_str).collect();
    let wrt: Vec<&str> = leaves.iter().map(String::as_str).collect();
    let differentiated = match gradient(&graph, &of, &wrt) {
        Ok(graph) => graph,
        Err(GradientError::Op { .. } | GradientError::Overwritten { .. }) => return Ok(Outcome::Refused),
        Err(other) => return Err(other.to_string()),
    };
    let differentiated = verify(differentiated).map_err(|found| format!("with gradients: {found:?}"))?;
    let mut rng = Rng::new(seed ^ 0x6772_6164);
    let env = point(&graph, seed, &mut rng);
    let results = evaluate(differentiated.graph(), &mut env.clone()).map_err(|e| e.to_string())?;
    let weights = env.inputs.iter().filter(|(name, _)| name.starts_with("weight of "));
    let weights = weights.flat_map(|(_, array)| array.to_f64s()).map(f64::abs).sum();
    let loss = Loss { graph: &graph, names: &losses, weights };
    let mut outcome = Outcome::Agree;
    for name in &leaves {
        let wanted = format!("grad.{name}");
        let found = results.iter().find(|(n, _)| *n == wanted).map(|(_, array)| array.to_f64s());
        let found = found.ok_or_else(|| format!("no output {wanted}"))?;
        let direction: Vec<f64> = found.iter().map(|_| 2.0 * rng.unit() - 1.0).collect();
        if !loss.agrees(&env, name, &found, &direction)? {
            outcome = Outcome::Rejected;
        }
    }
    Ok(outcome)
}

/// Random values of the leaves, moved off the grid that they are drawn from, where equal ones and zeros are many.
fn point(graph: &Graph, seed: u64, rng: &mut Rng) -> Env {
    let mut env = random_inputs(graph, seed).env();
    for (name, array) in leaves_of(&mut env) {
        let mut moved = |x: &f64| match name == ZEROS && rng.chance(30) {
            true => 0.0,
            false => x + 0.02 * rng.unit() - 0.01,
        };
        let moved: Vec<f64> = array.to_f64s().iter().map(&mut moved).collect();
        if let Ok(made) = Array::from_f64s(array.ty, &array.shape, &moved) {
            *array = made;
        }
    }
    env
}

/// The leaves of f64, in an order that does not change from run to run.
fn leaves_of(env: &mut Env) -> Vec<(&String, &mut Array)> {
    let mut all: Vec<(&String, &mut Array)> = vec![];
    let shared = env.inputs.iter_mut().chain(env.weights.iter_mut());
    all.extend(shared.map(|(name, array)| (name, Arc::make_mut(array))));
    all.extend(env.states.iter_mut());
    all.sort_by(|a, b| a.0.cmp(b.0));
    all.retain(|(_, array)| array.ty == DType::F64);
    all
}

/// The sum of all elements of some outputs.
struct Loss<'a> {
    graph: &'a Graph,
    names: &'a [String],
    /// The sum of the magnitudes of the outputs' gradients.
    weights: f64,
}

impl Loss<'_> {
    /// The elements, one after the other.
    fn terms(&self, env: &Env, leaf: &str, direction: &[f64], by: f64) -> Result<Vec<f64>, String> {
        let mut env = env.clone();
        let shared = env.inputs.get_mut(leaf).or(env.weights.get_mut(leaf)).map(Arc::make_mut);
        let Some(array) = shared.or(env.states.get_mut(leaf)) else { return Err(format!("no leaf {leaf}")) };
        let moved: Vec<f64> = array.to_f64s().iter().zip(direction).map(|(x, d)| x + by * d).collect();
        *array = Array::from_f64s(array.ty, &array.shape, &moved).map_err(|e| e.to_string())?;
        let results = evaluate(self.graph, &mut env).map_err(|e| e.to_string())?;
        let is_loss = |(name, _): &&(String, Array)| self.names.contains(name);
        Ok(results.iter().filter(is_loss).flat_map(|(_, array)| array.to_f64s()).collect())
    }

    /// Whether the gradient tells the change along the direction; false where differences do not tell it.
    fn agrees(&self, env: &Env, leaf: &str, gradient: &[f64], direction: &[f64]) -> Result<bool, String> {
        let mut at = vec![];
        for steps in -2..=2 {
            at.push(self.terms(env, leaf, direction, f64::from(steps) * STEP)?);
        }
        // Element by element, so that those that do not change add no rounding.
        let sum = |of: fn([f64; 5]) -> f64| {
            let each = |i: usize| of([at[0][i], at[1][i], at[2][i], at[3][i], at[4][i]]);
            (0..at[0].len()).map(each).sum::<f64>()
        };
        let slope = sum(|[a, b, _, d, e]| (8.0 * (d - b) - (e - a)) / 12.0) / STEP;
        let slopes = sum(|[_, b, _, d, _]| (d - b).abs() / 2.0) / STEP;
        let third = sum(|[a, b, _, d, e]| ((e - a) - 2.0 * (d - b)).abs()) / STEP;
        let fourth = sum(|[a, b, c, d, e]| ((a + e) - 4.0 * (b + d) + 6.0 * c).abs()) / STEP;
        let values = sum(|[_, _, c, _, _]| c.abs());
        let terms = gradient.iter().zip(direction).map(|(g, d)| g * d);
        let told: f64 = terms.clone().sum();
        let size = terms.map(f64::abs).sum::<f64>().max(slopes);
        let limit = EXACT * size + 2.0 * (third + fourth) + 8.0 * f64::EPSILON * values / STEP;
        let limit = limit + CANCELLED * self.weights;
        if slope.is_finite() && !told.is_finite() {
            return Err(format!("{leaf}: the gradient tells {told:e}, differences {slope:e}"));
        }
        let enough = TOO_ROUGH * slopes + NOISE * (values + self.weights) + 2.0 * EXACT * size;
        if !slope.is_finite() || limit > enough {
            return Ok(false);
        }
        if (told - slope).abs() <= limit {
            return Ok(true);
        }
        let close = CLOSE * STEP;
        let (below, above) =
            (self.terms(env, leaf, direction, -close)?, self.terms(env, leaf, direction, close)?);
        let near: f64 = below.iter().zip(&above).map(|(a, b)| (b - a) / (2.0 * close)).sum();
        // Rounding counts a hundred times as much here, and the second derivative no more than before.
        if (near - slope).abs() > limit / CLOSE + TOO_ROUGH * slopes {
            return Ok(false);
        }
        Err(format!("{leaf}: the gradient tells {told:e}, differences {slope:e} (limit {limit:e})"))
    }
}
