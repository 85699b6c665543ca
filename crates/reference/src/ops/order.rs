//! Ops along one axis: scans and sorting.

use std::cmp::Ordering;
use std::sync::Arc;

use tallow_ir::{DType, ScanKind, SortSpan};

use crate::array::Data;
use crate::view::View;

/// The scan of `operands` along `axis`, in f64 (rounded once an element) or wrapping in i64. In `parts` of a length, each
/// starts from its element of the operand behind those that are scanned.
pub fn scan(kind: ScanKind, axis: usize, operands: &[View], parts: Option<usize>) -> View {
    let parts = parts.zip(operands.get(kind.operands()));
    match kind {
        ScanKind::Sum => running(axis, &operands[0], parts, (0.0, |x, y| x + y), (0, i64::wrapping_add)),
        ScanKind::Prod => running(axis, &operands[0], parts, (1.0, |x, y| x * y), (1, i64::wrapping_mul)),
        ScanKind::Linear => linear_scan(axis, &operands[0], &operands[1]),
    }
}

/// A number that changes nothing, and how two are combined.
type Combination<T> = (T, fn(T, T) -> T);

/// Running sums or products along `axis`. With parts of a length, each starts from its element of the second tensor.
fn running(
    axis: usize,
    a: &View,
    parts: Option<(usize, &View)>,
    floats: Combination<f64>,
    integers: Combination<i64>,
) -> View {
    let (rows, len) = last(axis, a);
    let part = parts.map_or(len, |(part, _)| part).max(1);
    let (starts, parts) = match parts.map(|(_, before)| last(axis, before)) {
        Some((starts, parts)) => (Some(starts), parts),
        None => (None, 1),
    };
    let result = if a.dtype.is_float() {
        let (identity, combine) = floats;
        let mut all = rows.to_f64s();
        let starts = starts.map(|starts| starts.to_f64s());
        scan_parts(&mut all, [len, part, parts], |at| starts.as_ref().map_or(identity, |s| s[at]), combine);
        View::fill_f64(a.dtype, rows.shape(), |start, out| {
            out.copy_from_slice(&all[start..start + out.len()])
        })
    } else {
        let (identity, combine) = integers;
        let mut all = to_i64s(&rows);
        let starts = starts.map(|starts| to_i64s(&starts));
        scan_parts(&mut all, [len, part, parts], |at| starts.as_ref().map_or(identity, |s| s[at]), combine);
        View::fill_i64(a.dtype, rows.shape(), |start, out| {
            out.copy_from_slice(&all[start..start + out.len()])
        })
    };
    back(axis, result)
}

/// `h[i] = a[i] * h[i-1] + b[i]` along `axis`, which begins with `b[0]`.
fn linear_scan(axis: usize, a: &View, b: &View) -> View {
    let (coefficients, len) = last(axis, a);
    let rows = last(axis, b).0;
    let mut all = rows.to_f64s();
    let coefficients = coefficients.to_f64s();
    for (a, b) in coefficients.chunks(len.max(1)).zip(all.chunks_mut(len.max(1))) {
        for i in 1..b.len() {
            b[i] += a[i] * b[i - 1];
        }
    }
    let result = View::fill_f64(a.dtype, rows.shape(), |start, out| {
        out.copy_from_slice(&all[start..start + out.len()])
    });
    back(axis, result)
}

/// Scans rows of `len` elements in place. Each has `parts` parts of `part` elements, of which number `i` of all rows starts
/// from `start(i)`.
fn scan_parts<T: Copy>(
    all: &mut [T],
    [len, part, parts]: [usize; 3],
    start: impl Fn(usize) -> T,
    combine: impl Fn(T, T) -> T,
) {
    for (r, row) in all.chunks_mut(len.max(1)).enumerate() {
        for (p, elements) in row.chunks_mut(part).enumerate() {
            let mut total = start(r * parts + p);
            for x in elements {
                total = combine(total, *x);
                *x = total;
            }
        }
    }
}

/// Positions along `axis` in the order of the elements: stable, NaN above every number.
pub fn argsort(axis: usize, descending: bool, span: SortSpan, a: &View) -> View {
    let (rows, len) = last(axis, a);
    let (run, first) = match span {
        SortSpan::All => (len, len),
        SortSpan::First(count) => (len, len.min(count as usize)),
        SortSpan::Runs(run) => (run as usize, len),
    };
    let positions: Vec<i64> = (0..rows.layout.len()).map(|i| (i % len.max(1)) as i64).collect();
    let sorted = sorted_runs(&rows, len, run, descending, positions);
    let order = sorted.chunks(len.max(1)).flat_map(|row| row[..first].iter().copied()).collect();
    let mut shape = rows.shape().to_vec();
    if let Some(extent) = shape.last_mut() {
        *extent = first;
    }
    back(axis, View::packed(DType::U32, &shape, Data::Int(Arc::new(order))))
}

/// Positions along `axis` in sorted runs of `2 run`, from those in sorted runs of `run`. Sorting each pair of runs
/// merges it.
pub fn merge_runs(axis: usize, descending: bool, run: u32, a: &View, order: &View) -> View {
    let (rows, len) = last(axis, a);
    let positions = to_i64s(&last(axis, order).0);
    let merged = sorted_runs(&rows, len, 2 * run as usize, descending, positions);
    back(axis, View::packed(DType::U32, rows.shape(), Data::Int(Arc::new(merged))))
}

/// `positions` into rows of `len` elements, each run of them sorted by its elements; equal ones by position.
fn sorted_runs(rows: &View, len: usize, run: usize, descending: bool, mut positions: Vec<i64>) -> Vec<i64> {
    fn sort<T>(positions: &mut [i64], row: &[T], descending: bool, compare: impl Fn(&T, &T) -> Ordering) {
        let element = |i: i64| &row[usize::try_from(i).unwrap_or(0).min(row.len() - 1)];
        positions.sort_by(|i, j| {
            let forward = compare(element(*i), element(*j));
            let by_element = if descending { forward.reverse() } else { forward };
            by_element.then(i.cmp(j))
        });
    }
    let (len, run) = (len.max(1), run.max(1));
    if rows.dtype.is_float() {
        let all = rows.to_f64s();
        for (row, positions) in all.chunks(len).zip(positions.chunks_mut(len)) {
            for run in positions.chunks_mut(run) {
                sort(run, row, descending, |x, y| {
                    x.partial_cmp(y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()))
                });
            }
        }
    } else {
        let all = to_i64s(rows);
        for (row, positions) in all.chunks(len).zip(positions.chunks_mut(len)) {
            positions.chunks_mut(run).for_each(|run| sort(run, row, descending, i64::cmp));
        }
    }
    positions
}

/// The tensor with `axis` as its last, and the extent of that axis.
fn last(axis: usize, a: &View) -> (View, usize) {
    let order: Vec<usize> = (0..a.shape().len()).filter(|i| *i != axis).chain([axis]).collect();
    (a.with_layout(a.layout.permute(&order)), a.shape()[axis])
}

/// The inverse of [`last`].
fn back(axis: usize, rows: View) -> View {
    let rank = rows.shape().len();
    let mut order: Vec<usize> = (0..rank - 1).collect();
    order.insert(axis, rank - 1);
    rows.with_layout(rows.layout.permute(&order))
}

fn to_i64s(a: &View) -> Vec<i64> {
    let mut all = vec![0; a.layout.len()];
    a.read_i64(0, &mut all);
    all
}
