//! Masked batches: where a selection replaces the products of a whole batch, its workgroups skip the K loop.

use std::collections::HashSet;

use tallow_ir::access::operand_indices;
use tallow_ir::form::Segment;
use tallow_ir::index::{AtomDef, AtomId, Index};
use tallow_ir::{ElementwiseOp, Graph, NodeId, Op, Value};

use super::tile_code::Matmul;
use crate::emit::Emitter;
use crate::error::CodegenError;

/// Emits the condition under which a segment's products are used, and returns the expression. `None` if they always are.
pub(crate) fn condition(
    e: &mut Emitter<'_>,
    mm: &Matmul<'_>,
    segment: &Segment,
) -> Result<Option<String>, CodegenError> {
    let conditions: Vec<Option<Value>> =
        segment.anchors.iter().map(|anchor| selecting(e.body, *anchor)).collect();
    let Some(Some(first)) = conditions.first().copied() else { return Ok(None) };
    if conditions.iter().any(|condition| *condition != Some(first)) || !is_of_batch(e, first) {
        return Ok(None);
    }
    let shape = e.body.ty(first).shape.clone();
    let batches = shape.dims()[..shape.rank() - 2].iter().cloned().collect();
    let mut at = e.atoms.unflatten(&mm.batch, &batches);
    at.extend([Index::default(), Index::default()]);
    let condition = e.value(first, &at)?.text;
    Ok(Some(format!("{condition} != 0u")))
}

/// The condition of all selections that read a matmul, if only selections do, as their first choice.
fn selecting(body: &Graph, anchor: NodeId) -> Option<Value> {
    let product = Value::from(anchor);
    if body.outputs().iter().any(|output| output.value == product) {
        return None;
    }
    let mut users = body.nodes().map(|(_, node)| node).filter(|node| node.operands.contains(&product));
    let of = |operands: &[Value]| match operands {
        [condition, chosen, other] if *chosen == product && *condition != product && *other != product => {
            Some(*condition)
        }
        _ => None,
    };
    let of_user = |node: &tallow_ir::Node| match node.op {
        Op::Elementwise(ElementwiseOp::Select) => of(&node.operands),
        _ => None,
    };
    let first = of_user(users.next()?)?;
    users.all(|node| of_user(node) == Some(first)).then_some(first)
}

/// Whether a condition is the same for all rows and columns of a batch, and depends on no product.
fn is_of_batch(e: &mut Emitter<'_>, condition: Value) -> bool {
    let dims = e.body.ty(condition).shape.dims().to_vec();
    let Some(batches) = dims.len().checked_sub(2) else { return false };
    let free: Vec<AtomId> = dims.iter().map(|dim| e.atoms.fresh(dim, AtomDef::Free)).collect();
    let at: Vec<Index> = free.iter().map(|atom| e.atoms.index(*atom)).collect();
    let (mut todo, mut seen) = (vec![(condition, at)], HashSet::new());
    while let Some((value, at)) = todo.pop() {
        if !seen.insert((value, at.clone())) {
            continue;
        }
        let node = e.body.node(value.node);
        let Some(reads) = operand_indices(e.body, value.node, &at, &mut e.atoms) else { return false };
        // Where a value has no operands, or its coordinate selects one, it depends on the coordinate itself.
        let deciding = match &node.op {
            Op::Pad { axis, .. } | Op::Concat { axis } => &at[*axis..=*axis],
            _ if node.operands.is_empty() => &at[..],
            _ => &[],
        };
        let inner = |index: &Index| e.atoms.roots(index).iter().any(|root| free[batches..].contains(root));
        if deciding.iter().any(inner) {
            return false;
        }
        todo.extend(node.operands.iter().copied().zip(reads));
    }
    true
}
