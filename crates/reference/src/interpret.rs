//! The walk over a graph: what to compute, in which order, and for how long to keep it.

use std::collections::HashMap;

use tallow_ir::{Bindings, Dim, Fusion, Graph, Node, NodeId, Op, Scalar, Value, verify};

use crate::array::{Array, Data};
use crate::check::{check, no_value, shape_of};
use crate::custom::custom;
use crate::env::Env;
use crate::error::Error;
use crate::layout::Layout;
use crate::ops::{attention, attention_grad, elementwise, index, matmul, order, reduce, shape};
use crate::view::View;

/// The named outputs of `graph` in `env`, in order.
///
/// Only nodes that an output needs are computed, state updates among them; the newest version of each
/// updated state is left in `env.states`. Readers of an older version see it as it was.
///
/// # Errors
/// When a leaf or symbol is missing or unfit, an access leaves its tensor under these symbol values, or
/// the graph would not verify. Then nothing was computed and no state has changed; after
/// [`Error::OutOfMemory`] some may have.
pub fn evaluate(graph: &Graph, env: &mut Env) -> Result<Vec<(String, Array)>, Error> {
    let needed = needed(graph);
    check(graph, env, &needed)?;
    let symbols = env.symbols.clone();
    let mut run = Interpretation { symbols: &symbols, leaves: Leaves::Env(env), needed };
    let values = run.graph(graph)?;
    // What has no name is kept in its state, and nobody's to have.
    let named = graph.outputs().iter().zip(values).filter(|(output, _)| !output.name.is_empty());
    Ok(named.map(|(output, value)| (output.name.clone(), value.into_array())).collect())
}

/// Marks the nodes that outputs depend on.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.len()];
    for output in graph.outputs() {
        needed[output.value.node.index()] = true;
    }
    for (id, node) in graph.nodes().rev() {
        if needed[id.index()] {
            node.operands.iter().for_each(|v| needed[v.node.index()] = true);
        }
    }
    needed
}

/// Where leaves come from.
enum Leaves<'a> {
    /// A whole graph: by name.
    Env(&'a mut Env),
    /// A fusion's body: by number, each handed over once.
    Params(Vec<Option<View>>),
}

struct Interpretation<'a> {
    symbols: &'a Bindings,
    leaves: Leaves<'a>,
    needed: Vec<bool>,
}

/// Values that later nodes still read.
struct Live {
    results: Vec<Vec<View>>,
    uses: Vec<usize>,
}

impl Live {
    fn new(graph: &Graph, needed: &[bool]) -> Self {
        let mut uses = vec![0; graph.len()];
        for (_, node) in graph.nodes().filter(|(id, _)| needed[id.index()]) {
            node.operands.iter().for_each(|v| uses[v.node.index()] += 1);
        }
        graph.outputs().iter().for_each(|o| uses[o.value.node.index()] += 1);
        Live { results: vec![vec![]; graph.len()], uses }
    }

    /// A value for one use; the last use takes it.
    fn take(&mut self, v: Value) -> Result<View, Error> {
        let (node, result) = (v.node.index(), v.result as usize);
        self.uses[node] = self.uses[node].saturating_sub(1);
        let mut last = if self.uses[node] == 0 { std::mem::take(&mut self.results[node]) } else { vec![] };
        let found = if last.is_empty() {
            self.results[node].get(result).cloned()
        } else {
            last.drain(..).nth(result)
        };
        found.ok_or_else(|| Error::Malformed { node: v.node.0, why: "is read before it is computed".into() })
    }
}

impl Interpretation<'_> {
    /// The values of the graph's outputs.
    fn graph(&mut self, graph: &Graph) -> Result<Vec<View>, Error> {
        let mut live = Live::new(graph, &self.needed);
        // Which state each value is a version of.
        let mut versions: HashMap<Value, String> = HashMap::new();
        for (id, node) in graph.nodes() {
            if !self.needed[id.index()] {
                continue;
            }
            let operands = node.operands.iter().map(|v| live.take(*v)).collect::<Result<Vec<_>, _>>()?;
            let updated = updated(id, node, &mut versions);
            self.release(&updated);
            let results = self.node(id, node, operands)?;
            self.store(&updated, &results);
            live.results[id.index()] = results;
        }
        graph.outputs().iter().map(|o| live.take(o.value)).collect()
    }

    /// Drops the environment's hold on the states that a node is about to overwrite: if no other value
    /// holds their buffers, they are written in place.
    fn release(&mut self, updated: &[(u32, String)]) {
        if let Leaves::Env(env) = &mut self.leaves {
            for (_, name) in updated {
                if let Some(state) = env.states.get_mut(name) {
                    state.data = Data::Int(Default::default());
                }
            }
        }
    }

    /// Gives the new versions to the environment.
    fn store(&mut self, updated: &[(u32, String)], results: &[View]) {
        if let Leaves::Env(env) = &mut self.leaves {
            for (result, name) in updated {
                if let (Some(state), Some(value)) = (env.states.get_mut(name), results.get(*result as usize))
                {
                    state.data = value.clone().into_packed().data;
                }
            }
        }
    }

    fn node(&mut self, id: NodeId, node: &Node, operands: Vec<View>) -> Result<Vec<View>, Error> {
        if let Op::Fusion(fusion) = &node.op {
            return self.fusion(fusion, operands);
        }
        if let Op::Custom(kernel) = &node.op {
            return custom(id, kernel, &node.types, operands, self.symbols);
        }
        let extents = shape_of(&node.types[0], self.symbols, id)?;
        check_memory(id, &node.op, &extents, &operands)?;
        if let Op::AttentionGrad(attrs, side) = &node.op {
            let dtypes = [0, 1].map(|result| node.types[result].dtype);
            return Ok(attention_grad::attention_grad(attrs, *side, dtypes, &operands));
        }
        self.one_result(id, node, operands, &extents).map(|v| vec![v])
    }

    fn fusion(&mut self, fusion: &Fusion, operands: Vec<View>) -> Result<Vec<View>, Error> {
        let params = operands.into_iter().map(Some).collect();
        let needed = needed(&fusion.body);
        let mut inner = Interpretation { symbols: self.symbols, leaves: Leaves::Params(params), needed };
        inner.graph(&fusion.body)
    }

    fn one_result(
        &mut self,
        id: NodeId,
        node: &Node,
        mut operands: Vec<View>,
        extents: &[usize],
    ) -> Result<View, Error> {
        let dtype = node.types[0].dtype;
        let eval = |dim: &Dim| dim.eval(self.symbols).ok_or_else(|| no_value(id, dim));
        let eval_len = |dim: &Dim| usize::try_from(eval(dim)?).map_err(|_| no_value(id, dim));
        let with = |layout: Layout| Ok(operands[0].with_layout(layout));
        match &node.op {
            Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::Param { .. } => {
                self.leaf(id, &node.op)
            }
            Op::Const(scalar) => Ok(elementwise::constant(*scalar)),
            Op::Iota { len, dtype } => Ok(elementwise::iota(eval_len(len)?, *dtype)),
            Op::DimValue { dim, dtype } => Ok(elementwise::dim_value(eval(dim)?, *dtype)),
            Op::Scalar { symbol, dtype } => {
                let bits = eval(&Dim::from(symbol))? as u32;
                Ok(elementwise::constant(Scalar::float(*dtype, f64::from(f32::from_bits(bits)))))
            }
            Op::Elementwise(op) => Ok(elementwise::elementwise(*op, dtype, &operands)),
            Op::Cast(dtype) => Ok(elementwise::cast(&operands[0], *dtype)),
            Op::Reshape(_) => Ok(shape::reshape(&operands[0], extents)),
            Op::Broadcast(_) => with(operands[0].layout.broadcast(extents)),
            Op::Permute(axes) => with(operands[0].layout.permute(axes)),
            Op::Slice { axis, start, len } => {
                with(operands[0].layout.slice(*axis, eval_len(start)?, eval_len(len)?))
            }
            Op::Flip { axis } => with(operands[0].layout.flip(*axis)),
            Op::Window { axis, stride, dilation, .. } => {
                with(operands[0].layout.window(*axis, extents[*axis], extents[axis + 1], *stride, *dilation))
            }
            Op::Pad { axis, before, value, .. } => {
                shape::pad(&operands[0], *axis, eval_len(before)?, extents, *value)
            }
            Op::Concat { axis } => shape::concat(&operands, *axis, extents),
            Op::Reduce { kind, axes } => Ok(reduce::reduce(*kind, axes, dtype, &operands[0])),
            Op::Scan { kind, axis, part } => Ok(order::scan(*kind, *axis, &operands, *part)),
            Op::ArgSort { axis, descending, span } => {
                Ok(order::argsort(*axis, *descending, *span, &operands[0]))
            }
            Op::MergeRuns { axis, descending, run } => {
                Ok(order::merge_runs(*axis, *descending, *run, &operands[0], &operands[1]))
            }
            Op::Scatter(kind) => Ok(index::scatter(*kind, &operands[0], &operands[1], &operands[2])),
            Op::IndexAdd => Ok(index::index_add(&operands[0], &operands[1], &operands[2])),
            Op::Matmul => Ok(matmul::matmul(dtype, &operands[0], &operands[1], extents)),
            Op::Gather { axis } => Ok(index::gather(&operands[0], &operands[1], *axis, extents)),
            Op::Dequantize(dtype) => Ok(elementwise::dequantize(&operands[0], *dtype)),
            Op::Quantize(format) => Ok(elementwise::quantize(&operands[0], *format)),
            Op::Attention(attrs) => Ok(attention::attention(dtype, attrs, &operands)),
            Op::StateUpdate { offsets, rows } => {
                let at = offsets.iter().map(eval_len).collect::<Result<Vec<_>, _>>()?;
                // The state's buffer is moved, so that it may have no other holder.
                let state = operands.remove(0);
                Ok(match rows {
                    Some(axis) => shape::update_rows(state, &operands[0], &operands[1], *axis, &at),
                    None => shape::update(state, &operands[0], &at),
                })
            }
            Op::AttentionGrad(..) | Op::Custom(_) | Op::Fusion(_) => {
                Err(Error::Malformed { node: id.0, why: "it has many results".into() })
            }
        }
    }

    fn leaf(&mut self, id: NodeId, op: &Op) -> Result<View, Error> {
        let found = match (&mut self.leaves, op) {
            (Leaves::Env(env), Op::Input { name, .. }) => env.inputs.get(name).map(|a| View::from_array(a)),
            (Leaves::Env(env), Op::Weight { name, .. }) => env.weights.get(name).map(|a| View::from_array(a)),
            (Leaves::Env(env), Op::State { name, .. }) => env.states.get(name).map(View::from_array),
            (Leaves::Params(params), Op::Param { index, .. }) => {
                params.get_mut(*index as usize).and_then(Option::take)
            }
            (Leaves::Env(_) | Leaves::Params(_), _) => None,
        };
        found.ok_or_else(|| Error::Malformed { node: id.0, why: format!("{} has no value here", op.name()) })
    }
}

/// Which results of a node are new versions of which states; notes them in `versions`.
fn updated(id: NodeId, node: &Node, versions: &mut HashMap<Value, String>) -> Vec<(u32, String)> {
    let mut found = vec![];
    match &node.op {
        Op::State { name, .. } => {
            versions.insert(id.into(), name.clone());
        }
        Op::StateUpdate { .. } => found.extend(versions.get(&node.operands[0]).map(|n| (0, n.clone()))),
        Op::Fusion(fusion) => {
            for result in 0..node.types.len() as u32 {
                let operand = verify::updated_param(fusion, result).map(|p| &node.operands[p as usize]);
                found.extend(operand.and_then(|v| versions.get(v)).map(|n| (result, n.clone())));
            }
        }
        _ => {}
    }
    for (result, name) in &found {
        versions.insert(Value { node: id, result: *result }, name.clone());
    }
    found
}

/// Sizes below this are not asked for beforehand.
const LARGE: u64 = 1 << 30;

/// Asks for the memory that a large node will take, since a failed allocation inside would abort.
fn check_memory(id: NodeId, op: &Op, extents: &[usize], operands: &[View]) -> Result<(), Error> {
    let elements = |shape: &[usize]| shape.iter().fold(1u64, |n, d| n.saturating_mul(*d as u64));
    let width = size_of::<f64>() as u64;
    let bytes = match op {
        Op::Broadcast(_) | Op::Permute(_) | Op::Slice { .. } | Op::Flip { .. } | Op::Window { .. } => 0,
        // These copy their operands to f64.
        Op::Matmul | Op::Attention(_) | Op::AttentionGrad(..) => {
            let read =
                operands.iter().map(|v| elements(v.shape())).fold(elements(extents), u64::saturating_add);
            read.saturating_mul(width)
        }
        _ => elements(extents).saturating_mul(width),
    };
    if bytes < LARGE {
        return Ok(());
    }
    let can_allocate = usize::try_from(bytes).is_ok_and(|n| Vec::<u8>::new().try_reserve_exact(n).is_ok());
    if can_allocate { Ok(()) } else { Err(Error::OutOfMemory { node: id.0, bytes }) }
}
