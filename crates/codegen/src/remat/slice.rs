//! Kernels that compute some results of another kernel.

use std::collections::{BTreeMap, BTreeSet};

use tallow_ir::form::{bindings, form};
use tallow_ir::verify::updated_param;
use tallow_ir::{DeviceCaps, Fusion, FusionKind, Graph, GraphError, Op, Value};

/// What a param of a [`Slice`] is, of the node that it was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// Operand of that number.
    Operand(u32),
    /// Result of that number, which is in memory.
    Result(u32),
}

/// A kernel for some results of a fusion.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slice {
    pub(super) fusion: Fusion,
    /// By param.
    pub(super) params: Vec<Source>,
}

/// Whether a kernel has the same results in each run on the same operands, and writes nothing else.
///
/// Scatters add in any order. What a user's kernel does is not known.
pub(super) fn is_repeatable(fusion: &Fusion) -> bool {
    let updates = |result: usize| updated_param(fusion, result as u32).is_some();
    match fusion.kind {
        FusionKind::Scatter | FusionKind::Custom => false,
        FusionKind::Map
        | FusionKind::Quantize
        | FusionKind::Row
        | FusionKind::Matvec
        | FusionKind::Matmul
        | FusionKind::Attention
        | FusionKind::AttentionGrad
        | FusionKind::Scan
        | FusionKind::Sort
        | FusionKind::IndexAdd => !(0..fusion.body.outputs().len()).any(updates),
    }
}

/// The kernel that computes `results` of a fusion from its operands and from those other results that are `in_memory`.
/// `None` if no kernel does.
pub(super) fn slice(
    fusion: &Fusion,
    results: &[u32],
    in_memory: &[u32],
    caps: &DeviceCaps,
) -> Result<Option<Slice>, GraphError> {
    let body = &fusion.body;
    let value = |result: &u32| body.outputs().get(*result as usize).map(|output| output.value);
    let Some(outputs) = results.iter().map(value).collect::<Option<Vec<Value>>>() else { return Ok(None) };
    let known = in_memory.iter().filter_map(|other| Some((value(other)?, *other)));
    let known: BTreeMap<Value, u32> = known.filter(|(value, _)| !outputs.contains(value)).collect();
    let (computed, read) = needed(body, &outputs, &known);
    let (mut new, mut params, mut map) = (Graph::new(body.name()), vec![], BTreeMap::new());
    for (id, node) in body.nodes() {
        let results = (0..node.types.len() as u32).map(|result| Value { node: id, result });
        for value in results.clone().filter(|value| read.contains(value)) {
            let op = Op::Param { index: params.len() as u32, ty: body.ty(value).clone() };
            params.push(Source::Result(known[&value]));
            map.insert(value, new.add(op, &[])?);
        }
        if !computed[id.index()] {
            continue;
        }
        let op = match &node.op {
            Op::Param { index, ty } => {
                params.push(Source::Operand(*index));
                Op::Param { index: params.len() as u32 - 1, ty: ty.clone() }
            }
            op => op.clone(),
        };
        let operands: Vec<Value> = node.operands.iter().map(|v| map[v]).collect();
        let made = new.add_node(op, &operands)?;
        for value in results {
            map.entry(value).or_insert(Value { node: made, result: value.result });
        }
    }
    for value in outputs {
        new.output("", map[&value])?;
    }
    if bindings(&new, caps) > u64::from(caps.max_storage_buffers) {
        return Ok(None);
    }
    let mut kinds = [FusionKind::Map, FusionKind::Row, fusion.kind].into_iter();
    let kind = kinds.find(|kind| form(*kind, &new).is_ok());
    Ok(kind.map(|kind| Slice { fusion: Fusion::new(kind, new), params }))
}

/// What `outputs` take: the nodes that are computed, and the `known` values that they read.
fn needed(body: &Graph, outputs: &[Value], known: &BTreeMap<Value, u32>) -> (Vec<bool>, BTreeSet<Value>) {
    let (mut computed, mut read) = (vec![false; body.len()], BTreeSet::new());
    let mut todo = outputs.to_vec();
    while let Some(value) = todo.pop() {
        if known.contains_key(&value) {
            read.insert(value);
        } else if !std::mem::replace(&mut computed[value.node.index()], true) {
            todo.extend(&body.node(value.node).operands);
        }
    }
    (computed, read)
}
