//! Reductions: sum, product, largest, smallest and their positions.

use tallow_ir::{DType, ReduceKind};

use crate::view::{CHUNK, View};

/// Combines all elements of `a` along `axes`, in row-major order, exactly in f64 or wrapping in i64.
pub fn reduce(kind: ReduceKind, axes: &[usize], dtype: DType, a: &View) -> View {
    let outer: Vec<usize> = (0..a.shape().len()).filter(|i| !axes.contains(i)).collect();
    let shape: Vec<usize> = outer.iter().map(|i| a.shape()[*i]).collect();
    let count: usize = axes.iter().map(|i| a.shape()[*i]).product();
    // With the reduced axes last, row r of `rows` is what result element r combines.
    let order: Vec<usize> = outer.iter().chain(axes).copied().collect();
    let rows = a.with_layout(a.layout.permute(&order));
    let each_f64 = |row: usize, f: &mut dyn FnMut(f64)| {
        let mut buffer = [0.0; CHUNK];
        for start in (0..count).step_by(CHUNK) {
            let part = &mut buffer[..CHUNK.min(count - start)];
            rows.read_f64(row * count + start, part);
            part.iter().for_each(|x| f(*x));
        }
    };
    let each_i64 = |row: usize, f: &mut dyn FnMut(i64)| {
        let mut buffer = [0; CHUNK];
        for start in (0..count).step_by(CHUNK) {
            let part = &mut buffer[..CHUNK.min(count - start)];
            rows.read_i64(row * count + start, part);
            part.iter().for_each(|x| f(*x));
        }
    };
    match (kind.is_arg(), a.dtype.is_float()) {
        (false, true) => View::fill_f64(dtype, &shape, |start, out| {
            for (i, slot) in out.iter_mut().enumerate() {
                let mut total = start_f64(kind);
                each_f64(start + i, &mut |x| total = combine_f64(kind, total, x));
                *slot = total;
            }
        }),
        (false, false) => View::fill_i64(dtype, &shape, |start, out| {
            for (i, slot) in out.iter_mut().enumerate() {
                let mut total = start_i64(kind, a.dtype);
                each_i64(start + i, &mut |x| total = combine_i64(kind, total, x));
                *slot = total;
            }
        }),
        (true, true) => View::fill_i64(dtype, &shape, |start, out| {
            for (i, slot) in out.iter_mut().enumerate() {
                let (mut at, mut best) = (0, None);
                let mut index = 0;
                each_f64(start + i, &mut |x| {
                    if best.is_none_or(|b| beats_f64(kind, x, b)) {
                        (at, best) = (index, Some(x));
                    }
                    index += 1;
                });
                *slot = at;
            }
        }),
        (true, false) => View::fill_i64(dtype, &shape, |start, out| {
            for (i, slot) in out.iter_mut().enumerate() {
                let (mut at, mut best) = (0, None);
                let mut index = 0;
                each_i64(start + i, &mut |x| {
                    if best.is_none_or(|b| beats_i64(kind, x, b)) {
                        (at, best) = (index, Some(x));
                    }
                    index += 1;
                });
                *slot = at;
            }
        }),
    }
}

/// The result of combining nothing; positions in an empty row are 0.
fn start_f64(kind: ReduceKind) -> f64 {
    match kind {
        ReduceKind::Sum => 0.0,
        ReduceKind::Prod => 1.0,
        ReduceKind::Max | ReduceKind::ArgMax => f64::NEG_INFINITY,
        ReduceKind::Min | ReduceKind::ArgMin => f64::INFINITY,
    }
}

fn combine_f64(kind: ReduceKind, total: f64, x: f64) -> f64 {
    let either_nan = total.is_nan() || x.is_nan();
    match kind {
        ReduceKind::Sum => total + x,
        ReduceKind::Prod => total * x,
        ReduceKind::Max | ReduceKind::Min if either_nan => f64::NAN,
        ReduceKind::Max | ReduceKind::ArgMax => total.max(x),
        ReduceKind::Min | ReduceKind::ArgMin => total.min(x),
    }
}

fn start_i64(kind: ReduceKind, dtype: DType) -> i64 {
    let (lowest, highest) = match dtype {
        DType::U8 => (0, i64::from(u8::MAX)),
        DType::U32 => (0, i64::from(u32::MAX)),
        DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::I64 | DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_) => {
            (i64::MIN, i64::MAX)
        }
    };
    match kind {
        ReduceKind::Sum => 0,
        ReduceKind::Prod => 1,
        ReduceKind::Max | ReduceKind::ArgMax => lowest,
        ReduceKind::Min | ReduceKind::ArgMin => highest,
    }
}

fn combine_i64(kind: ReduceKind, total: i64, x: i64) -> i64 {
    match kind {
        ReduceKind::Sum => total.wrapping_add(x),
        ReduceKind::Prod => total.wrapping_mul(x),
        ReduceKind::Max | ReduceKind::ArgMax => total.max(x),
        ReduceKind::Min | ReduceKind::ArgMin => total.min(x),
    }
}

/// True if the position moves on from `best` to `x`. A NaN beats every number, as it does in the
/// reductions to a value, and of several the first stays.
fn beats_f64(kind: ReduceKind, x: f64, best: f64) -> bool {
    let further = if kind == ReduceKind::ArgMin { x < best } else { x > best };
    !best.is_nan() && (x.is_nan() || further)
}

fn beats_i64(kind: ReduceKind, x: i64, best: i64) -> bool {
    if kind == ReduceKind::ArgMin { x < best } else { x > best }
}
