//! Ops that compute each element from the same element of their operands, and tensors that are a function
//! of the index alone.

use tallow_ir::elementwise::Meaning;
use tallow_ir::{DType, ElementwiseOp, Format, Scalar, round};

use std::sync::Arc;

use crate::array::{Blocks, Data};
use crate::view::{CHUNK, View};

/// An elementwise op on operands of one shape.
pub fn elementwise(op: ElementwiseOp, dtype: DType, operands: &[View]) -> View {
    let shape = operands[0].shape();
    let floats = operands.last().is_some_and(|v| v.dtype.is_float());
    match (op.meaning(), floats) {
        (Meaning::Unary(f, _), true) => View::fill_f64(dtype, shape, |start, out| {
            operands[0].read_f64(start, out);
            out.iter_mut().for_each(|x| *x = f(*x));
        }),
        (Meaning::Unary(_, f), false) => View::fill_i64(dtype, shape, |start, out| {
            operands[0].read_i64(start, out);
            out.iter_mut().for_each(|x| *x = f(*x));
        }),
        (Meaning::Binary(f, _), true) => View::fill_f64(dtype, shape, |start, out| {
            let b = &mut [0.0; CHUNK][..out.len()];
            operands[0].read_f64(start, out);
            operands[1].read_f64(start, b);
            out.iter_mut().zip(b).for_each(|(x, y)| *x = f(*x, *y));
        }),
        (Meaning::Binary(_, f), false) => View::fill_i64(dtype, shape, |start, out| {
            let b = &mut [0; CHUNK][..out.len()];
            operands[0].read_i64(start, out);
            operands[1].read_i64(start, b);
            out.iter_mut().zip(b).for_each(|(x, y)| *x = f(*x, *y));
        }),
        (Meaning::Relation(f, _), true) => View::fill_i64(dtype, shape, |start, out| {
            let a = &mut [0.0; CHUNK][..out.len()];
            let b = &mut [0.0; CHUNK][..out.len()];
            operands[0].read_f64(start, a);
            operands[1].read_f64(start, b);
            for ((slot, x), y) in out.iter_mut().zip(a).zip(b) {
                *slot = i64::from(f(*x, *y));
            }
        }),
        (Meaning::Relation(_, f), false) => View::fill_i64(dtype, shape, |start, out| {
            let b = &mut [0; CHUNK][..out.len()];
            operands[0].read_i64(start, out);
            operands[1].read_i64(start, b);
            out.iter_mut().zip(b).for_each(|(x, y)| *x = i64::from(f(*x, *y)));
        }),
        (Meaning::Test(f), _) => View::fill_i64(dtype, shape, |start, out| {
            operands[0].read_i64(start, out);
            out.iter_mut().for_each(|x| *x = i64::from(f(*x)));
        }),
        (Meaning::Ternary(f), _) => View::fill_i64(dtype, shape, |start, out| {
            let b = &mut [0; CHUNK][..out.len()];
            let c = &mut [0; CHUNK][..out.len()];
            operands[0].read_i64(start, out);
            operands[1].read_i64(start, b);
            operands[2].read_i64(start, c);
            out.iter_mut().zip(b).zip(c).for_each(|((x, y), z)| *x = f(*x, *y, *z));
        }),
        (Meaning::Select, true) => View::fill_f64(dtype, shape, |start, out| {
            let condition = &mut [0; CHUNK][..out.len()];
            let b = &mut [0.0; CHUNK][..out.len()];
            operands[0].read_i64(start, condition);
            operands[1].read_f64(start, out);
            operands[2].read_f64(start, b);
            choose(condition, out, b);
        }),
        (Meaning::Select, false) => View::fill_i64(dtype, shape, |start, out| {
            let condition = &mut [0; CHUNK][..out.len()];
            let b = &mut [0; CHUNK][..out.len()];
            operands[0].read_i64(start, condition);
            operands[1].read_i64(start, out);
            operands[2].read_i64(start, b);
            choose(condition, out, b);
        }),
    }
}

/// Replaces the elements of `out` whose condition is 0 by those of `other`.
fn choose<T: Copy>(condition: &[i64], out: &mut [T], other: &[T]) {
    for ((c, slot), b) in condition.iter().zip(out).zip(other) {
        if *c == 0 {
            *slot = *b;
        }
    }
}

/// Conversion to another element type.
pub fn cast(a: &View, dtype: DType) -> View {
    if a.dtype == dtype || is_widening(a.dtype, dtype) {
        return View { dtype, ..a.clone() };
    }
    match (a.dtype.is_float(), dtype.is_float()) {
        (true, true) => View::fill_f64(dtype, a.shape(), |start, out| a.read_f64(start, out)),
        (false, true) => View::fill_f64(dtype, a.shape(), |start, out| {
            let exact = &mut [0; CHUNK][..out.len()];
            a.read_i64(start, exact);
            for (slot, x) in out.iter_mut().zip(exact) {
                *slot = for_rounding(dtype, *x);
            }
        }),
        (true, false) => View::fill_i64(dtype, a.shape(), |start, out| {
            let exact = &mut [0.0; CHUNK][..out.len()];
            a.read_f64(start, exact);
            for (slot, x) in out.iter_mut().zip(exact) {
                *slot = round::float_to_int(dtype, *x);
            }
        }),
        (false, false) => View::fill_i64(dtype, a.shape(), |start, out| a.read_i64(start, out)),
    }
}

/// True for casts that change no value and no buffer: f32 holds the narrower floats, i64 all integers.
fn is_widening(from: DType, to: DType) -> bool {
    matches!(
        (from, to),
        (DType::F8E4M3 | DType::F16 | DType::BF16, DType::F32)
            | (DType::U8, DType::U32 | DType::I16 | DType::I32 | DType::I64)
            | (DType::I16, DType::I32)
            | (DType::U32 | DType::I16 | DType::I32, DType::I64)
    )
}

/// The values that blocks mean; those of f32 are shared with all other runs.
pub fn dequantize(w: &View, dtype: DType) -> View {
    let data = match &w.data {
        Data::Blocks(blocks) => Data::F32(blocks.values()),
        Data::F32(_) | Data::F64(_) | Data::Int(_) => w.data.clone(),
    };
    cast(&View { dtype: DType::F32, layout: w.layout.clone(), data }, dtype)
}

/// Values as blocks, row by row.
pub fn quantize(a: &View, format: Format) -> View {
    let values: Vec<f32> = a.to_f64s().into_iter().map(|x| x as f32).collect();
    let blocks = Blocks::quantized(format, &values);
    View::packed(DType::Block(format), a.shape(), Data::Blocks(Arc::new(blocks)))
}

/// An f64 that rounds to `dtype` as `x` does.
///
/// An integer above 2^53 is not exact in f64, and rounding it twice may differ from rounding it once. For
/// the narrower types the low bits are first folded into one sticky bit, which keeps every tie a tie and
/// every other value on its side of it.
fn for_rounding(dtype: DType, x: i64) -> f64 {
    if dtype == DType::F64 || x.unsigned_abs() < 1 << 53 {
        return x as f64;
    }
    let sticky = i64::from(x & 0x7ff != 0);
    ((x >> 11) | sticky) as f64 * 2048.0
}

/// A rank-0 constant.
pub fn constant(scalar: Scalar) -> View {
    if scalar.dtype().is_float() {
        View::fill_f64(scalar.dtype(), &[], |_, out| out.fill(scalar.as_f64()))
    } else {
        View::fill_i64(scalar.dtype(), &[], |_, out| out.fill(scalar.as_i64()))
    }
}

/// `0, 1, .. len-1`.
pub fn iota(len: usize, dtype: DType) -> View {
    if dtype.is_float() {
        View::fill_f64(dtype, &[len], |start, out| {
            out.iter_mut().enumerate().for_each(|(i, slot)| *slot = (start + i) as f64);
        })
    } else {
        View::fill_i64(dtype, &[len], |start, out| {
            out.iter_mut().enumerate().for_each(|(i, slot)| *slot = (start + i) as i64);
        })
    }
}

/// The value of an extent, rank 0.
pub fn dim_value(value: i64, dtype: DType) -> View {
    if dtype.is_float() {
        View::fill_f64(dtype, &[], |_, out| out.fill(for_rounding(dtype, value)))
    } else {
        View::fill_i64(dtype, &[], |_, out| out.fill(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_round_to_floats_once() {
        // 2^60 + 2^52 is a tie between two bf16; f64 alone would drop what lies above it.
        let tie = (1i64 << 60) + (1 << 52);
        assert_eq!((tie + 1) as f64, tie as f64);
        assert!(for_rounding(DType::BF16, tie + 1) > tie as f64);
        assert_eq!(for_rounding(DType::BF16, tie), tie as f64);
        let mut state = 1u64;
        for shift in 0..40 {
            for _ in 0..200 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                for x in [(state as i64) >> shift, -((state as i64) >> shift), i64::MIN, i64::MAX] {
                    assert_eq!(for_rounding(DType::F32, x) as f32, x as f32, "{x}");
                }
            }
        }
    }
}
