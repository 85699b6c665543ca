//! View folding: composes views of views and drops views that change nothing.

use crate::caps::DeviceCaps;
use crate::graph::{Graph, GraphError, Value};
use crate::op::Op;
use crate::rewrite::rebuild;

/// The pass.
pub fn run(graph: &Graph, _: &DeviceCaps) -> Result<Graph, GraphError> {
    rebuild(graph, |new, node, operands| view(new, &node.op, operands))
}

fn view(g: &mut Graph, op: &Op, operands: &[Value]) -> Result<Option<Value>, GraphError> {
    let Some(a) = operands.first().copied() else { return Ok(None) };
    let from = g.ty(a).shape.clone();
    let below = g.node(a.node).clone();
    let value = match (op, &below.op) {
        // reshape to the same shape, broadcast to the same shape
        (Op::Reshape(to) | Op::Broadcast(to), _) if *to == from => Some(a),
        // reshape(reshape(x)) -> reshape(x)
        (Op::Reshape(to), Op::Reshape(_)) => Some(g.reshape(below.operands[0], to.clone())?),
        // reshape(broadcast(c)) -> broadcast(c) for a rank-0 c
        (Op::Reshape(to), Op::Broadcast(_)) if g.ty(below.operands[0]).shape.rank() == 0 => {
            Some(g.broadcast(below.operands[0], to.clone())?)
        }
        // broadcast(broadcast(x)) -> broadcast(x)
        (Op::Broadcast(to), Op::Broadcast(_)) => Some(g.broadcast(below.operands[0], to.clone())?),
        // permute by the identity
        (Op::Permute(axes), _) if axes.iter().enumerate().all(|(i, a)| i == *a) => Some(a),
        // permute(permute(x, p), q) -> permute(x, p[q[i]])
        (Op::Permute(outer), Op::Permute(inner)) => {
            let axes: Vec<usize> = outer.iter().map(|i| inner[*i]).collect();
            let source = below.operands[0];
            let identity = axes.iter().enumerate().all(|(i, a)| i == *a);
            Some(if identity { source } else { g.permute(source, &axes)? })
        }
        // permute that only moves extents of 1 -> reshape
        (Op::Permute(axes), _) if keeps_order(axes, &from) => {
            let to: crate::Shape = axes.iter().map(|i| from.dims()[*i].clone()).collect();
            Some(g.reshape(a, to)?)
        }
        // slice of everything
        (Op::Slice { axis, start, len }, _) if start.is(0) && *len == from.dims()[*axis] => Some(a),
        // slice(slice(x, s, _), t, n) -> slice(x, s + t, n)
        (Op::Slice { axis, start, len }, Op::Slice { axis: inner, start: first, .. }) if axis == inner => {
            let op = Op::Slice { axis: *axis, start: first + start, len: len.clone() };
            Some(g.add(op, &below.operands)?)
        }
        // flip(flip(x)) -> x
        (Op::Flip { axis }, Op::Flip { axis: inner }) if axis == inner => Some(below.operands[0]),
        // window(x, size=s, stride=s, dilation=1) that covers x exactly -> reshape; likewise size=1, stride=1
        (Op::Window { axis, size, stride, dilation }, _)
            if size == stride
                && (*dilation == 1 || *size == 1)
                && from.dims()[*axis].div_exact(&(*size).into()).is_some() =>
        {
            let mut dims = from.dims().to_vec();
            let count = dims[*axis].div_exact(&(*size).into()).unwrap_or_default();
            dims.splice(*axis..=*axis, [count, (*size).into()]);
            Some(g.reshape(a, crate::Shape::new(dims))?)
        }
        // pad by nothing
        (Op::Pad { before, after, .. }, _) if before.is(0) && after.is(0) => Some(a),
        // concat of one
        (Op::Concat { .. }, _) if operands.len() == 1 => Some(a),
        _ => None,
    };
    Ok(value)
}

/// True if the axes with extents other than 1 keep their order.
fn keeps_order(axes: &[usize], shape: &crate::Shape) -> bool {
    let long: Vec<usize> = axes.iter().copied().filter(|i| !shape.dims()[*i].is(1)).collect();
    long.windows(2).all(|w| w[0] < w[1])
}
