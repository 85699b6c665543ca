//! Operands as they are stored in a class, and the views that make of them what the op sees, on both sides.

use candle_core as candle;
use tallow_ir::{Dim, Graph, Op, Shape, Value};

use crate::class::Class;

/// The extents in memory of what the op sees as `dims`.
pub fn stored(dims: &[usize], class: Class) -> Vec<usize> {
    let mut stored = dims.to_vec();
    match class {
        Class::Strided => stored.reverse(),
        Class::Broadcast => stored.iter_mut().step_by(2).for_each(|d| *d = (*d).min(1)),
        Class::Sliced => stored.iter_mut().for_each(|d| *d += 2),
        Class::Contiguous
        | Class::Scalar
        | Class::Empty
        | Class::One
        | Class::Odd
        | Class::Many
        | Class::Windows => {}
    }
    stored
}

/// `leaf`, stored as above, in the shape that the op sees.
pub fn view(graph: &mut Graph, leaf: Value, dims: &[usize], class: Class) -> Result<Value, String> {
    let mut add = |op: Op, v: Value| graph.add(op, &[v]).map_err(|e| e.to_string());
    match class {
        Class::Strided if dims.len() > 1 => add(Op::Permute((0..dims.len()).rev().collect()), leaf),
        Class::Broadcast if !dims.is_empty() => add(Op::Broadcast(Shape::from(dims)), leaf),
        Class::Sliced => {
            let part = |v, (axis, len): (usize, &usize)| {
                add(Op::Slice { axis, start: Dim::one(), len: Dim::from(*len) }, v)
            };
            dims.iter().enumerate().try_fold(leaf, part)
        }
        Class::Strided
        | Class::Broadcast
        | Class::Contiguous
        | Class::Scalar
        | Class::Empty
        | Class::One
        | Class::Odd
        | Class::Many
        | Class::Windows => Ok(leaf),
    }
}

/// The same of a tensor.
pub fn tensor(stored: &tallow::Tensor, dims: &[usize], class: Class) -> tallow::Result<tallow::Tensor> {
    match class {
        Class::Strided if dims.len() > 1 => stored.permute((0..dims.len()).rev().collect::<Vec<_>>()),
        Class::Broadcast if !dims.is_empty() => stored.broadcast_as(dims),
        Class::Sliced => {
            let part = |t: tallow::Tensor, (axis, len): (usize, &usize)| t.narrow(axis, 1usize, *len);
            dims.iter().enumerate().try_fold(stored.clone(), part)
        }
        Class::Strided
        | Class::Broadcast
        | Class::Contiguous
        | Class::Scalar
        | Class::Empty
        | Class::One
        | Class::Odd
        | Class::Many
        | Class::Windows => Ok(stored.clone()),
    }
}

/// The same of Candle's tensor.
pub fn candle(stored: &candle::Tensor, dims: &[usize], class: Class) -> candle::Result<candle::Tensor> {
    match class {
        Class::Strided if dims.len() > 1 => stored.permute((0..dims.len()).rev().collect::<Vec<_>>()),
        Class::Broadcast if !dims.is_empty() => stored.broadcast_as(dims),
        Class::Sliced => {
            let part = |t: candle::Tensor, (axis, len): (usize, &usize)| t.narrow(axis, 1, *len);
            dims.iter().enumerate().try_fold(stored.clone(), part)
        }
        Class::Strided
        | Class::Broadcast
        | Class::Contiguous
        | Class::Scalar
        | Class::Empty
        | Class::One
        | Class::Odd
        | Class::Many
        | Class::Windows => Ok(stored.clone()),
    }
}
