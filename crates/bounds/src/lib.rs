//! How far kernels may be from the interpreter, element by element: a graph of intervals.
//!
//! The interpreter evaluates each node exactly and rounds it once to its dtype. A kernel computes in f32 (in f64
//! for f64) with the errors that Vulkan allows, and between the nodes that it fuses it leaves the rounding to
//! 16-bit floats out. No bound on a whole tensor holds for that: a difference of neighbours makes of a last place
//! as much as the graph likes. So each value gets an interval that holds what every such kernel may compute:
//!
//! 1. The image of the operands' intervals under the op, from the ends where it is monotone, else by its slope.
//! 2. Widened by the error of the op as kernels compute it (`functions.rs` has the table).
//! 3. For f16 and bf16 the hull of that and of both ends rounded to the type: a kernel rounds or does not. For
//!    f8e4m3, which kernels round at each node, both ends rounded. Rounding is monotone, so that is all.
//!
//! Inputs are exact, explicit casts round both ends, integers stay exact unless they are made of inexact floats.
//! Both ends are computed in f64 by a graph of their own, which the interpreter evaluates like any other: twice
//! the nodes, a few more for each error. States have two ends too, which the next run starts from.
//!
//! By construction the interpreter's own result lies within its interval, which [`Interval::check`] also demands.

mod attention;
mod combine;
mod error;
mod functions;
mod interval;
mod outside;
mod range;

use std::collections::HashMap;

use tallow_ir::passes::expand_attention;
use tallow_ir::{Custom, DType, Dim, Graph, GraphError, Op, Scalar, TensorType, Value};
use tallow_reference::{Array, Env, evaluate};

pub use error::{Error, Result};
pub use interval::{Comparison, Interval};
pub use outside::Outside;
use range::Range;

/// What a user's kernel computes, as a graph of params: given the kernel, the types of its operands and of its results.
/// `None` if that is not known; then its results may be anything.
pub type Formula = fn(&Custom, &[TensorType], &[TensorType]) -> Option<Graph>;

/// Intervals for the outputs and states of one graph.
#[derive(Clone, Debug)]
pub struct Bounds {
    graph: Graph,
    /// Ends of the states, by their names here, once a run has left them.
    states: HashMap<String, Array>,
}

/// The name of an end.
fn ends(name: &str) -> [String; 2] {
    [format!("{name} low"), format!("{name} high")]
}

impl Bounds {
    /// The graph of intervals of `graph`. The results of users' kernels may be anything.
    ///
    /// # Errors
    /// When the graph does not verify, or holds a node that has no interval.
    pub fn of(graph: &Graph) -> Result<Bounds> {
        Bounds::with_formula(graph, |_, _, _| None)
    }

    /// As [`Bounds::of`], where `formula` says what users' kernels compute.
    ///
    /// # Errors
    /// As [`Bounds::of`].
    pub fn with_formula(graph: &Graph, formula: Formula) -> Result<Bounds> {
        let mut new = Intervals { graph: Graph::new("bounds"), formula };
        // Both its kernels and the interpreter round where the formulas do.
        let expanded = expand_attention::expand(graph, |_, _, _| true)?;
        let ranges = new.body(&expanded, &[])?;
        let mut bounds = new.graph;
        for (output, range) in graph.outputs().iter().zip(ranges) {
            // What has no name is kept, and found in its state.
            let [low, high] =
                if output.name.is_empty() { [const { String::new() }; 2] } else { ends(&output.name) };
            bounds.output(&low, range.low)?;
            bounds.output(&high, range.high)?;
        }
        Ok(Bounds { graph: bounds, states: HashMap::new() })
    }

    /// The graph of intervals, for a look at it.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The intervals of outputs and states of a run, by name; the next run starts from where it left the states.
    ///
    /// # Errors
    /// When the environment does not fit the graph.
    pub fn run(&mut self, mut env: Env) -> Result<Vec<(String, Interval)>> {
        let mut names: Vec<String> = env.states.keys().cloned().collect();
        names.sort_unstable();
        for (name, state) in std::mem::take(&mut env.states) {
            let wide = if is_real(state.ty) { DType::F64 } else { state.ty };
            let wide = if wide == state.ty { Ok(state.clone()) } else { widened(&state) }?;
            for end in if is_real(state.ty) { ends(&name).to_vec() } else { vec![name] } {
                let array = self.states.get(&end).unwrap_or(&wide).clone();
                env.states.insert(end, array);
            }
        }
        env.symbols.retain(|name, _| self.graph.symbols().any(|s| s.name() == name));
        let found = evaluate(&self.graph, &mut env)?;
        let mut all = vec![];
        for pair in found.as_chunks::<2>().0 {
            let name = pair[0].0.strip_suffix(" low").unwrap_or(&pair[0].0);
            all.push((name.to_string(), Interval::new(pair[0].1.clone(), pair[1].1.clone())));
        }
        all.extend(names.iter().filter_map(|name| Some((format!("state {name}"), state(name, &env)?))));
        self.states = env.states.into_iter().collect();
        Ok(all)
    }
}

fn widened(a: &Array) -> Result<Array> {
    Ok(Array::from_f64s(DType::F64, &a.shape, &a.to_f64s())?)
}

/// Both ends of a state after a run; an integer has one.
fn state(name: &str, env: &Env) -> Option<Interval> {
    let [low, high] = ends(name);
    let end = |end: String| env.states.get(&end).or(env.states.get(name)).cloned();
    Some(Interval::new(end(low)?, end(high)?))
}

/// The graph of intervals under construction.
struct Intervals {
    graph: Graph,
    formula: Formula,
}

impl Intervals {
    /// The intervals of the outputs of `of`, whose params, if it is a body, have the intervals `params`.
    fn body(&mut self, of: &Graph, params: &[Range]) -> Result<Vec<Range>> {
        let mut ranges: Vec<Vec<Range>> = vec![];
        for (id, node) in of.nodes() {
            let operands: Vec<Range> =
                node.operands.iter().map(|v| ranges[v.node.index()][v.result as usize]).collect();
            let fail = |source| Error::Node { node: format!("%{} = {}", id.0, of.node_text(id)), source };
            ranges.push(match &node.op {
                Op::Fusion(fusion) => self.body(&fusion.body, &operands)?,
                Op::Param { index, .. } => vec![params[*index as usize]],
                Op::Custom(kernel) => {
                    let types: Vec<TensorType> = node.operands.iter().map(|v| of.ty(*v).clone()).collect();
                    match (self.formula)(kernel, &types, &node.types) {
                        Some(body) => self.body(&body, &operands)?,
                        None => {
                            let any = node.types.iter().map(|ty| self.any(ty));
                            any.collect::<Result<_, GraphError>>().map_err(fail)?
                        }
                    }
                }
                op => vec![self.node(op, of, id.into(), &operands).map_err(fail)?],
            });
        }
        Ok(of.outputs().iter().map(|o| ranges[o.value.node.index()][o.value.result as usize]).collect())
    }

    fn node(&mut self, op: &Op, of: &Graph, v: Value, operands: &[Range]) -> Result<Range, GraphError> {
        let ty = of.ty(v);
        let operand = |i: usize| of.ty(of.node(v.node).operands[i]);
        match op {
            Op::Input { name, ty } => {
                let leaf = self.graph.input(name, ty.dtype, ty.shape.clone())?;
                Ok(Range::exact(self.wide(leaf)?))
            }
            Op::Weight { name, ty } => {
                let leaf = self.graph.weight(name, ty.dtype, ty.shape.clone())?;
                Ok(Range::exact(self.wide(leaf)?))
            }
            Op::State { name, ty } if is_real(ty.dtype) => {
                let [low, high] = ends(name);
                let mut end = |name: &str| self.graph.state(name, DType::F64, ty.shape.clone());
                Ok(Range { low: end(&low)?, high: end(&high)? })
            }
            Op::State { name, ty } => Ok(Range::exact(self.graph.state(name, ty.dtype, ty.shape.clone())?)),
            Op::Const(scalar) => Ok(Range::exact(self.graph.add(Op::Const(wide_scalar(*scalar)), &[])?)),
            Op::Iota { len, dtype } => {
                let iota = self.graph.add(Op::Iota { len: len.clone(), dtype: wide_type(*dtype) }, &[])?;
                self.narrowed(*dtype, Range::exact(iota))
            }
            Op::DimValue { dim, dtype } => {
                let value =
                    self.graph.add(Op::DimValue { dim: dim.clone(), dtype: wide_type(*dtype) }, &[])?;
                self.narrowed(*dtype, Range::exact(value))
            }
            Op::Scalar { symbol, dtype } => {
                let value =
                    self.graph.add(Op::Scalar { symbol: symbol.clone(), dtype: wide_type(*dtype) }, &[])?;
                self.narrowed(*dtype, Range::exact(value))
            }
            Op::Elementwise(op) => self.elementwise(*op, operand(operands.len() - 1).dtype, operands),
            Op::Cast(to) => self.cast(operand(0).dtype, *to, operands[0]),
            Op::Pad { axis, before, after, value } => {
                let (axis, before, after) = (*axis, before.clone(), after.clone());
                self.both(&Op::Pad { axis, before, after, value: wide_scalar(*value) }, operands)
            }
            Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Flip { .. }
            | Op::Window { .. }
            | Op::Concat { .. } => self.both(op, operands),
            // Which rows are written must be known.
            Op::StateUpdate { .. }
                if operands[2..].iter().all(|r| r.is_exact())
                    && (is_real(ty.dtype) || operands.iter().all(|r| r.is_exact())) =>
            {
                self.both(op, operands)
            }
            Op::StateUpdate { .. } if is_real(ty.dtype) => {
                // Any row may be written, and the state holds that when the run is over.
                let any = self.any(ty)?;
                let whole = Op::StateUpdate { offsets: vec![Dim::zero(); ty.shape.rank()], rows: None };
                let low = self.graph.add(whole.clone(), &[operands[0].low, any.low])?;
                Ok(Range { low, high: self.graph.add(whole, &[operands[0].high, any.high])? })
            }
            Op::StateUpdate { .. } => self.any(ty),
            Op::Gather { .. } if operands[1].is_exact() => self.both(op, operands),
            Op::Gather { .. } => self.any(ty),
            Op::Reduce { kind, axes } => {
                let count: Dim = axes.iter().fold(Dim::one(), |n, i| &n * &operand(0).shape.dims()[*i]);
                let reduced = self.reduce(*kind, axes, &count, operand(0).dtype, operands[0])?;
                self.narrowed(ty.dtype, reduced)
            }
            // Only passes divide scans; their graphs are compared with the original's bounds.
            Op::Scan { part: Some(_), .. } => self.any(ty),
            Op::Scan { kind, axis, part: None } => {
                let count = operand(0).shape.dims()[*axis].max_value();
                let scanned = self.scan(*kind, *axis, count, ty, operands)?;
                self.narrowed(ty.dtype, scanned)
            }
            Op::ArgSort { .. } | Op::MergeRuns { .. } if operands[0].is_exact() => self.both(op, operands),
            Op::ArgSort { .. } | Op::MergeRuns { .. } => self.any(ty),
            Op::Scatter(kind) => {
                let count = operand(1).shape.max_numel();
                let combined = self.scatter(*kind, count, ty, operands)?;
                self.narrowed(ty.dtype, combined)
            }
            Op::IndexAdd => {
                let count = operand(1).shape.max_numel();
                let added = self.index_add(count, ty, operands)?;
                self.narrowed(ty.dtype, added)
            }
            Op::Matmul => {
                let depth = operand(0).shape.dims().last().map_or(1, Dim::max_value);
                let product = self.matmul(depth, ty, operands)?;
                self.narrowed(ty.dtype, product)
            }
            Op::Dequantize(dtype) => {
                let rounded = self.graph.ty(operands[0].low).dtype == DType::F64;
                let values = if rounded { operands[0] } else { self.dequantize(operands[0])? };
                self.narrowed(*dtype, values)
            }
            Op::Quantize(format) => self.quantize(*format, ty, operands[0]),
            // Expanded above.
            Op::AttentionGrad(..) => self.any(ty),
            Op::Attention(attention) => {
                let wide = (0..operands.len()).any(|i| operand(i).dtype == DType::F64);
                let dtype = if wide { DType::F64 } else { DType::F32 };
                let found = self.attention(attention, [dtype, operand(2).dtype], operands)?;
                self.narrowed(ty.dtype, found)
            }
            Op::Param { .. } | Op::Custom(_) | Op::Fusion(_) => self.any(ty),
        }
    }

    /// An op that moves elements, on both ends.
    fn both(&mut self, op: &Op, operands: &[Range]) -> Result<Range, GraphError> {
        let lows: Vec<Value> = operands.iter().map(|r| r.low).collect();
        let highs: Vec<Value> = operands.iter().map(|r| r.high).collect();
        Ok(Range { low: self.graph.add(op.clone(), &lows)?, high: self.graph.add(op.clone(), &highs)? })
    }
}

/// True for types of real numbers, in themselves or as blocks; the interval of those is of what they mean.
fn is_real(dtype: DType) -> bool {
    dtype.is_float() || matches!(dtype, DType::Block(_))
}

/// The type of the ends of an interval.
fn wide_type(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { dtype }
}

fn wide_scalar(x: Scalar) -> Scalar {
    if x.dtype().is_float() { Scalar::float(DType::F64, x.as_f64()) } else { x }
}
