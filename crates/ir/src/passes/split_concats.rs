//! Splits a concatenation with more operands than a kernel can bind into a tree of concatenations.
//!
//! `concat(a, b, c, d) = concat(concat(a, b), concat(c, d))`: concatenation along one axis is associative. Every level
//! of the tree copies each element once more, so each node takes as many operands as it can.

use std::collections::BTreeSet;

use crate::caps::DeviceCaps;
use crate::graph::{Graph, GraphError, Value};
use crate::op::Op;
use crate::rewrite::rebuild;

/// The pass.
pub fn run(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    rebuild(graph, |new, node, operands| match node.op {
        Op::Concat { axis } if !has_enough_bindings(new, operands, caps) => {
            tree(new, axis, operands, caps).map(Some)
        }
        _ => Ok(None),
    })
}

/// Whether one kernel can bind these operands, their concatenation and the symbol table.
fn has_enough_bindings(graph: &Graph, operands: &[Value], caps: &DeviceCaps) -> bool {
    let bytes = |value: &Value| graph.ty(*value).max_bytes();
    let distinct: BTreeSet<&Value> = operands.iter().collect();
    let read: u64 = distinct.into_iter().map(|value| caps.windows(bytes(value))).sum();
    let written = caps.windows(operands.iter().map(bytes).fold(0, u64::saturating_add));
    read + written < u64::from(caps.max_storage_buffers)
}

/// The concatenation of `operands`: each level merges adjacent operands as far as a kernel can bind them.
fn tree(graph: &mut Graph, axis: usize, operands: &[Value], caps: &DeviceCaps) -> Result<Value, GraphError> {
    let mut level = operands.to_vec();
    while !has_enough_bindings(graph, &level, caps) {
        let (mut next, mut group) = (vec![], vec![]);
        for value in &level {
            group.push(*value);
            if !has_enough_bindings(graph, &group, caps) && group.len() > 1 {
                group.pop();
                next.push(concat(graph, axis, &group)?);
                group = vec![*value];
            }
        }
        next.push(concat(graph, axis, &group)?);
        if next.len() == level.len() {
            // The limit does not even allow two operands.
            break;
        }
        level = next;
    }
    concat(graph, axis, &level)
}

fn concat(graph: &mut Graph, axis: usize, operands: &[Value]) -> Result<Value, GraphError> {
    match operands {
        [only] => Ok(*only),
        _ => graph.add(Op::Concat { axis }, operands),
    }
}
