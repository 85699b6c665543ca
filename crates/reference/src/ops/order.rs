//! Ops along one axis whose result has the operand's shape: scans and sorting.

use std::cmp::Ordering;
use std::sync::Arc;

use tallow_ir::{DType, ScanKind};

use crate::array::Data;
use crate::view::View;

/// Running sums or products along `axis`, in f64 (rounded once an element) or wrapping in i64.
pub fn scan(kind: ScanKind, axis: usize, a: &View) -> View {
    let (rows, len) = last(axis, a);
    if a.dtype.is_float() {
        let mut all = rows.to_f64s();
        for row in all.chunks_mut(len.max(1)) {
            let mut total = if kind == ScanKind::Sum { 0.0 } else { 1.0 };
            for x in row {
                match kind {
                    ScanKind::Sum => total += *x,
                    ScanKind::Prod => total *= *x,
                }
                *x = total;
            }
        }
        back(
            axis,
            View::fill_f64(a.dtype, rows.shape(), |start, out| {
                out.copy_from_slice(&all[start..start + out.len()])
            }),
        )
    } else {
        let mut all = to_i64s(&rows);
        for row in all.chunks_mut(len.max(1)) {
            let mut total: i64 = if kind == ScanKind::Sum { 0 } else { 1 };
            for x in row {
                total = match kind {
                    ScanKind::Sum => total.wrapping_add(*x),
                    ScanKind::Prod => total.wrapping_mul(*x),
                };
                *x = total;
            }
        }
        back(
            axis,
            View::fill_i64(a.dtype, rows.shape(), |start, out| {
                out.copy_from_slice(&all[start..start + out.len()])
            }),
        )
    }
}

/// Positions along `axis` in the order of the elements: stable, NaN above every number.
pub fn argsort(axis: usize, descending: bool, a: &View) -> View {
    let (rows, len) = last(axis, a);
    let mut order: Vec<i64> = Vec::with_capacity(rows.layout.len());
    if a.dtype.is_float() {
        for row in rows.to_f64s().chunks(len.max(1)) {
            order.extend(sorted(row, descending, |x, y| {
                x.partial_cmp(y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()))
            }));
        }
    } else {
        for row in to_i64s(&rows).chunks(len.max(1)) {
            order.extend(sorted(row, descending, i64::cmp));
        }
    }
    back(axis, View::packed(DType::U32, rows.shape(), Data::Int(Arc::new(order))))
}

fn sorted<T>(row: &[T], descending: bool, compare: impl Fn(&T, &T) -> Ordering) -> Vec<i64> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|i, j| {
        let forward = compare(&row[*i], &row[*j]);
        if descending { forward.reverse() } else { forward }
    });
    order.into_iter().map(|i| i as i64).collect()
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
