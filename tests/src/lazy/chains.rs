//! Programs of the kind `x = f(x)`: many tensors of one size, each made of the one before, so that memory can be
//! reused and operands overwritten.

use tallow_ir::{DType, ElementwiseOp as E, Graph, GraphError, Op, ReduceKind, ScanKind, Value};

use crate::rng::Rng;

/// Shapes of one element and none, of prime extents, and of more than 64 KiB.
const SHAPES: [&[usize]; 12] = [
    &[1],
    &[2],
    &[33],
    &[257],
    &[16, 16],
    &[7, 13],
    &[1, 127],
    &[5, 3, 31],
    &[16411],
    &[129, 131],
    &[0],
    &[3, 0],
];

/// A chain over a type out of `floats` or of unsigned integers.
///
/// # Errors
/// When the generator is wrong.
pub fn chain(rng: &mut Rng, floats: &[DType]) -> Result<Graph, GraphError> {
    let shape = *rng.pick(&SHAPES);
    let dtype = if rng.chance(15) { DType::U32 } else { *rng.pick(floats) };
    let mut g = Graph::new("chain");
    let mut input = |name: &str| g.input(name, dtype, shape.to_vec());
    let (mut x, others) = (input("x")?, [input("q")?, input("b")?]);
    for step in 0..rng.between(4, 14) {
        if rng.chance(25) && dtype.is_float() {
            // Something else that needs x: it may still be to be computed when the next x is.
            let side = match dtype {
                // A kernel of its own, beside the one that makes the next x.
                DType::F32 | DType::F64 if rng.chance(50) => {
                    let axis = shape.len() - 1;
                    g.add(Op::Scan { kind: ScanKind::Sum, axis, part: None }, &[x])?
                }
                _ => elementwise(&mut g, rng, x, others)?,
            };
            g.output(&format!("side{step}"), side)?;
        }
        let next = match dtype {
            DType::U32 => integers(&mut g, rng, x, others)?,
            _ if rng.chance(60) => elementwise(&mut g, rng, x, others)?,
            _ => rearranged(&mut g, rng, x, others)?,
        };
        x = next;
    }
    g.output("y", x)?;
    Ok(g)
}

/// Steps that wrap, whose results are exact.
fn integers(g: &mut Graph, rng: &mut Rng, x: Value, [q, b]: [Value; 2]) -> Result<Value, GraphError> {
    let op = *rng.pick(&[E::Add, E::Sub, E::Mul, E::BitXor, E::Maximum]);
    let y = g.elementwise(op, &[x, *rng.pick(&[q, b, x])])?;
    if rng.chance(30) { g.add(Op::Flip { axis: 0 }, &[y]) } else { Ok(y) }
}

/// Steps whose results stay within about 8, since q and b are within 4.
fn elementwise(g: &mut Graph, rng: &mut Rng, x: Value, [q, b]: [Value; 2]) -> Result<Value, GraphError> {
    match rng.below(6) {
        0 => {
            let product = g.elementwise(E::Mul, &[x, q])?;
            let one = g.full_like(x, 1.0)?;
            let sum = g.elementwise(E::Add, &[product, one])?;
            g.elementwise(E::Tanh, &[sum])
        }
        1 => {
            let half = g.full_like(x, 0.5)?;
            let less = g.elementwise(E::Mul, &[x, half])?;
            g.elementwise(E::Add, &[less, b])
        }
        2 => g.elementwise(E::Maximum, &[x, q]),
        3 => {
            // Of q and b, which are exact: what jumps must jump at the same place everywhere.
            let larger = g.elementwise(E::Gt, &[q, b])?;
            g.elementwise(E::Select, &[larger, x, b])
        }
        4 => g.elementwise(E::Sin, &[x]),
        _ => {
            let half = g.full_like(x, 0.5)?;
            let y = g.elementwise(E::Sub, &[x, q])?;
            g.elementwise(E::Mul, &[y, half])
        }
    }
}

/// Steps over rows and across them.
fn rearranged(g: &mut Graph, rng: &mut Rng, x: Value, [q, b]: [Value; 2]) -> Result<Value, GraphError> {
    let shape = g.ty(x).shape.clone();
    let dims = shape.as_const().unwrap_or_default();
    let (last, extent) = (dims.len() - 1, dims[dims.len() - 1]);
    match rng.below(5) {
        // Of nothing there is no largest element.
        0 if extent > 0 => {
            let most = g.reduce_keepdim(ReduceKind::Max, x, &[last])?;
            let most = g.broadcast(most, shape.clone())?;
            let less = g.elementwise(E::Sub, &[x, most])?;
            let exp = g.elementwise(E::Exp, &[less])?;
            let sum = g.reduce_keepdim(ReduceKind::Sum, exp, &[last])?;
            let sum = g.broadcast(sum, shape)?;
            g.elementwise(E::Div, &[exp, sum])
        }
        1 if extent > 1 => {
            let cut = rng.between(1, extent as i64 - 1) as usize;
            let part =
                |start: usize, len: usize| Op::Slice { axis: last, start: start.into(), len: len.into() };
            let front = g.add(part(0, cut), &[x])?;
            let back = g.add(part(cut, extent - cut), &[x])?;
            g.add(Op::Concat { axis: last }, &[back, front])
        }
        2 if dims.len() == 2 => {
            let turned = g.add(Op::Permute(vec![1, 0]), &[x])?;
            g.reshape(turned, shape)
        }
        3 if dims.len() == 2 && dims[0] == dims[1] => {
            // 16 products of elements within 8 and 4.
            let product = g.add(Op::Matmul, &[x, q])?;
            let scale = g.full_like(product, 1.0 / 64.0)?;
            g.elementwise(E::Mul, &[product, scale])
        }
        _ => {
            let turned = g.add(Op::Flip { axis: 0 }, &[x])?;
            g.elementwise(E::Minimum, &[turned, b])
        }
    }
}
