//! Steps that are a user's kernel.

use tallow_ir::{DType, Op, Shape, Value};

use super::builder::Builder;
use super::item::Item;
use crate::custom::mix;

/// A kernel with two outputs over two f32 tensors of one size, which may be views of anything.
pub fn custom(b: &mut Builder) -> Option<Item> {
    let x = b.pick(|b, i| b.dtype(i.value) == DType::F32)?;
    let shape = Shape::new(b.dims(x.value));
    let n = shape.numel();
    let y = b.pick(|b, i| b.dtype(i.value) == DType::F32 && b.graph.ty(i.value).shape.numel() == n)?;
    let (low, high) = (x.low + 0.25 * y.low, x.high + 0.25 * y.high);
    let mixed = b.add(Op::Custom(Box::new(mix(&n, &shape))), &[x.value, y.value]);
    let order = Value { node: mixed.node, result: 1 };
    if b.rng.chance(50) {
        b.push(Item { value: order, low: 0.0, high: n.max_value() as f64, exact: true });
    }
    Some(b.push(Item { value: mixed, low, high, exact: false }))
}
